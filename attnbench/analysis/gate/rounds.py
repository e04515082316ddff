"""One metric of one cell: its value of each round, and the rounds as the statistics of a gate take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from attnbench.analysis.gate.margins import TIMED
from attnbench.results.cells import Cell


@dataclass(frozen=True)
class Rounds:
    """One metric of one cell: the logarithms of its rounds' values on either side. Larger is worse."""

    baseline: Sequence[float]
    current: Sequence[float]
    margin: float  # relative: 0.03 is 3 %
    family: str = ""  # the tests of one family estimate their noise together; "" for a metric without noise
    paired: bool = False  # round i of one side belongs to round i of the other, and only their differences count
    tick: float = 0.0  # of the timer, relative to the value
    cached: bool = False  # the first round may fill a cache for the others, so that its jump is no speed of the cell
    earlier: tuple[Sequence[float], ...] = ()  # the rounds of further runs of the baseline
    control: bool = False  # no difference between the runs can have changed it

    @property
    def runs(self) -> tuple[Sequence[float], ...]:
        """The rounds of each run of the baseline."""
        return (self.baseline, *self.earlier)

    @property
    def before(self) -> list[float]:
        """All rounds of the baseline."""
        return [value for run in self.runs for value in run]


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
    smallest = np.inf
    for readings in cells:
        found = np.unique(readings)
        gaps = np.diff(found)
        smallest = min(smallest, gaps[gaps > 1e-6 * found[1:]].min(initial=np.inf))
    return float(smallest) if np.isfinite(smallest) else 0.0
