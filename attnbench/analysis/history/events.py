"""The runs at which cells of a unit changed, and what else changed with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.analysis.history.change_points import Change
from attnbench.analysis.history.trends import Trend
from attnbench.core import stats
from attnbench.core.record import Run
from attnbench.results.run_setup import differences, seconds_started


@dataclass(frozen=True)
class Event:
    """A run at which cells of a unit changed; a creep is no event."""

    device: str
    before: Run
    run: Run
    changes: tuple[tuple[Trend, Change], ...]
    judged: int  # cells of the unit

    @property
    def middle(self) -> float:
        return stats.median([change.change for _, change in self.changes])

    @property
    def with_it(self) -> list[str]:
        """What differs between the runs before and after it, in setup and backends."""
        return [*differences(self.before, self.run), *_versions(self.before, self.run)]


def _versions(before: Run, after: Run) -> Iterator[str]:
    for name, version in after.versions.items():
        if (was := before.versions.get(name, version)) != version:
            yield f"{name} was {was} and is {version}"


def events(found: Sequence[Trend]) -> list[Event]:
    """Return the events in their order in time."""
    groups: dict[tuple[str, int], list[tuple[Trend, Change]]] = {}
    for trend in found:
        for change in trend.levels.changes if trend.levels and trend.levels.creep is None else ():
            groups.setdefault((trend.series.device, id(trend.run(change.at))), []).append((trend, change))
    found_events = []
    for (device, _), members in groups.items():
        trend, change = members[0]
        judged = sum(bool(t.levels) for t in found if t.series.device == device)
        found_events.append(Event(device, trend.run(change.at - 1), trend.run(change.at), tuple(members), judged))
    return sorted(found_events, key=lambda event: seconds_started(event.run) or 0.0)
