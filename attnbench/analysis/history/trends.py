"""What each series of a history does: its levels, from the noise of its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attnbench.analysis.gate.findings import full_name
from attnbench.analysis.history.change_points import MIN_RUNS, Levels, levels, prior_of
from attnbench.analysis.history.series import Series, series
from attnbench.core.record import Run


@dataclass(frozen=True)
class Trend:
    """A series with what it does; `levels` is None where it is too short to tell."""

    series: Series
    levels: Levels | None

    @property
    def name(self) -> str:
        return full_name(self.series.backend, self.series.case)

    @cached_property
    def change(self) -> float:
        """The change from its first level to its last; 0 where none was found."""
        return self.levels.total if self.levels and self.levels.changes else 0.0

    @property
    def changed(self) -> bool:
        return bool(self.levels and self.levels.changes)

    @property
    def came_back(self) -> bool:
        return bool(self.levels and self.levels.came_back)

    def run(self, place: int) -> Run:
        return self.series.points[place].run


def trends(runs: Sequence[Run], join_units: bool = False) -> list[Trend]:
    """Return all cells with what they do. Raises UserError without ruptures, where a series is long enough for it."""
    found = series(runs, join_units)
    long = [one for one in found if len(one.points) >= MIN_RUNS]
    priors = {}
    for device in {one.device for one in long}:
        own = [one for one in long if one.device == device]
        priors[device] = prior_of([one.seconds for one in own], [p.half for one in own for p in one.points])
    return [Trend(one, levels(one.seconds, priors[one.device], len(long)) if one in long else None) for one in found]
