"""A history as a document: what changed and when, what else changed then, a table of cells, a figure for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.gate.findings import full_name, signed
from attnbench.analysis.history.change_points import FALSE_ALARM, MIN_RUNS
from attnbench.analysis.history.events import Event, events
from attnbench.analysis.history.series import in_order, without_figure
from attnbench.analysis.history.trends import Trend, trends
from attnbench.core import stats
from attnbench.core.formats import duration, percent
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.report.document import (
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
)
from attnbench.results import case_names, disturbed
from attnbench.results.export_rows import case_columns
from attnbench.results.run_setup import seconds_started

UNKNOWN = "unknown"
TOGETHER = 0.5  # of the cells of a unit: where so many change at once, it is rather the machine than the code


def document(runs: Sequence[Run], join_units: bool = False, every: bool = False) -> Document:
    """Return the document of a history. `every`: with the cells that did not change."""
    found = trends(runs, join_units)
    shown = [trend for trend in found if every or trend.changed]
    shown.sort(key=lambda trend: -abs(trend.change))
    rows = list(_rows(found))
    return Document(
        command="history",
        title=f"History of {count(len(runs), 'run')}",
        answer=(*disturbed.doubt(runs), *_answer(found)),
        machines=tuple(_machines(found)),
        blocks=(*_events_table(found), *_cells_table(shown)),
        cautions=(*_lost(found, runs, join_units), *_cautions(found, join_units)),
        notes=((Span(_note(found), "quiet"),),),
        appendix=(Section("figures", "Latency over date", tuple(map(_plot, shown))),) if shown else (),
        data={"cells": [_data(trend) for trend in found], "events": list(map(_event_data, events(found)))},
        rows=rows,
        columns=tuple(rows[0]) if rows else (),
    )


def _answer(found: Sequence[Trend]) -> Iterator[str]:
    judged = [trend for trend in found if trend.levels]
    if not judged:
        yield f"Nothing can be told yet: no cell has {MIN_RUNS} runs of one unit and one method."
        return
    moved = [trend for trend in judged if trend.changed and not trend.came_back]
    slower = sorted((t for t in moved if t.change > 0), key=lambda t: -t.change)
    faster = sorted((t for t in moved if t.change <= 0), key=lambda t: t.change)
    back = sum(trend.came_back for trend in judged)
    parts = [f"{len(slower)} became slower", f"{len(faster)} faster"]
    parts += [f"{back} changed and came back"] if back else []
    parts += [f"{len(judged) - len(moved) - back} did not change"]
    yield f"Of {count(len(judged), 'cell')} {', '.join(parts)}."
    for word, of in (("slower", slower), ("faster", faster)):
        if of:
            yield f"Most {word}: {of[0].name}, {signed(of[0].change)}, {_how(of[0])}."


def _how(trend: Trend) -> str:
    """Return how a series changed: as a creep, in a step, or in several."""
    assert trend.levels is not None
    if trend.levels.creep is not None:
        return f"a creep of {signed(trend.levels.creep)} a run"
    changes = trend.levels.changes
    first = f"in one step at {_when(trend.run(changes[0].at))}"
    return first if len(changes) == 1 else f"in {len(changes)} steps, the first at {_when(trend.run(changes[0].at))}"


def _when(run: Run) -> str:
    """Return the date of a run and its commit."""
    date = run.started.replace("T", " ")[:16] or UNKNOWN
    return f"{date} ({run.environment.git})" if run.environment.git else date


def _machines(found: Sequence[Trend]) -> Iterator[Machine]:
    """Yield the units, with the runs that they have a figure of."""
    for device in dict.fromkeys(trend.series.device for trend in found):
        own = {id(p.run): p.run for t in found if t.series.device == device for p in t.series.points}
        runs = in_order([*own.values()])
        dates = dict.fromkeys((_when(runs[0]), _when(runs[-1])))
        yield Machine(device, f"{count(len(runs), 'run')}, {' to '.join(dates)}")


def _events_table(found: Sequence[Trend]) -> Iterator[Table]:
    steps = events(found)
    if not steps:
        return
    several = len({trend.series.device for trend in found}) > 1
    rows: list[tuple[Entry, ...]] = []
    lines: list[Line] = []
    for event in steps:
        who = some([trend.name for trend, _ in event.changes], 2)
        date, commit = event.run.started.replace("T", " ")[:16] or UNKNOWN, event.run.environment.git or ""
        unit, with_it = (event.device,) if several else (), "; ".join(event.with_it)
        cells = f"{len(event.changes)} of {event.judged}"
        rows.append((date, commit, *unit, cells, signed(event.middle), who, with_it))
        told = ", ".join((_when(event.run), *unit))
        lines += [(Span(f"{told}: {cells} cells, {signed(event.middle)}"),)]
        lines += [(Span("; ".join(filter(None, (who, with_it)))),)]
    headings = ("first run after it", "commit", *(("unit",) if several else ()), "cells", "median change", "which")
    columns = [Column(h, "right" if h in ("cells", "median change") else "left", wrap=h == "which") for h in headings]
    columns.append(Column("what else changed then"))
    narrow = Paragraphs(tuple(lines), "Steps", indent=4)
    yield Table("steps", tuple(columns), tuple(rows), title="Steps", narrow=narrow)


def _cells_table(shown: Sequence[Trend]) -> Iterator[Table]:
    if not shown:
        return
    several = len({trend.series.device for trend in shown}) > 1
    rows: list[tuple[Entry, ...]] = []
    for trend in shown:
        points = trend.series.points
        style: Style = "" if not trend.changed or trend.came_back else "bad" if trend.change > 0 else "good"
        change = Span(signed(trend.change) if trend.changed else "none" if trend.levels else "too few runs", style)
        seconds = (duration(points[0].seconds), duration(points[-1].seconds))
        unit = (trend.series.device,) if several else ()
        how = _how(trend) if trend.changed else ""
        least = percent(trend.levels.detectable) if trend.levels else ""
        rows.append((trend.name, *unit, str(len(points)), *seconds, change, how, least))
    left = ("cell", *(("unit",) if several else ()))
    columns = [Column(h, wrap=False) for h in left]
    columns += [Column(h, "right", wrap=False) for h in ("runs", "first", "latest", "change")]
    columns += [Column("how"), Column("least seen", "right", wrap=False)]
    note = "Least seen: the step in the middle of the runs that is found in 95 % of series."
    yield Table("cells", tuple(columns), tuple(rows), title="Cells", note=note)


def _lost(found: Sequence[Trend], runs: Sequence[Run], join_units: bool) -> Iterator[Caution]:
    """Yield a caution that names the cells that had a figure, and were wrong or failed in the latest run."""
    had = {(trend.series.device, trend.series.backend, trend.series.case) for trend in found}
    lost = [cell for device, cell in without_figure(runs, join_units) if (device, cell.backend, cell.case) in had]
    if lost:
        named = [f"{full_name(cell.backend, cell.case)} ({case_names.ENDINGS[cell.status]})" for cell in lost]
        yield Caution(
            f"{count(len(lost), 'cell')} with a history {'has' if len(lost) == 1 else 'have'} no figure in the latest "
            f"run: {some(named, 3)}.",
            "What is said above ends before it.",
            "attnbench report of that run says why.",
        )


def _cautions(found: Sequence[Trend], join_units: bool) -> Iterator[Caution]:
    short = [trend for trend in found if not trend.levels]
    if short:
        keys = {(t.series.backend, t.series.case) for t in short}
        units = any(len([t for t in found if (t.series.backend, t.series.case) == key]) > 1 for key in keys)
        todo = "" if join_units or not units else "--join-units takes all units of a model for one."
        yield Caution(
            f"{count(len(short), 'cell')} of {len(found)} have fewer than {MIN_RUNS} runs of one unit and method.",
            "Of so few no change can be told.",
            todo,
        )
    for event in events(found):
        share = len(event.changes) / event.judged
        if len(event.changes) > 1 and share >= TOGETHER:
            with_it = "; ".join(event.with_it)
            yield Caution(
                f"{len(event.changes)} of {event.judged} cells changed together at {_when(event.run)}.",
                "That is rather the machine or its software than one kernel.",
                f"Between these runs {with_it}." if with_it else "attnbench doctor says whether the machine is fit.",
            )


def _note(found: Sequence[Trend]) -> str:
    least = [trend.levels.detectable for trend in found if trend.levels]
    seen = f"In the median cell a step of {percent(stats.median(least))} would have been found. " if least else ""
    return (
        f"{seen}Where nothing changes, at most {percent(FALSE_ALARM)} of histories show a change (docs/history.md). "
        "Changes are of the latency's level, + is slower."
    )


# ---- A figure for each cell, and the data.


def _plot(trend: Trend) -> Plot:
    """Return the latencies of a series over the date, with intervals and levels."""
    points = trend.series.points
    dates = [seconds_started(point.run) for point in points]
    first, last = dates[0], dates[-1]
    by_date = first is not None and last is not None and last > first and None not in dates
    places = [
        ((date or 0.0) - (first or 0.0)) / ((last or 1.0) - (first or 0.0)) if by_date else i / max(1, len(points) - 1)
        for i, date in enumerate(dates)
    ]
    halves = [point.half or 0.0 for point in points]
    low = min(point.seconds * math.exp(-half) for point, half in zip(points, halves, strict=True))
    high = max(point.seconds * math.exp(half) for point, half in zip(points, halves, strict=True))
    room = 0.05 * (high - low) or 0.05 * high
    bottom, height = low - room, high - low + 2 * room

    def at(seconds: float) -> float:
        return (seconds - bottom) / height

    dots = tuple(
        Dot(
            place,
            at(point.seconds),
            at(point.seconds * math.exp(-half)) if half else None,
            at(point.seconds * math.exp(half)) if half else None,
            tip=f"{_when(point.run)}: {duration(point.seconds)}",
        )
        for place, point, half in zip(places, points, halves, strict=True)
    )
    steps = trend.levels
    ends = (*steps.starts[1:], len(points)) if steps else ()
    lines = zip(steps.starts, ends, steps.levels, strict=True) if steps else ()
    title = f"{trend.name}, {trend.series.device}: {signed(trend.change) if trend.changed else 'no change'}"
    return Plot(
        title,
        dots,
        tuple((places[start], places[end - 1], at(level)) for start, end, level in lines),
        ((0.0, points[0].run.started[:10]), (1.0, points[-1].run.started[:10])),
        ((at(low), duration(low)), (at(high), duration(high))),
    )


def _rows(found: Sequence[Trend]) -> Iterator[dict[str, Any]]:
    """Yield a mapping for every cell and run, all with the same keys."""
    for trend in found:
        steps = trend.levels
        for place, point in enumerate(trend.series.points):
            level = max(i for i, start in enumerate(steps.starts) if start <= place) if steps else None
            yield {
                "device": trend.series.device,
                "backend": trend.series.backend,
                **case_columns(trend.series.case),
                "started": point.run.started,
                "git": point.run.environment.git,
                "latency": point.seconds,
                "ci": point.half,
                "level": steps.levels[level] if steps and level is not None else None,
                "change_here": bool(steps and place in steps.starts[1:]),
            }


def _data(trend: Trend) -> dict[str, Any]:
    """Return a series for JSON: seconds, and changes as fractions."""
    steps, points = trend.levels, trend.series.points
    return {
        "cell": trend.name,
        "device": trend.series.device,
        "backend": trend.series.backend,
        "case": trend.series.case.key,
        "change": trend.change if steps else None,
        "creep": steps and steps.creep,
        "detectable": steps and steps.detectable,
        "changes": [
            {
                "started": trend.run(c.at).started,
                "git": trend.run(c.at).environment.git,
                "change": c.change,
                "ci": c.half,
            }
            for c in (steps.changes if steps else ())
        ],
        "points": [
            {"started": p.run.started, "git": p.run.environment.git, "latency": p.seconds, "ci": p.half} for p in points
        ],
    }


def _event_data(event: Event) -> Mapping[str, Any]:
    return {
        "started": event.run.started,
        "git": event.run.environment.git,
        "device": event.device,
        "cells": [trend.name for trend, _ in event.changes],
        "judged": event.judged,
        "median_change": event.middle,
        "what_else_changed": event.with_it,
    }
