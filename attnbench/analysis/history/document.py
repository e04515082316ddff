"""A history as a document: what changed and when, what else changed then, a table of cells, a figure for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attnbench.analysis.gate.margins import RULES
from attnbench.analysis.gate.verdicts import signed
from attnbench.analysis.history.acknowledged import Acknowledgement
from attnbench.analysis.history.change_tests import FALSE_ALARM, LEAST, MIN_RUNS
from attnbench.analysis.history.events import Event, events, named
from attnbench.analysis.history.findings import Trend, trends
from attnbench.analysis.history.series import DEFAULT, in_order, without_figure
from attnbench.core import stats
from attnbench.core.documents import with_addresses
from attnbench.core.errors import EXIT_DONE, EXIT_REGRESSION
from attnbench.core.formats import percent
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.render.document import (
    Caution,
    Column,
    Document,
    Dot,
    Entry,
    Line,
    Machine,
    Paragraphs,
    Plot,
    Section,
    Span,
    Style,
    Table,
    Verdict,
)
from attnbench.results import case_names, disturbed
from attnbench.results.case_names import full_name
from attnbench.results.cells import Cell
from attnbench.results.export_rows import case_columns
from attnbench.results.metrics import METRICS
from attnbench.results.run_setup import seconds_started

UNKNOWN = "unknown"
TOGETHER = 0.5  # share of a unit's cells: if so many change at once, the cause is rather the machine than the code
FIT = "attnbench doctor says whether the machine is fit."


@dataclass(frozen=True)
class Request:
    """The series to follow, the changes to accept, and the size of a change that fails a history."""

    join_units: bool = False
    metrics: Sequence[str] = DEFAULT
    acknowledged: Sequence[Acknowledgement] = ()
    fail_on: float | None = None  # by how much a cell may be worse, relative

    def failing(self, found: Sequence[Trend]) -> list[Trend]:
        """Return the series whose last level is worse by more than is allowed, the worst first."""
        worse = [] if self.fail_on is None else [t for t in found if t.moved and t.change > self.fail_on]
        return sorted(worse, key=lambda trend: -trend.change)


def document(runs: Sequence[Run], request: Request | None = None, every: bool = False) -> Document:
    """Return the document of a history. `every`: with the cells that did not change.

    Raises UserError without ruptures, where a cell changed.
    """
    request = request or Request()
    found = trends(runs, request.join_units, request.metrics, request.acknowledged)
    shown = [trend for trend in found if every or trend.changed or trend.accepted]
    shown.sort(key=lambda trend: -abs(trend.change))
    changed = events(found)
    cells = {trend.series.cell for trend in found}
    latest = without_figure(runs, request.join_units)
    lost = [cell for device, cell in latest if (device, cell.backend, cell.case) in cells]
    rows = list(_rows(found))
    return Document(
        command="history",
        title=f"History of {count(len(runs), 'run')}",
        answer=(*disturbed.doubt(runs), *_answer(found)),
        machines=tuple(_machines(found)),
        blocks=(*_events_table(changed, found), *_cells_table(shown, found), *_acknowledged_table(found)),
        cautions=tuple(_cautions(found, lost, changed, request)),
        notes=((Span(_note(found), "quiet"),),),
        verdict=_verdict(request, found, lost),
        appendix=(Section("figures", "Figures over date", tuple(map(_plot, shown))),) if shown else (),
        data={"cells": [_data(trend) for trend in found], "events": list(map(_event_data, changed))},
        rows=rows,
        columns=tuple(rows[0]) if rows else (),
        exit_code=EXIT_REGRESSION if request.failing(found) else EXIT_DONE,
    )


def _verdict(request: Request, found: Sequence[Trend], lost: Sequence[Cell]) -> Verdict | None:
    if request.fail_on is None:
        return None
    limit = percent(request.fail_on)
    if worse := request.failing(found):
        return Verdict(f"FAIL: {_cells(worse)} worse by more than {limit}: {some(map(named, worse))}", "bad")
    passed = f"PASS: no cell is shown to be worse by more than {limit}"
    if lost:
        return Verdict(f"{passed}; not decided in the latest run: {_endings(lost)}", "warning")
    return Verdict(passed, "good")


def _endings(lost: Sequence[Cell]) -> str:
    """Return cells with how they ended: "fa2 4k d128 causal fwd bf16 b1 h16 (WRONG)"."""
    return some(f"{full_name(cell.backend, cell.case)} ({case_names.ENDINGS[cell.status]})" for cell in lost)


def _answer(found: Sequence[Trend]) -> Iterator[str]:
    judged = grouped((trend for trend in found if trend.levels), lambda trend: trend.series.cell)
    if not judged:
        yield f"Nothing is known yet: no cell has {MIN_RUNS} runs of one unit and one method."
        return
    moved = [trend for trend in found if trend.moved]
    worse = sorted((t for t in moved if t.change > 0), key=lambda t: -t.change)
    better = sorted((t for t in moved if t.change <= 0), key=lambda t: t.change)
    left = dict(judged)
    parts = []
    for word, of in (("became worse", worse), ("better", better)):
        cells = {trend.series.cell for trend in of} & left.keys()
        parts.append(f"{len(cells)} {word}{_which([t for t in of if t.series.cell in cells])}")
        left = {cell: own for cell, own in left.items() if cell not in cells}
    for what, of_kind in (
        ("may have begun another level, not certain yet", lambda trend: bool(trend.pending)),
        ("changed and came back", lambda trend: trend.came_back),
        ("changed as acknowledged", lambda trend: bool(trend.accepted)),
        ("may have changed: not told", lambda trend: trend.alike),
    ):
        cells = {cell for cell, own in left.items() if any(map(of_kind, own))}
        parts += [f"{len(cells)} {what}"] if cells else []
        left = {cell: own for cell, own in left.items() if cell not in cells}
    yield f"Of {count(len(judged), 'cell')} {', '.join(parts)}, {len(left)} did not change."
    for word, of in (("Worst", worse), ("Best", better)):
        if of:
            yield f"{word}: {of[0].name}, {of[0].series.metric} {signed(of[0].change)}, {_how(of[0])}."


def _which(of: Sequence[Trend]) -> str:
    """Return in which metrics cells moved: " (latency of 2, memory_peak of 1)"."""
    number = Counter(trend.series.metric for trend in of)
    return f" ({', '.join(f'{metric} of {number[metric]}' for metric in RULES if metric in number)})" if number else ""


def _how(trend: Trend) -> str:
    """Return how a series changed: as a creep, in a step, or in several."""
    assert trend.levels is not None
    if trend.levels.creep is not None:
        return f"a creep of {signed(trend.levels.creep)} a run"
    first = trend.steps[0]
    where = _place(trend.run(first.first - 1), trend.run(first.last), first.last - first.first)
    return f"in one step {where}" if len(trend.steps) == 1 else f"in {len(trend.steps)} steps, the first {where}"


def _place(good: Run, bad: Run, between: int) -> str:
    """Return where a step is: "at 2026-01-09 03:17 (a1b2c3..d4e5f6)"."""
    commits = _commits(good, bad)
    told = [commits] if commits else []
    told += [f"{count(between, 'run')} between them may be either"] if between else []
    return f"{'by' if between else 'at'} {_date(bad)}" + (f" ({'; '.join(told)})" if told else "")


def _commits(good: Run, bad: Run) -> str:
    """Return the last good commit and the first bad one as `git bisect` and `git log` want them."""
    ours, theirs = good.environment.git, bad.environment.git
    if not ours and not theirs:
        return ""
    return f"{ours}, unchanged" if ours == theirs else f"{ours or UNKNOWN}..{theirs or UNKNOWN}"


def _date(run: Run) -> str:
    return UNKNOWN if seconds_started(run) is None else run.started.replace("T", " ")[:16]


def _when(run: Run) -> str:
    """Return the date of a run and its commit."""
    return f"{_date(run)} ({run.environment.git})" if run.environment.git else _date(run)


def _machines(found: Sequence[Trend]) -> Iterator[Machine]:
    """Yield the units, with the runs that they have a figure of."""
    for device in dict.fromkeys(trend.series.device for trend in found):
        own = {id(p.run): p.run for t in found if t.series.device == device for p in t.series.points}
        runs = in_order([*own.values()])
        dates = dict.fromkeys((_when(runs[0]), _when(runs[-1])))
        yield Machine(device, f"{count(len(runs), 'run')}, {' to '.join(dates)}")


def _events_table(changed: Sequence[Event], found: Sequence[Trend]) -> Iterator[Table]:
    if not changed:
        return
    several = len({trend.series.device for trend in found}) > 1
    rows: list[tuple[Entry, ...]] = []
    lines: list[Line] = []
    for event in changed:
        who, with_it, middle = some(event.cells, 2), "; ".join(event.with_it), signed(event.middle)
        unit = (event.device,) if several else ()
        cells = f"{event.number} of {event.judged}"
        place = _date(event.bad), _commits(event.good, event.bad), str(event.between or "")
        rows.append((*place, *unit, cells, middle, who, with_it))
        told = ", ".join((_place(event.good, event.bad, event.between), *unit))
        lines += [(Span(f"{told}: {cells} cells, {middle}"),), (Span("; ".join(filter(None, (who, with_it)))),)]
    columns = (
        Column("first bad run", wrap=False),
        Column("good..bad", wrap=False),
        Column("either", "right", wrap=False),
        *((Column("unit", wrap=False),) if several else ()),
        Column("cells", "right", wrap=False),
        Column("median change", "right", wrap=False),
        Column("which"),
        Column("what else changed then"),
    )
    note = (
        "good..bad: the last run that is surely before the step and the first that is surely after it, as git bisect "
        "wants them; "
        "either: number of runs between these, which may be before or after it."
    )
    narrow = Paragraphs(tuple(lines), "Steps", indent=4)
    yield Table("steps", columns, tuple(rows), title="Steps", note=note, narrow=narrow)


def _cells_table(shown: Sequence[Trend], found: Sequence[Trend]) -> Iterator[Table]:
    if not shown:
        return
    several = len({trend.series.device for trend in shown}) > 1
    metrics = len({trend.series.metric for trend in found}) > 1
    rows: list[tuple[Entry, ...]] = []
    for trend in shown:
        style: Style = "" if not trend.moved else "bad" if trend.change > 0 else "good"
        word = "acknowledged" if trend.accepted else "none" if trend.levels else "too few runs"
        change = Span(signed(trend.change) if trend.changed else word, style)
        unit, metric = (trend.series.device,) if several else (), (trend.series.metric,) if metrics else ()
        how = [_how(trend)] if trend.changed else []
        how += [_pending(trend)] if trend.pending else []
        how += ["may have changed: not told"] if trend.alike else []
        least = percent(trend.detectable) if trend.detectable is not None else ""
        ends = (METRICS[trend.series.metric].format(value) for value in _ends(trend))
        rows.append((trend.name, *metric, *unit, str(len(trend.series.points)), *ends, change, "; ".join(how), least))
    left = ("cell", *(("metric",) if metrics else ()), *(("unit",) if several else ()))
    columns = (
        *(Column(heading, wrap=False) for heading in left),
        *(Column(heading, "right", wrap=False) for heading in ("runs", "first", "latest", "change")),
        *(Column("how"), Column("least seen", "right", wrap=False)),
    )
    note = "First, latest: levels. Least seen: the smallest step in the middle that is found in 95 % of series."
    yield Table("cells", columns, tuple(rows), title="Cells", note=note)


def _ends(trend: Trend) -> tuple[float, float]:
    """Return the first level and the latest one, or the ends of a creep; single values of a short series."""
    levels, values = trend.levels, [point.value for point in trend.series.points]
    if levels is None:
        return values[0], values[-1]
    if levels.creep is None:
        return levels.levels[levels.level_of(trend.since)], levels.levels[-1]
    middle, half = stats.median(values), (levels.runs - 1) / 2
    return middle * (1 + levels.creep) ** (trend.since - half), middle * (1 + levels.creep) ** half


def _pending(trend: Trend) -> str:
    assert trend.pending
    return f"a level of {signed(trend.pending.change)} may have begun at {_when(trend.run(trend.pending.at))}"


def _acknowledged_table(found: Sequence[Trend]) -> Iterator[Table]:
    rows: list[tuple[Entry, ...]] = []
    for trend in found:
        changes = {change.at: change.change for change in trend.levels.changes} if trend.levels else {}
        for run, entry in trend.accepted:
            change = signed(changes[run]) if run in changes else "creep"
            rows.append((trend.name, trend.series.metric, _when(trend.run(run)), change, entry.reason))
    if rows:
        columns = Column("cell", wrap=False), Column("metric"), Column("run"), Column("change", "right"), Column("why")
        yield Table("acknowledged", columns, tuple(rows), title="Acknowledged")


def _cells(trends: Iterable[Trend]) -> str:
    """Return the number of cells of some series."""
    return count(len({trend.series.cell for trend in trends}), "cell")


def _cautions(
    found: Sequence[Trend], lost: Sequence[Cell], changed: Sequence[Event], request: Request
) -> Iterator[Caution]:
    cells = {trend.series.cell for trend in found}
    if lost:
        have = "has" if len(lost) == 1 else "have"
        yield Caution(
            f"{count(len(lost), 'cell')} with a history {have} no figure in the latest run: {_endings(lost)}.",
            "The findings above end before that run.",
            "attnbench report of that run says why.",
        )
    if short := [trend for trend in found if not trend.levels]:
        units = Counter(cell[1:] for cell in cells)
        several = not request.join_units and any(units[trend.series.cell[1:]] > 1 for trend in short)
        yield Caution(
            f"{_cells(short)} of {len(cells)} have fewer than {MIN_RUNS} runs of one unit and method.",
            "In so few runs no change can be found.",
            "--join-units takes all units of a model for one." if several else "",
        )
    if new := [trend for trend in found if trend.pending]:
        first = f"{named(new[0])}, {_pending(new[0])}"
        yield Caution(
            f"{_cells(new)} may have begun another level in the latest runs: {first}.",
            f"A level has {LEAST} runs or more; fewer may be bad runs.",
            "The next runs will tell.",
        )
    if alike := [trend for trend in found if trend.alike]:
        yield Caution(
            f"{_cells(alike)} may have changed: {some(map(named, alike))}.",
            "A machine that drifts, so that each run resembles the one before, can look the same: no verdict.",
            "More runs tell, or attnbench ab on the commits before and after.",
        )
    for event in changed:
        if len(event.changes) > 1 and event.number >= TOGETHER * event.judged:
            place = _place(event.good, event.bad, event.between)
            yield Caution(
                f"{event.number} of {event.judged} cells changed together {place}.",
                "The cause is rather the machine or its software than one kernel.",
                f"Between these runs {'; '.join(event.with_it)}." if event.with_it else FIT,
            )
    used = {entry for trend in found for _, entry in trend.accepted}
    if unused := [str(entry) for entry in request.acknowledged if entry not in used]:
        yield Caution(
            f"{count(len(unused), 'acknowledgement')} fit no change: {some(unused)}.",
            "No cell of that name has a step that may be at that run.",
            "Remove them, or correct them.",
        )


def _note(found: Sequence[Trend]) -> str:
    judged = [trend for trend in found if trend.levels]
    least = [trend.detectable for trend in judged if trend.detectable is not None and trend.series.metric == "latency"]
    seen = f"In the median cell a step of {percent(stats.median(least))} would have been found. " if least else ""
    if any(trend.detectable is None for trend in judged):
        seen += "So few runs show no step whatever its size, but a steady creep. "
    return with_addresses(
        f"{seen}Where nothing changes, at most {percent(FALSE_ALARM)} of histories show a change (docs/history.md). "
        "Changes are from level to level; + is slower, or more memory."
    )


# ---- A figure for each cell, and the data.


def _plot(trend: Trend) -> Plot:
    """Return the values of a series over the date, or over the runs without one, with intervals and levels."""
    points, levels, form = trend.series.points, trend.levels, METRICS[trend.series.metric].format
    xs: Sequence[float] = [date for point in points if (date := seconds_started(point.run)) is not None]
    if len(xs) < len(points) or xs[0] == xs[-1]:
        xs = range(len(points))
    places = [(x - xs[0]) / ((xs[-1] - xs[0]) or 1) for x in xs]
    factors = [stats.exp(point.half or 0.0) for point in points]
    ends = [(point.value / factor, point.value * factor) for point, factor in zip(points, factors, strict=True)]
    low, high = min(map(min, ends)), max(map(max, ends))
    room = 0.05 * (high - low) or 0.05 * high

    def at(value: float) -> float:
        return (value - low + room) / ((high - low + 2 * room) or 1)

    dots = tuple(
        Dot(
            place,
            at(point.value),
            at(least) if point.half else None,
            at(most) if point.half else None,
            tip=f"{_when(point.run)}: {form(point.value)}",
        )
        for place, point, (least, most) in zip(places, points, ends, strict=True)
    )
    starts = pairwise((*levels.starts, len(points))) if levels else ()
    lines = zip(starts, levels.levels, strict=True) if levels else ()
    title = f"{named(trend)}, {trend.series.device}: {signed(trend.change) if trend.changed else 'no change'}"
    return Plot(
        title,
        dots,
        tuple((places[start], places[end - 1], at(level)) for (start, end), level in lines),
        ((0.0, points[0].run.started[:10]), (1.0, points[-1].run.started[:10])),
        ((at(low), form(low)), (at(high), form(high))),
    )


def _rows(found: Sequence[Trend]) -> Iterator[dict[str, Any]]:
    """Yield a mapping for every cell and run, all with the same keys."""
    for trend in found:
        levels = trend.levels
        for place, point in enumerate(trend.series.points):
            yield {
                "device": trend.series.device,
                "backend": trend.series.backend,
                **case_columns(trend.series.case),
                "started": point.run.started,
                "git": point.run.environment.git,
                "branch": point.run.environment.branch,
                "metric": trend.series.metric,
                "value": point.value,
                "ci": point.half,
                "level": levels and levels.levels[levels.level_of(place)],
                "change_here": bool(levels and place in levels.starts[1:]),
            }


def _data(trend: Trend) -> dict[str, Any]:
    """Return a series for JSON: values in the metric's unit, and changes as fractions."""
    levels, points, why = trend.levels, trend.series.points, dict(trend.accepted)
    return {
        "cell": trend.name,
        "device": trend.series.device,
        "backend": trend.series.backend,
        "case": trend.series.case.key,
        "metric": trend.series.metric,
        "change": trend.change if levels else None,
        "creep": levels and levels.creep,
        "detectable": trend.detectable,
        "not_told": trend.alike,
        "autocorrelation": trend.correlation if levels else None,
        "pending": trend.pending and {**_run_data(trend.run(trend.pending.at)), "change": trend.pending.change},
        "changes": [
            {
                **_run_data(trend.run(c.at)),
                "good": _run_data(trend.run(c.first - 1)),
                "bad": _run_data(trend.run(c.last)),
                "change": c.change,
                "ci": levels.half(number, number + 1),
                "acknowledged": why[c.at].reason if c.at in why else None,
            }
            for number, c in enumerate(levels.changes)
        ]
        if levels
        else [],
        "points": [{**_run_data(p.run), "value": p.value, "ci": p.half} for p in points],
    }


def _run_data(run: Run) -> dict[str, Any]:
    return {"started": run.started, "git": run.environment.git, "branch": run.environment.branch}


def _event_data(event: Event) -> Mapping[str, Any]:
    return {
        **_run_data(event.bad),
        "good": _run_data(event.good),
        "bad": _run_data(event.bad),
        "between": event.between,
        "device": event.device,
        "cells": event.cells,
        "judged": event.judged,
        "median_change": event.middle,
        "what_else_changed": event.with_it,
    }
