"""The `ab` command: two builds are measured in turns (run/ab), and judged as `attnbench gate A B` judges the files.

gate/repeated_looks.py has the statistics. docs/ab.md explains the method, docs/dev/statistics.md its error rates.
"""
