"""How many times as fast one machine is as another, and how sure that is.

Everything here is a weighted sum of logarithms of latencies, L = sum of w log t over cells: of one cell, the geometric
mean of many (all w alike), or a workload's time (w its share in it). Of the machines A and B the ratio is
exp(L_A - L_B): above 1, B is the faster.

**The interval of L**, 95 %, comes from rounds wherever a cell has several. A round is a fresh process, and what is
particular to a process (memory layout, clocks) moves all cells of its round together, so rounds and not cells are the
unit of replication. With n rounds of a cell about their mean m, round r moves L by e_r, the sum over its cells of
w (log t - m) / n; of R rounds in all

    variance of L = R / (R - 1) * sum of e_r^2,    half the interval = t(R - 1, 97.5 %) * its root,

the variance of a mean of clusters (Liang and Zeger, "Longitudinal data analysis using generalized linear models",
Biometrika 73(1), 1986, with the correction for few clusters). Of one cell it is s / sqrt(n) with Student's t.

**From samples.** A cell with one round has only its samples: the interval of their median from ranks (core/stats.py),
below 6 samples Student's t on their logarithms, none of one sample. It does not include what sets one process, run or
unit apart from another, so it is too narrow; reports say which machines have only this. Cells are taken as independent
there, and their intervals add in quadrature.

**Two intervals make one** by the method of variance estimates recovery, which keeps their asymmetry: the lower end of
L_A - L_B lies sqrt((L_A - low_A)^2 + (high_B - L_B)^2) below. Zou and Donner, "Construction of confidence limits about
effect measures", Statistics in Medicine 27(10), 2008.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from attnbench.analysis.compare.machines import Machine
from attnbench.core import stats
from attnbench.results.cells import Key
from attnbench.results.metrics import MIN_SAMPLES_INTERVAL

Weights = Mapping[Key, float]  # of the logarithms of the cells' latencies
ROUNDS, SAMPLES = "rounds", "samples"


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds. `low` and `high` are its 95 % interval; None where nothing is known of the noise."""

    value: float
    low: float | None
    high: float | None
    sources: tuple[str, ...]  # what the interval is from, of ROUNDS and SAMPLES

    @property
    def includes_one(self) -> bool:
        """Whether the interval holds 1, or there is none: no difference was shown."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high


EXACTLY_ONE = Ratio(1.0, 1.0, 1.0, ())  # of a machine to itself


def speed_ratio(
    reference: Machine,
    weights: Weights,
    other: Machine,
    other_weights: Weights | None = None,
    value: float | None = None,
) -> Ratio:
    """Return how many times as fast `other` is as `reference` over weighted cells.

    `other_weights` are those of the other machine's cells, where other backends count there; else they are the same.
    `value` is the ratio itself where it is not exp(L_A - L_B); the weights then give its interval alone.
    """
    if other is reference:
        return EXACTLY_ONE
    ours = _log_sum(reference, weights)
    theirs = _log_sum(other, weights if other_weights is None else other_weights)
    log = ours.value - theirs.value if value is None else math.log(value)
    below, above = math.hypot(ours.below, theirs.above), math.hypot(ours.above, theirs.below)
    known = abs(log - below) < 700 and abs(log + above) < 700  # finite, and so that exp has a number for it
    low, high = (math.exp(log - below), math.exp(log + above)) if known else (None, None)
    return Ratio(math.exp(log), low, high, tuple(sorted({*ours.sources, *theirs.sources})))


def equal_weights(keys: Collection[Key]) -> Weights:
    """Return the weights of a geometric mean."""
    return dict.fromkeys(keys, 1 / len(keys)) if keys else {}


class _LogSum(NamedTuple):
    """A weighted sum of log latencies on one machine, and how far its 95 % interval reaches below and above it."""

    value: float
    below: float
    above: float
    sources: set[str]  # of ROUNDS and SAMPLES


def _log_sum(machine: Machine, weights: Weights) -> _LogSum:
    """Return the weighted sum of log latencies of cells that all have a figure."""
    moves = defaultdict[int, float](float)  # round -> how far it moves the sum
    below, above = [0.0], [0.0]  # how far the interval of each cell with one round reaches
    sources = set()
    for key, weight in weights.items():
        logs, mean = machine.log_latencies[key], machine.mean_log_latency[key]
        if len(logs) > 1:
            sources.add(ROUNDS)
            for number, log in logs.items():
                moves[number] += weight * (log - mean) / len(logs)
        else:
            sources.add(SAMPLES)
            lower, upper = _interval_of_samples(machine, key)
            below.append(weight * lower)
            above.append(weight * upper)
    half = _half_interval(moves.values()) if moves else 0.0
    value = math.fsum(weight * machine.mean_log_latency[key] for key, weight in weights.items())
    return _LogSum(value, math.hypot(half, *below), math.hypot(half, *above), sources)


def _interval_of_samples(machine: Machine, key: Key) -> tuple[float, float]:
    """Return how far the interval of the only round's median reaches below and above it, as logarithms."""
    logs = machine.log_latencies[key]
    samples = next(row.ordered_samples for row in machine.cells[key].ok if row.record.round in logs)
    if len(samples) >= MIN_SAMPLES_INTERVAL:
        low, high = stats.median_interval(samples)
        median = stats.median(samples)
        return (math.log(median / low) if low > 0 else math.inf), math.log(high / median)
    if len(samples) < 2 or samples[0] <= 0:
        return math.inf, math.inf
    mean = math.log(stats.geomean(samples))
    half = _half_interval([(math.log(t) - mean) / len(samples) for t in samples])
    return half, half


def _half_interval(moves: Collection[float]) -> float:
    """Return half the 95 % interval of a sum or mean that each of n rounds or samples moves so far from its centre."""
    n = len(moves)
    return _student(n - 1) * math.sqrt(n / (n - 1) * math.fsum(move * move for move in moves))


@lru_cache(maxsize=256)
def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy import special  # type: ignore[import-untyped]

    return float(special.stdtrit(freedom, 0.975))
