"""The speed ratio of two machines, with its 95 % interval.

The ratio is computed from weighted sums of logarithms of latencies (or energies), L = sum of w log t over cells: one
cell, the geometric mean of many (equal w), or a workload's time (w: the cell's share in it). log t is the value of a
cell from all cards of the machine (results/pool.py). For machines A and B the ratio is exp(L_A - L_B): above 1, B is
the faster.

Half of the 95 % interval of the log ratio is the root of the sum of the squares of the parts in docs/dev/compare.md:
rounds and processes of each machine, cards of both, and the interpolation of a workload in words (requests.py). The
energy of a call is assumed to vary like its latency.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.analysis.compare.machines import Machine
from attnbench.core import stats
from attnbench.results.cells import Key
from attnbench.results.pool import of_cards

Weights = Mapping[Key, float]  # of the logarithms of the cells' latencies
ROUNDS, TABLE = "rounds", "table"


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds. `low` and `high` are its 95 % interval; None if the noise is not known."""

    value: float
    low: float | None
    high: float | None
    sources: tuple[str, ...]  # sources of the interval: ROUNDS, TABLE or both

    def overlaps(self, other: Ratio) -> bool:
        """Return whether no difference was shown: the intervals overlap, or one is not known."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high and other.low <= self.high


EXACTLY_ONE = Ratio(1.0, 1.0, 1.0, ())  # a machine over itself


def speed_ratio(
    reference: Machine,
    weights: Weights,
    other: Machine,
    other_weights: Weights | None = None,
    value: float | None = None,
    interpolation: float = 0.0,
) -> Ratio:
    """Return the speed ratio of `other` to `reference` over weighted cells.

    `other_weights` are the weights on the other machine, if other backends count on it; None: the same weights.
    `value` is the ratio itself if it is not exp(L_A - L_B); the weights then give only its interval. `interpolation` is
    the part of half the interval that is not from measured cells.
    """
    if other is reference:
        return EXACTLY_ONE
    other_weights = weights if other_weights is None else other_weights
    ours, theirs = _log_sum(reference, weights), _log_sum(other, other_weights)
    log = ours.value - theirs.value if value is None else math.log(value)
    half = math.hypot(
        ours.half, theirs.half, of_cards((reference.pool, weights), (other.pool, other_weights)), interpolation
    )
    known = abs(log) + half < 700  # finite, and exp does not overflow
    low, high = (stats.exp(log - half), stats.exp(log + half)) if known else (None, None)
    return Ratio(stats.exp(log), low, high, tuple(sorted({*ours.sources, *theirs.sources})))


def uncertainty(machine: Machine, weights: Weights) -> float:
    """Return half the 95 % interval of a weighted sum of log latencies of cells, for any card of the machine."""
    return math.hypot(_log_sum(machine, weights).half, of_cards((machine.pool, weights)))


def equal_weights(keys: Collection[Key]) -> Weights:
    """Return the weights of a geometric mean."""
    return dict.fromkeys(keys, 1 / len(keys)) if keys else {}


class _LogSum(NamedTuple):
    """A weighted sum of log latencies on one machine, and half its 95 % interval, without differences between cards."""

    value: float
    half: float
    sources: set[str]  # ROUNDS, TABLE or both


def _log_sum(machine: Machine, weights: Weights) -> _LogSum:
    """Return the weighted sum of log latencies over cells, all with a figure."""
    value = math.fsum(weight * machine.log_figure[key] for key, weight in weights.items())
    every = {key: machine.pool.rounds_of(key) for key in weights}
    sources = {ROUNDS if n > 1 else TABLE for rounds in every.values() for n in rounds}
    if len(weights) == 1 and machine.pool.is_of_one_card(key := next(iter(weights))) and sources == {ROUNDS}:
        half = machine.cells[key].half_interval(machine.metric)
        return _LogSum(value, math.inf if half is None else abs(weights[key]) * half, sources)
    single = (weight * machine.within_process(key) for key, weight in weights.items() if every[key] == [1])
    return _LogSum(value, math.hypot(machine.pool.of_processes(weights), *single), sources)
