"""The error rates of `attnbench ab`, by simulation with the noise of an H200.

    python tests/statistics/simulate_ab.py [--runs 1000] [--only TEXT]

The noise is that of simulate_gate.py, without what sets two runs apart: rounds that take turns have that in common.
Instead all of it drifts, smoothly and by chance. Every A/B goes through the code that decides. The table in docs/ab.md
is what this prints; tests/statistics/test_ab_error_rates.py asserts the figures with fewer runs.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from h200_noise import draw
from simulate_gate import KINDS, simulated_run

from attnbench.gate.decide import Decision, Rounds
from attnbench.gate.gate import Request, judge
from attnbench.gate.looks import LOOKS, decide_in_turns
from attnbench.gate.margins import DEFAULT, Margins
