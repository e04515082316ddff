"""Pairs of backends that rank differently in bursts and in runs without pauses.

A burst is too short for the power cap to lower the clock. Without pauses it does, and the kernel that draws less power
keeps the higher clock. So the two latencies may differ, and the fastest backends too. Cells in which the device waits
for the host are left out, because power does not explain their times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from attnbench.core.case import Case
from attnbench.results.cells import Cell


@dataclass(frozen=True)
class RankChange:
    """Two cells of a case: one is faster in bursts, the other without pauses, both by more than the uncertainty."""

    in_bursts: Cell
    sustained: Cell
    lead_in_bursts: float  # how much faster the first is in bursts: 0.02 is 2 %
    lead_sustained: float  # how much faster the second is without pauses


def rank_changes(cells: Iterable[Cell]) -> list[RankChange]:
    """Return all pairs of cells of one case and device whose ranks change, the largest changes first."""
    rivals: dict[tuple[str, Case], list[Cell]] = {}
    for cell in cells:
        measured = cell.value("latency") and cell.value("sustained_latency")
        if cell.is_ranked and measured and not cell.is_host_bound("sustained_latency"):
            rivals.setdefault((cell.device, cell.case), []).append(cell)
    found = []
    for of_case in rivals.values():
        for pair in combinations(of_case, 2):
            first, second = sorted(pair, key=lambda cell: cell.value("latency") or 0.0)
            bursts = _lead(first, second, "latency")
            sustained = _lead(second, first, "sustained_latency")
            if min(bursts, sustained) > 0 and not first.alike(second) and not first.alike(second, "sustained_latency"):
                found.append(RankChange(first, second, bursts, sustained))
    return sorted(found, key=lambda change: -min(change.lead_in_bursts, change.lead_sustained))


def _lead(first: Cell, second: Cell, metric: str) -> float:
    """Return the relative advantage of the first over the second; negative where the first is slower."""
    return (second.value(metric) or 0.0) / (first.value(metric) or 1.0) - 1
