"""Chooses the runs of a history, and makes series of them: a metric of one cell on one unit, from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from attnbench.analysis.gate.margins import RULES
from attnbench.analysis.history.acknowledged import is_named
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.core.text import some
from attnbench.results.cells import Cell, cells
from attnbench.results.run_setup import seconds_started, unique_labels

DEFAULT = ("latency", "memory_peak")


@dataclass(frozen=True)
class Point:
    """The value of a metric of one cell in one run."""

    run: Run
    value: float  # of the metric, in its unit
    half: float | None  # half the 95 % interval of a latency, relative to it (results/uncertainty.py)


@dataclass(frozen=True, eq=False)
class Series:
    """A metric of a case on a backend, in the order in which its runs were started."""

    device: str  # the label of the unit, unique among those that are told apart
    backend: str
    case: Case
    metric: str
    points: tuple[Point, ...]

    @property
    def values(self) -> list[float]:
        """The values of the runs; one below the metric's floor (RULES of the gate) counts as the floor."""
        floor = RULES[self.metric].floor
        return [max(point.value, floor) for point in self.points]

    @property
    def cell(self) -> tuple[str, str, Case]:
        """The key of the cell, whatever the metric."""
        return self.device, self.backend, self.case


def series(runs: Sequence[Run], join_units: bool = False, metrics: Sequence[str] = DEFAULT) -> list[Series]:
    """Return the series of all measured cells, in the order of a report, and for each cell by metric.

    Kinds and units of device, methods of measuring, timers and states of L2 have series of their own: figures on either
    side of such a change cannot be compared. With `join_units` the units of one model are one. Other changes between
    runs (libraries, driver, power limit) stay in one series, for the history to show them.
    """
    ordered = in_order(runs)
    labels = _labels(ordered, join_units)
    found: dict[tuple[str, str, Case, str], list[Point]] = {}
    places = {id(run): place for place, run in enumerate(ordered)}
    measured = ((cell, metric, cell.value(metric)) for cell in cells(ordered) for metric in metrics)
    for cell, metric, value in measured:
        if value is None or max(value, RULES[metric].floor) <= 0:  # a level is a logarithm
            continue
        points = found.setdefault((labels[places[id(cell.run)]], cell.backend, cell.case, metric), [])
        points.append(Point(cell.run, value, cell.half_interval("latency") if metric == "latency" else None))
    return [
        Series(*key, tuple(sorted(points, key=lambda point: places[id(point.run)]))) for key, points in found.items()
    ]


def without_figure(runs: Sequence[Run], join_units: bool = False) -> list[tuple[str, Cell]]:
    """Return the cells that the latest run of each unit tried and has no figure of, as (label of the unit, cell)."""
    ordered = in_order(runs)
    latest = dict(zip(_labels(ordered, join_units), ordered, strict=True))
    label = {id(run): label for label, run in latest.items()}
    tried = (cell for cell in cells([*latest.values()]) if cell.status not in ("ok", "skipped"))
    return [(label[id(cell.run)], cell) for cell in tried]


def of_branch(runs: Sequence[Run], branch: str) -> list[Run]:
    """Return the runs of a branch. Raises UserError where it has no run."""
    found = [run for run in runs if run.environment.branch == branch]
    if not found:
        known = sorted({run.environment.branch for run in runs if run.environment.branch})
        others = f"there are runs of {some(known)}" if known else "no run says of which branch it is"
        raise UserError(f"--branch: no run of {branch}; {others}")
    return found


def since(runs: Sequence[Run], text: str) -> list[Run]:
    """Return the dated runs from a date, or from a commit's first run, on. Raises UserError where none is left."""
    ordered = in_order([run for run in runs if seconds_started(run) is not None])
    first = next((place for place, run in enumerate(ordered) if is_named(run, text)), None)
    if first is not None:
        return ordered[first:]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--since: {text} is neither a date (2026-11-01) nor the commit of a run") from None
    least = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    found = [run for run in ordered if (seconds_started(run) or 0.0) >= least]
    if not found:
        last = f"the last one was at {ordered[-1].started}" if ordered else "no run has a readable date"
        raise UserError(f"--since: no run was started since {text}; {last}")
    return found


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Return runs in the order in which they were started; runs without that time come first, as they were given."""
    return sorted(runs, key=lambda run: seconds_started(run) or 0.0)


def _labels(runs: Sequence[Run], join_units: bool) -> list[str]:
    """Return the label of each run's unit and way of measuring."""
    told = []
    for run in runs:
        device = run.environment.device
        unit = "" if join_units else device.uuid or ""
        parts = (f"unit {unit[:12]}" if unit else "unknown unit", f"method {run.method}", f"timer {run.policy.timer}")
        told.append(((device.kind, device.name, device.memory, device.threads, unit), (*parts, f"L2 {run.policy.l2}")))
    kinds = list(dict.fromkeys(told))
    labels = unique_labels([kind[0][1] for kind in kinds], [kind[1] for kind in kinds], "{}, {}")
    return [labels[kinds.index(one)] for one in told]
