"""The worker: the child process that runs kernels on the device. `python -m attnbench.worker` starts it.

A worker imports only the standard library, torch and the library under test, so that any interpreter with these can be
one. Where to start reading:

- serve.py: the loop that answers the parent's requests, one JSON line each
- measure_cell.py: the procedure for one cell (one case on one backend); cell.py: its steps and its record;
  cell_steps.py: the steps of a case on one device
- measure/: the instruments (timers, clock gauge, L2 flush, sampling loop, memory, power)
- judging.py: the checks of a cell's results, by the judge's process (judge/service.py) or within the worker
- kernel_rules.py, kernel_trace.py: which kernels may run under a backend's name, and the traced call that shows them
"""
