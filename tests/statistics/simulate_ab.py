"""The error rates of `attnbench ab`, by simulation with the noise of an H200.

    python tests/statistics/simulate_ab.py [--runs 1000] [--only TEXT]

The noise is that of simulate_gate.py, without what sets two runs apart: rounds that take turns have that in common.
Instead all of it drifts, smoothly and by chance. Every A/B goes through the code that decides. The table in docs/ab.md
is what this prints; tests/statistics/test_ab_error_rates.py asserts the figures with fewer runs.
"""

from __future__ import annotations
