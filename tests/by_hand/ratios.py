"""The ratio of the speeds of two machines, and its uncertainty (docs/dev/compare.md).

A ratio of speeds is exp(L_A - L_B), with L = sum of w log t over the cells that count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple

from .device import NORMAL
from .machines import Machine
from .pool import Weights
from .raw import Key


class Ratio(NamedTuple):
    value: float
    low: float | None
    high: float | None


def equal(keys: Collection[Key]) -> Weights:
    return dict.fromkeys(keys, 1 / len(keys))


def speed_ratio(home: Machine, ours: Weights, other: Machine, theirs: Weights, what: str) -> Ratio:
    """Return the speed of machine `other` over the speed of machine `home`."""
    if home is other:
        return Ratio(1.0, 1.0, 1.0)
    logs, halves = [], []
    moved: dict[Any, float] = defaultdict(float)
    for sign, machine, weights in ((1, home, ours), (-1, other, theirs)):
        pool, by = machine.pools[what], machine.of_pairs(what, weights)
        logs.append(sum(weight * math.log(machine.seconds(what, key)) for key, weight in weights.items()))
        halves.append(_of_rounds_and_processes(machine, what, weights, by))
        for name, part in pool.of_cards(by).items():
            moved[name] += sign * part
    value = math.exp(logs[0] - logs[1])
    half = math.hypot(*halves, NORMAL * math.hypot(*moved.values()))
    if math.isinf(half):
        return Ratio(value, None, None)
    return Ratio(value, value * math.exp(-half), value * math.exp(half))


def _of_rounds_and_processes(machine: Machine, what: str, weights: Weights, by: Any) -> float:
    """Return the uncertainty for other processes. A cell from a single card has the uncertainty of a report."""
    pool = machine.pools[what]
    told = [pair for pair, weight in zip(pool.pairs, by, strict=True) if abs(weight) > 1e-9]
    if len(weights) == len(told) == 1 and len(told[0].logs) > 1:
        ((key, weight),) = weights.items()
        half = pool.figures[key].half
        return math.inf if half is None else weight * half
    return math.hypot(pool.of_rounds(weights, by), pool.of_processes(by), pool.of_samples(weights))
