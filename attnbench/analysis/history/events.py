"""The runs between which cells of a unit changed, and what else changed with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.analysis.history.change_points import Change
from attnbench.analysis.history.findings import Trend
from attnbench.analysis.history.series import in_order
from attnbench.core import stats
from attnbench.core.record import Run
from attnbench.results.run_setup import differences, seconds_started


@dataclass(frozen=True)
class Event:
    """Cells of a unit that changed between two runs; a creep is no event, nor is what is acknowledged."""

    device: str
    good: Run  # the last run that is surely before it
    bad: Run  # the first run that is surely after it
    between: int  # number of runs that may be before or after it
    changes: tuple[tuple[Trend, Change], ...]
    judged: int  # cells of the unit

    @property
    def middle(self) -> float:
        return stats.median([change.change for _, change in self.changes])

    @property
    def cells(self) -> list[str]:
        """The names of its cells, each once, followed by the metric unless that is the latency."""
        return list(dict.fromkeys(named(trend) for trend, _ in self.changes))

    @property
    def number(self) -> int:
        """The number of the unit's cells that changed."""
        return len({trend.series.cell for trend, _ in self.changes})

    @property
    def with_it(self) -> list[str]:
        """The differences in setup and backends between the run before it and the run after it."""
        return [*differences(self.good, self.bad), *_versions(self.good, self.bad)]


def named(trend: Trend) -> str:
    """Return the name of a cell, with the metric where that is not the latency."""
    return trend.name if trend.series.metric == "latency" else f"{trend.name} ({trend.series.metric})"


def _versions(before: Run, after: Run) -> Iterator[str]:
    for name, version in after.versions.items():
        if (was := before.versions.get(name, version)) != version:
            yield f"{name} was {was} and is {version}"


def events(found: Sequence[Trend]) -> list[Event]:
    """Return the events in their order in time.

    Changes are taken from the most to the least exactly dated: each joins the nearest event that lies within its own
    range of possible runs, or else begins an event. An event lies at the runs that are possible for at least half of
    its changes.
    """
    found_events = []
    for device in dict.fromkeys(trend.series.device for trend in found):
        own = [trend for trend in found if trend.series.device == device]
        runs = in_order([*{id(point.run): point.run for trend in own for point in trend.series.points}.values()])
        place = {id(run): number for number, run in enumerate(runs)}
        judged = len({trend.series.cell for trend in own if trend.levels})

        def range_of(trend: Trend, change: Change, place: dict[int, int] = place) -> tuple[int, int]:
            return place[id(trend.run(change.first - 1))] + 1, place[id(trend.run(change.last))]

        changes = [(trend, change, range_of(trend, change)) for trend in own for change in trend.steps]
        groups: dict[int, list[tuple[Trend, Change, tuple[int, int]]]] = {}
        for one in sorted(changes, key=lambda one: one[2][1] - one[2][0]):
            at = place[id(one[0].run(one[1].at))]
            near = [seed for seed in groups if one[2][0] <= seed <= one[2][1]]
            groups.setdefault(min(near, key=lambda seed: abs(seed - at)) if near else at, []).append(one)
        for members in groups.values():
            possible = [
                run
                for run in range(len(runs))
                if 2 * sum(low <= run <= high for _, _, (low, high) in members) >= len(members)
            ]
            first, last = possible[0], possible[-1]
            pairs = tuple((trend, change) for trend, change, _ in members)
            found_events.append(Event(device, runs[first - 1], runs[last], last - first, pairs, judged))
    return sorted(found_events, key=lambda event: seconds_started(event.bad) or 0.0)
