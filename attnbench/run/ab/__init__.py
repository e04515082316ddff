"""The measuring of an A/B: two builds in turns, A B B A, until every cell is settled or time is up.

What cells are settled is asked of a gate, which analysis/ab/run_ab.py is.
"""
