"""How many times as fast one machine is as another, and how sure that is.

Everything here is a weighted sum of logarithms of latencies (or energies), L = sum of w_k log t_k over cells k: of one
cell, the geometric mean of many (all w alike), or a workload's time (w its share in it). Of the machines A and B the
ratio is exp(L_A - L_B): above 1, B is the faster. t_k is the median over the n_k rounds of the cell, on all cards of
the machine. Half of the 95 % interval of log ratio is the root of the sum of the squares of these parts:

**Rounds**, for each machine. A round is a fresh process, and what is particular to a process (memory layout, clocks)
moves all cells of its round together, so rounds and not cells are the unit of replication. Of a cell with m > 1 rounds
on one card, with the mean log m_kc on this card, round r moves L by

    e_r = sum over such cells of  f_k w_k / n_k  sqrt(m / (m - 1)) (log t_kr - m_kc),    f_k = sqrt(pi / 2) if n_k > 2,

as a median of more than two rounds is less sure than a mean (results/uncertainty.py), else 1. This part is
t(d, 97.5 %) times the root of the sum of e_r^2, where d is the number of rounds of each card that move L, less one,
summed over cards: the variance of a mean of clusters (Liang and Zeger, "Longitudinal data analysis using generalized
linear models", Biometrika 73(1), 1986, with the correction for few clusters). One cell alone that one card measured
has the uncertainty of a report instead, whose prior knows more than its few rounds.

**Processes**, for each machine. What a round without another on its card cannot show is in a table by device
(spreads.json): p, the standard deviation between fresh processes of one card. A backend's cells of one round are of one
worker process, and are taken to move together:

    1.96 p sqrt(sum over (round, backend) of v^2),    v = sum over its cells of w_k / n_k.

That is rather too large for many cells: over 16 cells of a backend five runs of a card moved by 0.05 to 0.2 %, where p
is 0.4 %. To it add, cell by cell in quadrature, w_k times the interval of the samples of a cell with one round.

**Cards.** Machines are compared to choose between models, and a buyer gets any card. A card has one effect on all its
cells, with the standard deviation u of its model (the same table):

    1.96 sqrt(sum over cards c of u_c^2 (w_c^A - w_c^B)^2),    w_c = sum over cells of w_k (rounds on card c) / n_k.

So a cell counts the cards that measured it and no others, more cards make it surer, and a card that measured both
machines' cells cancels. The energy of a call is taken to differ as its latency does.

**Interpolation** of a workload in words adds its own part (requests.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.analysis.compare.machines import Card, Machine
from attnbench.core import stats
from attnbench.results.cells import Key
from attnbench.results.uncertainty import MEDIAN, NORMAL, spread, student

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
    moves = defaultdict[Card, defaultdict[int, float]](lambda: defaultdict(float))  # by how much a round moves the sum
    processes = defaultdict[tuple[int, str], float](float)  # (round, backend) -> its share in the sum
    halves = []
    sources = set()
    for key, weight in weights.items():
        rounds = machine.log_rounds[key]
        by_card = machine.rounds_by_card(key)
        if len(weights) == len(by_card) == 1 and len(rounds) > 1:
            sources.add(ROUNDS)
            half = machine.cells[key].half_interval(machine.metric)
            halves.append(math.inf if half is None else weight * half)
            continue
        for card, numbers in by_card.items():
            sources.add(ROUNDS if len(numbers) > 1 else TABLE)
            mean = math.fsum(rounds[number] for number in numbers) / len(numbers)
            for number in numbers:
                if len(numbers) > 1:
                    scale = weight / len(rounds) * math.sqrt(len(numbers) / (len(numbers) - 1))
                    scale *= MEDIAN if len(rounds) > 2 else 1.0
                    moves[card][number] += scale * (rounds[number] - mean)
                else:
                    processes[number, key[1]] += weight / len(rounds)
        if len(rounds) == 1:
            known = machine.cells[key].uncertainty_of(machine.metric)
            alone = math.inf if known is None or known.within is None else math.hypot(known.within, known.added)
            halves.append(weight * alone)
    if moves:
        freedom = sum(len(of) - 1 for of in moves.values())
        halves.append(student(freedom) * math.hypot(*(move for of in moves.values() for move in of.values())))
    halves.append(NORMAL * spread(machine.environment.device).processes * math.hypot(*processes.values()))
    value = math.fsum(weight * machine.log_figure[key] for key, weight in weights.items())
    return _LogSum(value, math.hypot(*halves), sources)


def _cards(*sides: tuple[Machine, Weights]) -> float:
    """Return half the 95 % interval that cards of a model add to the difference of two weighted sums."""
    effects = defaultdict[Card, float](float)  # how much of the difference a card moves, times its standard deviation
    for sign, (machine, weights) in zip((1, -1), sides, strict=True):
        apart = spread(machine.environment.device).units
        for key, weight in weights.items():
            for card, numbers in machine.rounds_by_card(key).items():
                effects[card] += sign * apart * weight * len(numbers) / len(machine.log_rounds[key])
    return NORMAL * math.hypot(*effects.values())
