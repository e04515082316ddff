"""Finds the levels of each series of a history, by the tests and the noise of its unit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnbench.analysis.gate.margins import RULES
from attnbench.analysis.history.acknowledged import Acknowledgement, is_named
from attnbench.analysis.history.change_points import LEAST_NOISE, Change, Levels, Pending, levels, prior_of
from attnbench.analysis.history.change_tests import MIN_RUNS, Outcome, judged
from attnbench.analysis.history.series import DEFAULT, Series, in_order, series
from attnbench.core import stats
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.results.case_names import full_name
from attnbench.results.noise import Prior

LACKED = 0.1  # share of its group's runs that a cell may lack; its median stands for them
LEAST_EXACT = 1e-3  # relative noise assumed of metrics without noise, such as memory: few notice smaller changes


@dataclass(frozen=True)
class Trend:
    """A series with its levels and changes; `levels` is None where it has too few runs."""

    series: Series
    levels: Levels | None
    alike: bool = False  # whether it may have changed, if runs did not resemble the run before
    correlation: float = 0.0  # of the median cell of its unit
    detectable: float | None = None  # the step in the middle of the runs that 95 % of cells show; None where none would
    accepted: tuple[tuple[int, Acknowledgement], ...] = ()  # the changes that are acknowledged: (their run, by what)

    @property
    def name(self) -> str:
        return full_name(self.series.backend, self.series.case)

    @property
    def since(self) -> int:
        """The run from whose level on changes count: the first, or that of the last acknowledged change."""
        return max((run for run, _ in self.accepted), default=0)

    @property
    def steps(self) -> tuple[Change, ...]:
        """Its steps that are not acknowledged; none of a creep."""
        if not self.levels or self.levels.creep is not None:
            return ()
        return tuple(change for change in self.levels.changes if change.at > self.since)

    @property
    def change(self) -> float:
        """The change from its first level, or its acknowledged one, to its last; 0 where none was found."""
        return self.levels.total(self.since) if self.levels and self.levels.changes else 0.0

    @property
    def changed(self) -> bool:
        """Whether it has changes that are not acknowledged."""
        return bool(self.steps or (self.levels and self.levels.creep is not None and self.since < self.levels.runs - 1))

    @property
    def came_back(self) -> bool:
        return bool(self.changed and self.levels and self.levels.came_back(self.since))

    @property
    def pending(self) -> Pending | None:
        """The runs at its end that may have begun a level: too few for a verdict."""
        return self.levels.pending if self.levels else None

    @property
    def moved(self) -> bool:
        """Whether its last level differs from the level that counts, and its latest runs do not leave that open."""
        undone = self.pending and ((1 + self.change) * (1 + self.pending.change) - 1) * self.change <= 0
        return self.changed and not self.came_back and not undone

    def run(self, place: int) -> Run:
        return self.series.points[place].run


def trends(
    runs: Sequence[Run],
    join_units: bool = False,
    metrics: Sequence[str] = DEFAULT,
    acknowledged: Sequence[Acknowledgement] = (),
) -> list[Trend]:
    """Return the trend of each metric of all cells. Raises UserError without ruptures, where a cell changed."""
    found = series(runs, join_units, metrics)
    long = [one for one in found if len(one.points) >= MIN_RUNS]
    together = _judged_together(long)
    told = {}
    for group in together:
        told.update(_of_group(group, len(together), len(long), acknowledged))
    return [told.get(one) or Trend(one, None) for one in found]


def _judged_together(of: Sequence[Series]) -> list[list[Series]]:
    """Return the series in groups of one unit that share their runs; each series lacks few runs of its group.

    A cell that is new, or was left out for long, has no noise in the runs that it lacks: it is in a group of its own.
    """
    groups: list[tuple[str, set[int], list[Series]]] = []
    for one in sorted(of, key=lambda one: -len(one.points)):
        own = {id(point.run) for point in one.points}
        for device, runs, members in groups:
            if device == one.device and own <= runs and len(own) >= (1 - LACKED) * len(runs):
                members.append(one)
                break
        else:
            groups.append((one.device, own, [one]))
    return [members for _, _, members in groups]


def _of_group(
    of: Sequence[Series], groups: int, cells: int, acknowledged: Sequence[Acknowledgement]
) -> dict[Series, Trend]:
    """Return the trends of the series of one group, each of MIN_RUNS runs or more."""
    runs = {id(point.run): point.run for one in of for point in one.points}
    place = {run: number for number, run in enumerate(id(run) for run in in_order([*runs.values()]))}
    by_metric = grouped(of, lambda one: one.metric)
    matrices = []
    for members in by_metric.values():
        logs = np.empty((len(members), len(place)))
        for row, one in zip(logs, members, strict=True):
            values = np.log(one.values)
            row[:] = np.median(values)  # stands for a run that the cell lacks
            row[[place[id(point.run)] for point in one.points]] = values
        matrices.append(logs)
    told = {}
    outcomes = judged(matrices, [_least_noise(metric) for metric in by_metric], groups)
    for members, outcome in zip(by_metric.values(), outcomes, strict=True):
        prior = prior_of([one.values for one in members], [p.half for one in members for p in one.points])
        for number, one in enumerate(members):
            told[one] = _trend(one, outcome, number, prior, cells, acknowledged)
    return told


def _trend(
    one: Series, outcome: Outcome, number: int, prior: Prior, cells: int, acknowledged: Sequence[Acknowledgement]
) -> Trend:
    """Return the trend of a series; `number` is its row in `outcome`."""
    changed, kept = bool(outcome.changed[number]), float(outcome.kept[number]) if outcome.changed[number] else 0.0
    found = levels(one.values, prior, cells, changed=changed, kept=kept, least=_least_noise(one.metric))
    assert found
    seen = stats.expm1(outcome.detectable * found.deviation) if math.isfinite(outcome.detectable) else None
    plain = Trend(one, found, bool(outcome.alike[number]), outcome.correlation, seen)
    return replace(plain, accepted=tuple(_accepted(plain, acknowledged)))


def _accepted(trend: Trend, acknowledged: Sequence[Acknowledgement]) -> Iterator[tuple[int, Acknowledgement]]:
    """Yield the changes of a series that are acknowledged; of a creep the runs up to which it is."""
    found = trend.levels
    for entry in (entry for entry in acknowledged if entry.covers(trend.name, trend.series.metric)):
        named = [place for place in range(len(trend.series.points)) if is_named(trend.run(place), entry.at)]
        if found and found.creep is not None:
            yield from ((place, entry) for place in named[:1])
        elif found:
            steps = (c for c in found.changes if any(c.first <= place <= c.last for place in named))
            yield from ((change.at, entry) for change in steps)


def _least_noise(metric: str) -> float:
    return LEAST_NOISE if RULES[metric].noisy else LEAST_EXACT
