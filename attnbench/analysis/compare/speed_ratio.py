"""How many times as fast one machine is as another, and how sure that is.

Everything here is a weighted sum of logarithms of latencies (or energies), L = sum of w log t over cells: of one cell,
the geometric mean of many (all w alike), or a workload's time (w its share in it). t is the median over the rounds of a
cell, on all cards of the machine. Of the machines A and B the ratio is exp(L_A - L_B): above 1, B is the faster.

Half of the 95 % interval of log ratio is the root of the sum of the squares of the parts in docs/compare.md: rounds and
processes of each machine (`_log_sum`), cards of both (`_cards`), and the interpolation of a workload in words
(requests.py). The energy of a call is taken to differ as its latency does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.analysis.compare.machines import Machine
from attnbench.core import stats
from attnbench.results.cells import Key
from attnbench.results.pool import Card, of_median
from attnbench.results.uncertainty import NORMAL, spread, student

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
    interpolation: float = 0.0,
) -> Ratio:
    """Return how many times as fast `other` is as `reference` over weighted cells.

    `other_weights` are those of the other machine's cells, where other backends count there; else they are the same.
    `value` is the ratio itself where it is not exp(L_A - L_B); the weights then give its interval alone.
    `interpolation` is the part of half the interval that is not of measured cells.
    """
    if other is reference:
        return EXACTLY_ONE
    other_weights = weights if other_weights is None else other_weights
    ours, theirs = _log_sum(reference, weights), _log_sum(other, other_weights)
    log = ours.value - theirs.value if value is None else math.log(value)
    half = math.hypot(ours.half, theirs.half, _cards((reference, weights), (other, other_weights)), interpolation)
    known = abs(log) + half < 700  # finite, and so that exp has a number for it
    low, high = (stats.exp(log - half), stats.exp(log + half)) if known else (None, None)
    return Ratio(stats.exp(log), low, high, tuple(sorted({*ours.sources, *theirs.sources})))


def equal_weights(keys: Collection[Key]) -> Weights:
    """Return the weights of a geometric mean."""
    return dict.fromkeys(keys, 1 / len(keys)) if keys else {}


class _LogSum(NamedTuple):
    """A weighted sum of log latencies on one machine, and half its 95 % interval, without what cards differ by."""

    value: float
    half: float
    sources: set[str]  # of ROUNDS and TABLE


def _log_sum(machine: Machine, weights: Weights) -> _LogSum:
    """Return the weighted sum of log latencies of cells that all have a figure."""
    pairs = list(zip(*(part.tolist() for part in machine.pool.weights(weights)), strict=True))
    value = math.fsum(weight * machine.log_figure[key] for key, weight in weights.items())
    if len(weights) == len(pairs) == 1 and len(machine.log_rounds[key := next(iter(weights))]) > 1:
        half = machine.cells[key].half_interval(machine.metric)
        return _LogSum(value, math.inf if half is None else abs(weights[key]) * half, {ROUNDS})
    moves = defaultdict[Card, defaultdict[int, float]](lambda: defaultdict(float))  # by how much a round moves the sum
    processes = defaultdict[tuple[int, str], float](float)  # (round, backend) -> its share in the sum
    halves = []
    sources = set()
    for i, weight in pairs:
        key, card = machine.pool.pairs[i]
        rounds = machine.pool.rounds(i)
        if key in weights:
            sources.add(ROUNDS if len(rounds) > 1 else TABLE)
        if len(rounds) == 1:
            processes[next(iter(rounds)), key[1]] += weight
            if len(machine.log_rounds[key]) == 1 and key in weights:
                known = machine.cells[key].uncertainty_of(machine.metric)
                alone = math.inf if known is None or known.within is None else math.hypot(known.within, known.added)
                halves.append(weight * alone)
            continue
        mean = math.fsum(rounds.values()) / len(rounds)
        scale = weight * math.sqrt(of_median(len(rounds)) / (len(rounds) - 1))
        for number, log in rounds.items():
            moves[card][number] += scale * (log - mean)
    halves.append(_of_rounds([[*of.values()] for of in moves.values()]))
    halves.append(NORMAL * spread(machine.environment.device).processes * math.hypot(*processes.values()))
    return _LogSum(value, math.hypot(*halves), sources)


def _of_rounds(moves: Sequence[Sequence[float]]) -> float:
    """Return half the 95 % interval of a sum that the rounds of each card moved by so much, about their mean.

    The degrees of freedom of the sum of the cards' variances are Satterthwaite's (Biometrics Bulletin 2(6), 1946).
    """
    variances = [(math.fsum(move**2 for move in of), len(of) - 1) for of in moves]
    total = math.fsum(variance for variance, _ in variances)
    if not total:
        return 0.0
    return student(total**2 / math.fsum(variance**2 / freedom for variance, freedom in variances)) * math.sqrt(total)


def _cards(*sides: tuple[Machine, Weights]) -> float:
    """Return half the 95 % interval that cards of a model add to the difference of two weighted sums.

    A card that measured both sides moves them alike.
    """
    effects = defaultdict[object, float](float)
    for sign, (machine, weights) in zip((1, -1), sides, strict=True):
        for name, moved in machine.pool.effects(weights).items():
            effects[name] += sign * moved
    return math.hypot(*effects.values())
