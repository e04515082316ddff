"""One value for each round and metric that a gate compares, and the steps of the timer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnbench.analysis.gate.findings import TIMED
from attnbench.results.cells import Cell


def round_values(metric: str, cell: Cell) -> dict[int, float]:
    """Return round -> value of a metric, in its unit, of the rounds that have one.

    A latency, or cycles, of 0 is no value: nothing can be compared with it.
    """
    return {n: value for n, value in cell.rounds(metric).items() if value > 0 or metric not in TIMED}


def timer_tick(cells: Iterable[Cell]) -> float:
    """Return the steps in which the timer counts, seconds, as the samples of some cells show it."""
    return smallest_tick([sample for row in cell.ok for sample in row.samples] for cell in cells)


def smallest_tick(cells: Iterable[Sequence[float]]) -> float:
    """Return the smallest difference between two readings of one cell, 0 where no two differ.

    Readings that differ by less than a millionth differ by rounding. A timer without steps has a smallest difference
    too, but far below its noise, so that it does not count.
    """
    import numpy as np

    smallest = np.inf
    for readings in cells:
        found = np.unique(readings)
        gaps = np.diff(found)
        smallest = min(smallest, gaps[gaps > 1e-6 * found[1:]].min(initial=np.inf))
    return float(smallest) if np.isfinite(smallest) else 0.0
