"""How many times as fast one machine is as another, and how sure that is (docs/compare.md, Intervals).

A ratio of speeds is exp(L_A - L_B), with L = sum of w log t over the cells that count.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from . import latency
from .device import NORMAL
from .latency import MEDIAN
from .machines import Machine
from .raw import Key

Weights = Mapping[Key, float]


class Ratio(NamedTuple):
    value: float
    low: float | None
    high: float | None


def equal(keys: Collection[Key]) -> Weights:
    return dict.fromkeys(keys, 1 / len(keys))


def speed_ratio(home: Machine, ours: Weights, other: Machine, theirs: Weights, what: str) -> Ratio:
    """Return how many times as fast `other` is as `home`."""
    if home is other:
        return Ratio(1.0, 1.0, 1.0)
    logs = [
        sum(w * math.log(m.figures[what][k].value) for k, w in of.items()) for m, of in ((home, ours), (other, theirs))
    ]
    value = math.exp(logs[0] - logs[1])
    parts = [
        part(m, of, what)
        for part in (rounds_part, processes_part, samples_part)
        for m, of in ((home, ours), (other, theirs))
    ]
    half = math.hypot(*parts, cards_part((home, ours), (other, theirs), what=what))
    if math.isinf(half):
        return Ratio(value, None, None)
    return Ratio(value, value * math.exp(-half), value * math.exp(half))


def by_card(machine: Machine, key: Key, what: str) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for number in machine.figures[what][key].rounds:
        found[machine.cells[key].card_of[number]].append(number)
    return found


def is_of_a_report(machine: Machine, weights: Weights, key: Key, what: str) -> bool:
    """Whether a cell has the uncertainty of a report: it is alone, of one card, and has several rounds."""
    return len(weights) == len(by_card(machine, key, what)) == 1 and len(machine.figures[what][key].rounds) > 1


def rounds_part(machine: Machine, weights: Weights, what: str) -> float:
    """Return t(d) times the root of the sum of e_r^2, where e_r is by how much round r, a process, moves L."""
    moves: dict[Any, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for key, weight in weights.items():
        one = machine.figures[what][key]
        if is_of_a_report(machine, weights, key, what):
            return math.inf if one.half is None else weight * one.half
        n = len(one.rounds)
        for card, numbers in by_card(machine, key, what).items():
            m = len(numbers)
            if m > 1:
                mean = statistics.fmean(math.log(one.rounds[number]) for number in numbers)
                by = (MEDIAN if n > 2 else 1) * weight / n * math.sqrt(m / (m - 1))
                for number in numbers:
                    moves[card][number] += by * (math.log(one.rounds[number]) - mean)
    freedom = sum(len(of) - 1 for of in moves.values())
    return latency.student(freedom) * math.hypot(*(e for of in moves.values() for e in of.values())) if moves else 0.0


def processes_part(machine: Machine, weights: Weights, what: str) -> float:
    """Return 1.96 p sqrt(sum of v^2): v is what a backend's cells of a round without another on its card have of L."""
    shares: dict[tuple[int, str], float] = defaultdict(float)
    for key, weight in weights.items():
        if is_of_a_report(machine, weights, key, what):
            continue
        for numbers in by_card(machine, key, what).values():
            if len(numbers) == 1:
                shares[numbers[0], key[1]] += weight / len(machine.figures[what][key].rounds)
    return NORMAL * machine.spread.processes * math.hypot(*shares.values())


def samples_part(machine: Machine, weights: Weights, what: str) -> float:
    """Return what the samples of cells with a single round leave open."""
    alone = ((w, machine.figures[what][k]) for k, w in weights.items())
    return math.hypot(*(math.inf if one.alone is None else w * one.alone for w, one in alone if len(one.rounds) == 1))


def cards_part(*sides: tuple[Machine, Weights], what: str) -> float:
    """Return 1.96 sqrt(sum over cards of (u (w_A - w_B))^2): a card moves all its cells alike."""
    moved: dict[Any, float] = defaultdict(float)
    for sign, (machine, weights) in zip((1, -1), sides, strict=True):
        for key, weight in weights.items():
            for card, numbers in by_card(machine, key, what).items():
                share = len(numbers) / len(machine.figures[what][key].rounds)
                moved[card] += sign * machine.spread.cards * weight * share
    return NORMAL * math.hypot(*moved.values())
