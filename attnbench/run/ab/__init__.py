"""The measurement of an A/B: two builds in turns, A B B A, until every cell is settled or the time is up.

A gate, which analysis/ab/run_ab.py implements, says which cells are settled.
"""
