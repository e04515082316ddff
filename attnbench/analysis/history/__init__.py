"""The `history` command: runs over commits and dates -> the metrics of each cell -> when they changed.

series.py makes series of runs, change_tests.py decides whether anything changed, change_points.py where, findings.py
joins them, events.py finds the runs between which cells changed. docs/dev/statistics.md says how often it is wrong.
"""
