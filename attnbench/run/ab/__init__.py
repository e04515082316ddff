"""The measurement of `attnbench ab`, an A/B: two builds, A and B, are measured in turns.

A turn is one round of one build. Turns come in pairs, A B or B A, until every cell is settled or the time is up. A cell
is settled when more rounds cannot change its verdict; a gate, which analysis/ab/run_ab.py implements, decides that.
"""
