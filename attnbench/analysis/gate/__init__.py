"""The `gate` command: it compares two runs, judges each metric of each cell, and ends with one exit code.

findings.py goes from two runs to the verdict on the whole. cell_states.py judges what works and what fails, and
metric_findings.py all metrics of the other cells together, by the tests of hypothesis_tests.py (change_noise.py
computes their noise), or of repeated_looks.py for an A/B. document.py, junit.py and github.py are the outputs.

docs/gate.md explains the method, docs/dev/statistics.md its error rates as simulated and the sources.
"""
