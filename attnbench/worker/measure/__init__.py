"""The instruments, one file each. They know nothing of backends and cases.

Time: cuda_events.py (the default), cuda_graph.py, cupti.py; sampling.py (the sampling loop and the host clock). State
of the device: clock_gauge.py (SM clock), l2_cache.py (L2 flush), nvml.py (clocks, power, temperature), memory.py,
energy.py (power and energy of a run without pauses), ceiling.py (the rates of a large matmul and a large copy). What
ran: cupti.py on a GPU, cpu_operators.py on a CPU; profiler_session.py opens torch's profiler for both.
"""
