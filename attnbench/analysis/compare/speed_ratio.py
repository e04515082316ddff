"""How many times as fast one machine is as another, and how sure that is.

Everything here is a weighted sum of logarithms of latencies (or energies), L = sum of w log t over cells: of one cell,
the geometric mean of many (all w alike), or a workload's time (w its share in it). Of the machines A and B the ratio is
exp(L_A - L_B): above 1, B is the faster.

**The interval of L**, 95 %, comes from rounds wherever a cell has several. A round is a fresh process, and what is
particular to a process (memory layout, clocks) moves all cells of its round together, so rounds and not cells are the
unit of replication. With n rounds of a cell about their mean m, round r moves L by e_r, the sum over its cells of
w (log t - m) / n; of R rounds in all

    variance of L = R / (R - 1) * sum of e_r^2,    half the interval = t(R - 1, 97.5 %) * its root,

the variance of a mean of clusters (Liang and Zeger, "Longitudinal data analysis using generalized linear models",
Biometrika 73(1), 1986, with the correction for few clusters). No prior says how much several cells move together. t is
the median of the cell's rounds, so of more than two rounds the interval is that of a mean, times sqrt(pi / 2) as in
results/uncertainty.py.

One cell alone, and a cell with one round, has the uncertainty of a report (results/uncertainty.py), which of one round
holds what sets processes apart by a table. Cells are taken as independent there, and their intervals add in quadrature.
Over 307 cells of two fresh runs of an H200 the mean of the differences was -0.04 and +0.01 %, where 0.43 and 0.41 % a
cell let expect 0.02 % of independent cells (tests/statistics/spreads.py).

**Units.** Machines are compared to choose between models, so where two were not measured on one card the interval holds
what cards of a model differ by (the same table), divided by the root of the number of cards that were measured. A card
that runs one cell of a backend fast runs its others fast as well, so cells of one backend move together.

All these parts add in quadrature, those of A and B too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.analysis.compare.machines import Machine
from attnbench.results.cells import Key
from attnbench.results.noise import Prior
from attnbench.results.uncertainty import MEDIAN, NORMAL, half_interval, spread

Weights = Mapping[Key, float]  # of the logarithms of the cells' latencies
ROUNDS, TABLE = "rounds", "table"


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds. `low` and `high` are its 95 % interval; None where nothing is known of the noise."""

    value: float
    low: float | None
    high: float | None
    sources: tuple[str, ...]  # what the interval is from, of ROUNDS and TABLE

    def overlaps(self, other: Ratio) -> bool:
        """Return whether the intervals overlap, or one is not known: no difference was shown."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high and other.low <= self.high


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
    other_weights = weights if other_weights is None else other_weights
    ours, theirs = _log_sum(reference, weights), _log_sum(other, other_weights)
    log = ours.value - theirs.value if value is None else math.log(value)
    half = math.hypot(ours.half, theirs.half)
    if not reference.same_card(other):
        half = math.hypot(half, _units(reference, weights), _units(other, other_weights))
    known = abs(log) + half < 700  # finite, and so that exp has a number for it
    low, high = (math.exp(log - half), math.exp(log + half)) if known else (None, None)
    return Ratio(math.exp(log), low, high, tuple(sorted({*ours.sources, *theirs.sources})))


def equal_weights(keys: Collection[Key]) -> Weights:
    """Return the weights of a geometric mean."""
    return dict.fromkeys(keys, 1 / len(keys)) if keys else {}


class _LogSum(NamedTuple):
    """A weighted sum of log latencies on one machine, and half its 95 % interval."""

    value: float
    half: float
    sources: set[str]  # of ROUNDS and TABLE


def _log_sum(machine: Machine, weights: Weights) -> _LogSum:
    """Return the weighted sum of log latencies of cells that all have a figure."""
    moves = defaultdict[int, float](float)  # round -> how far it moves the sum
    halves = [0.0]  # the intervals of cells with one round
    sources = set()
    for key, weight in weights.items():
        logs = machine.log_rounds[key]
        sources.add(ROUNDS if len(logs) > 1 else TABLE)
        if len(logs) == 1 or len(weights) == 1:
            half = machine.cells[key].half_interval(machine.metric)
            halves.append(math.inf if half is None else weight * half)
        else:
            mean = math.fsum(logs.values()) / len(logs)
            for number, log in logs.items():
                moves[number] += weight * (log - mean) / len(logs)
    if n := len(moves):
        variance = n / (n - 1) * math.fsum(move * move for move in moves.values())
        halves.append(half_interval(variance, n - 1, 1 / n, Prior()) * (MEDIAN if n > 2 else 1.0))
    value = math.fsum(weight * machine.log_figure[key] for key, weight in weights.items())
    return _LogSum(value, math.hypot(*halves), sources)


def _units(machine: Machine, weights: Weights) -> float:
    """Return half the 95 % interval that cards of the machine's model add to a weighted sum of log latencies."""
    backends = defaultdict[str, float](float)
    for (_, backend), weight in weights.items():
        backends[backend] += weight
    apart = NORMAL * spread(machine.environment.device).units
    return apart * math.hypot(*backends.values()) / math.sqrt(len(machine.cards))
