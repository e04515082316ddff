"""One metric of one cell, as the statistics of a gate take it: the logarithms of its rounds on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
