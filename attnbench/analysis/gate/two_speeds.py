"""Judges how likely a change is a jump between two speeds, from cells that are seen to run at either speed by chance.

By chance all n rounds of the baseline draw one speed and all m of the current run the other, with the probability p^m
(1 - p)^n, where p is the probability of the slower speed; nothing then tells the cell from a changed cell
(docs/gate.md, "Two speeds"). Where the sum of these probabilities over the cells that are seen to jump exceeds CHANCE,
changes as large as the jumps stay inconclusive. The largest jump may not be among the k seen: the end of a uniform
distribution is estimated as the largest seen plus a kth of it (Goodman, "Serial Number Analysis", JASA 47, 1952).
Speeds that differ by process: Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!", ASPLOS
2009.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CHANCE = 0.004  # share of gates


@dataclass(frozen=True)
class Jump:
    """The two speeds of a cell."""

    size: float  # a logarithm
    slower: float  # share of the rounds at the slower speed


def jump(baseline: Sequence[float], current: Sequence[float], least: float) -> Jump | None:
    """Return the two speeds of a cell, if one side shows both, with at least this difference of logarithms.

    They are two speeds, and not noise, where the gap is more than twice the spread of the values outside of it.
    """
    found = None
    for side in (sorted(baseline), sorted(current)):
        gaps = [high - low for low, high in itertools.pairwise(side)]
        size = max(gaps, default=0.0)
        if size > max(least, 2 * (sum(gaps) - size), found.size if found else 0.0):
            middle = side[gaps.index(size)] + size / 2
            values = (*baseline, *current)
            found = Jump(size, sum(value > middle for value in values) / len(values))
    return found


def largest_possible(jumps: Sequence[Jump]) -> float:
    """Return the estimate of the largest possible jump, a logarithm, from the jumps that were seen."""
    return max(each.size for each in jumps) * (1 + 1 / len(jumps))


def chance(jumps: Iterable[Jump], n: int, m: int) -> float:
    """Return the expected number of such cells that draw one speed in n rounds and the other in m."""
    return math.fsum(max(j.slower**m * (1 - j.slower) ** n, j.slower**n * (1 - j.slower) ** m) for j in jumps)


def rounds_that_tell(jumps: Sequence[Jump], n: int, m: int, rate: float = CHANCE) -> int:
    """Return the fewest rounds to add to either side that bring the chance down to this rate."""
    more = 0
    while chance(jumps, n + more, m + more) > rate:
        more += 1
    return more
