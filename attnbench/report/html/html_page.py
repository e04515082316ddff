"""One self-contained HTML file: figures, a table to sort and filter, warnings, the environment, how to do it again.

It asks for nothing from anywhere (its Content-Security-Policy forbids it), so it works offline and from a mail. The
text is here in the page; figures and table are made in the browser from one array of rows: Vega draws each figure when
it comes into view, and the table shows its first rows, so that 5,000 records open as fast as ten. Why Vega: figures.py.
Colours are custom properties of the style sheet, which the figures' SVG refers to: the dark, and paper, need no second
drawing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from attnbench import __version__
from attnbench.analysis.summary import cautions, facts, machine_summary, no_figure
from attnbench.core.errors import UserError
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.report.html import figures, palette
from attnbench.report.html.chart_rows import Points
from attnbench.report.html.chart_rows import points as points_of
from attnbench.results import case_names, metrics
from attnbench.results.cells import Cell
from attnbench.results.cells import cells as cells_of

MOST = 10_000  # cells: with more a browser takes too long to open the page, and a filter to act
PANEL = (340, 210)  # pixels, before the page fits them to its width
# (field of a row, heading, how report.js writes it, what it is)
COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("device", "device", "text", "Device, and what tells it from others"),
    ("backend", "backend", "text", "Implementation"),
    ("dtype", "dtype", "text", "Type of the inputs"),
    ("headdim", "headdim", "number", "Head dimension"),
    ("mask", "mask", "text", "Mask"),
    ("pass", "pass", "text", "Forward, backward, or both"),
    ("other", "other", "text", "What else differs from the default"),
    ("seqlen", "seqlen", "length", "Keys; and queries, unless said"),
    ("batch", "batch", "number", "Batch size"),
    ("heads", "heads", "number", "Query heads, or query heads/key heads"),
    ("latency", "latency", "duration", metrics.METRICS["latency"].doc),
    ("ci", "±", "percent", metrics.METRICS["ci"].doc),
    ("tflops", "TFLOP/s", "digits", metrics.METRICS["tflops"].doc),
    ("utilization", "of peak", "share", metrics.METRICS["utilization"].doc),
    ("utilization_clock", "of peak at clock", "share", metrics.METRICS["utilization_clock"].doc),
    ("speedup", "over eager", "times", metrics.METRICS["speedup"].doc),
    ("memory", "memory", "size", metrics.METRICS["memory_peak"].doc),
    ("clock", "SM clock", "megahertz", metrics.METRICS["clock_held"].doc),
    ("power", "power", "watts", metrics.METRICS["power"].doc),
    ("temperature", "temp.", "celsius", metrics.METRICS["temperature"].doc),
    ("samples", "samples", "number", metrics.METRICS["samples"].doc),
    ("error", "error", "digits", metrics.METRICS["error"].doc),
    ("first_call", "first call", "duration", metrics.METRICS["first_call"].doc),
    ("status", "remark", "remark", "Why there is no figure, or that the clock was held down"),
)
FILTERS: tuple[tuple[str, str], ...] = (
    ("device", "Device"),
    ("dtype", "dtype"),
    ("headdim", "Head dimension"),
    ("mask", "Mask"),
    ("pass", "Pass"),
    ("other", "Other"),
)


def save(path: Path, runs: Sequence[Run], files: Sequence[Path], convention: Convention = "exact") -> None:
    """Writes the page. `files` are the run files, as the reader would name them. UserError where it cannot."""
    try:
        path.write_text(page(runs, files, convention), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def page(runs: Sequence[Run], files: Sequence[Path], convention: Convention = "exact") -> str:
    """The whole file. UserError where there are too many cells for one."""
    cells = cells_of(runs)
    if len(cells) > MOST:
        raise UserError(
            f"--html: a page of {len(cells)} cells would be too slow to use ({MOST} at most); give fewer run files, "
            "or take the figures from -f csv"
        )
    points = points_of(cells, convention)
    drawn = figures.drawable(points)
    known = _remarks(facts.facts(cells))
    title = ", ".join(dict.fromkeys(c.device for c in cells)) or "no records"
    parts = {
        "title": escape(f"attnbench: {title}"),
        "css": f"{palette.style()}\n{asset('report.css')}",
        "header": _header(cells, runs, convention),
        "filters": _filters(points),
        "contents": _contents(drawn, known),
        "warnings": _remarks(cautions.cautions(cells, runs, convention)) or "<p>None.</p>",
        "figures": "\n".join(_figure(figure) for figure in drawn) or f"<p>{escape(no_figure.NOTHING)}</p>",
        "missing": _missing(cells),
        "facts": known,
        "environment": "\n".join(_environment(run, file) for run, file in zip(runs, files, strict=True)),
        "again": _again(runs, files, convention),
        "data": _json(_data(points, drawn)),
        "vega": asset("vega.min.js"),
        "vegalite": asset("vega-lite.min.js").rpartition("//# sourceMappingURL")[0],
        "script": asset("report.js"),
    }
    first, *rest = asset("report.html").split("<!--#")
    return first + "".join(parts[name] + text for name, _, text in (piece.partition("-->") for piece in rest))


def asset(name: str) -> str:
    """A file of assets/."""
    return (resources.files("attnbench.report.html") / "assets" / name).read_text(encoding="utf-8")


def _data(points: Points, drawn: Sequence[figures.Figure]) -> dict[str, Any]:
    """What report.js reads."""
    at = palette.places(points.backends)
    shown = [c for c in COLUMNS if c[0] in ("backend", "seqlen", "status") or _varies(points, c[0])]
    return {
        "number": len(points.cells),
        "fields": {name: _packed([row[name] for row in points.cells]) for name in next(iter(points.cells), ())},
        "lines": points.lines,
        "panels": points.panels,
        "backends": [
            {
                "name": b,
                "color": at[b] % len(palette.LIGHT.colors),
                "shape": palette.SHAPES[at[b] % len(palette.SHAPES)],
            }
            for b in points.backends
        ],
        "columns": [dict(zip(("field", "title", "kind", "doc"), column, strict=True)) for column in shown],
        "filters": [field for field, _ in FILTERS],
        "figures": [
            {
                "name": figure.name,
                "panel": figure.panel,
                "lines": figure.lines,
                "spec": figures.spec(figure, points, palette.ON_PAGE, PANEL, 1, legend=False),
            }
            for figure in drawn
        ],
    }


def _packed(values: list[Any]) -> dict[str, Any]:
    """A field of all rows: one value for all, or the distinct texts and which one each row has, or each value."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return {"same": distinct[0]}
    if isinstance(distinct[0], str) or isinstance(distinct[1], str):
        at = {value: i for i, value in enumerate(distinct)}
        return {"of": distinct, "at": [at[value] for value in values]}
    return {"each": values}


def _varies(points: Points, field: str) -> bool:
    """Whether a column says anything: an axis that has several values, a figure that was measured."""
    values = {row[field] for row in points.cells}
    return len(values) > 1 if field in dict(FILTERS) else values - {None} != set()


def _json(value: Any) -> str:
    """For a script element: nothing in it can end the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _header(cells: Sequence[Cell], runs: Sequence[Run], convention: Convention) -> str:
    lines = [
        f"<h2>{escape(s.device)}</h2>\n<p>{escape(s.machine)}</p>\n<p class=quiet>{escape(s.method)}</p>"
        for s in machine_summary.setups(cells)
    ]
    endings: dict[str, int] = {}
    for cell in cells:
        word = case_names.ENDINGS.get(cell.status, "measured")
        endings[word] = endings.get(word, 0) + 1
    said = ", ".join(f"{number} {word}" for word, number in sorted(endings.items(), key=lambda e: -e[1]))
    rounds = max((len(c.records) for c in cells), default=0)
    again = f" in {rounds} rounds" if rounds > 1 else ""
    of = f" from {case_names.count(len(runs), 'run')}" if len(runs) > 1 else ""
    counted = f"<p><strong>{case_names.count(len(cells), 'cell')}</strong>{again}{of}: {escape(said or 'none')}</p>"
    flops = f"<p class=quiet>{escape(machine_summary.heading(metrics.METRICS['utilization'], cells, convention))}</p>"
    return "\n".join([*lines, flops if cells else "", counted, _ranking(cells)])


def _ranking(cells: Sequence[Cell]) -> str:
    """Who is fastest how often, of the cases that several backends were measured on."""
    rivals: dict[tuple[Any, ...], dict[str, float]] = {}
    for cell in cells:
        if (latency := cell.value("latency")) is not None:
            rivals.setdefault((cell.device, cell.case), {})[cell.backend] = latency
    contests = [found for found in rivals.values() if len(found) > 1]
    if not contests:
        return ""
    wins = [min(found, key=lambda backend: found[backend]) for found in contests]
    ranked = sorted(set(wins), key=lambda backend: (-wins.count(backend), case_names.backend_rank(backend)))
    each = ", ".join(f"<strong>{escape(b)}</strong> in {wins.count(b)}" for b in ranked)
    return f"<p>Fastest of {case_names.count(len(contests), 'case')}: {each}.</p>"


def _filters(points: Points) -> str:
    """Boxes to tick: backends, which are the legend too, then every axis that has several values."""
    found = [_boxes("backend", "Backend", points.backends)]
    for field, title in FILTERS:
        values = list(dict.fromkeys(row[field] for row in points.cells))
        if len(values) > 1:
            found.append(_boxes(field, title, values))
    return "\n".join(found)


def _boxes(field: str, title: str, values: Iterable[str]) -> str:
    box = f"<input type=checkbox checked name={field}"
    boxes = "".join(f"<label>{box} value='{escape(v)}'><span>{escape(v) or 'none'}</span></label>" for v in values)
    return f"<fieldset id=filter-{field}><legend>{escape(title)}</legend>{boxes}</fieldset>"


def _contents(drawn: Sequence[figures.Figure], known: str) -> str:
    named = [("warnings", "Warnings"), *((f.name, f.title) for f in drawn)]
    named += [("table", "Table"), ("missing", "Without a figure"), *([("facts", "To know")] if known else [])]
    named += [("environment", "Environment"), ("again", "Reproduce")]
    return "".join(f"<li><a href='#{name}'>{escape(title)}</a></li>" for name, title in named)


def _figure(figure: figures.Figure) -> str:
    return (
        f"<section class=figure id={figure.name} aria-labelledby={figure.name}-title>"
        f"<h2 id={figure.name}-title>{escape(figure.title)}</h2>"
        f"<p class=quiet>{escape(figure.caption)}</p>"
        "<p class=legend aria-hidden=true></p>"
        f"<div class=drawing role=img aria-label='{escape(figure.title)}; the table below has the same figures'></div>"
        "<p class=cut hidden></p>"
        "</section>"
    )


def _remarks(found: Sequence[cautions.Caution]) -> str:
    items = "".join(
        f"<li><strong>{escape(c.what)}</strong> {escape(c.why)} <em>{escape(c.todo)}</em></li>" for c in found
    )
    return f"<ul>{items}</ul>" if items else ""


def _missing(cells: Sequence[Cell]) -> str:
    items = "".join(
        f"<li><strong>{escape(n.word)}</strong> {escape(n.who)}: {escape(n.reason)}</li>"
        for n in no_figure.notes(cells)
    )
    return f"<ul>{items}</ul>" if items else "<p>Every cell has one.</p>"


def _environment(run: Run, file: Path) -> str:
    env, device, policy = run.environment, run.environment.device, run.policy
    rates = [f"{metrics.digits(v / 1e12)} TFLOP/s {dtype}" for dtype, v in device.matmul.items()]
    seconds = [r.seconds for r in run.records if r.seconds is not None]
    facts_: dict[str, str | None] = {
        "Run file": file.name,
        "Started": run.started,
        "Measured for": f"{sum(seconds):.0f} s" if seconds else None,
        "Device": f"{device.name} ({device})",
        "Memory": metrics.size(device.memory) if device.memory else None,
        "L2": metrics.size(device.l2) if device.l2 else None,
        "Multiprocessors": str(device.multiprocessors) if device.multiprocessors else None,
        "Compute capability": ".".join(map(str, device.capability)) if device.capability else None,
        "Power limit": f"{env.power_limit_w:g} W" if env.power_limit_w else None,
        "Highest SM clock": f"{env.clock_max_hz / 1e6:.0f} MHz" if env.clock_max_hz else None,
        "Rates read in a moment": ", ".join(rates) or None,
        "Driver": env.driver,
        "CUDA": env.cuda,
        "torch": env.torch,
        "Python": env.python,
        "Platform": env.platform,
        "CPU": env.cpu,
        "Packages": ", ".join(f"{name} {version}" for name, version in env.packages.items()) or None,
        "Backends": ", ".join(f"{name} {version}" for name, version in run.versions.items()) or None,
        "attnbench": env.attnbench,
        "git": env.git,
        "Suite": run.suite,
        "Timer, L2": f"{policy.timer}, {policy.l2}",
        "Samples": f"{policy.min_samples} to {policy.max_samples}, until within {metrics.percent(policy.target)} or "
        f"{policy.max_seconds:g} s",
        "Peaks given": ", ".join(f"{k or 'any dtype'} {v / 1e12:g} TFLOP/s" for k, v in run.peak.items()) or None,
    }
    rows = "".join(f"<tr><th scope=row>{k}</th><td>{escape(v)}</td></tr>" for k, v in facts_.items() if v)
    return f"<table class=pairs><tbody>{rows}</tbody></table>"


def _again(runs: Sequence[Run], files: Sequence[Path], convention: Convention) -> str:
    """The commands that measure it again and make this page again."""
    lines = []
    for run in runs:
        env = run.environment
        wanted = [f"torch=={env.torch.partition('+')[0]}"] if env.torch else []
        wanted += [f"{name}=={version}" for name, version in env.packages.items()]
        lines += [f"# {run.started[:10]}, {env.device.name}: {', '.join(wanted)}"] if wanted else []
        lines.append(f"attnbench {shlex.join(run.argv)}" if run.argv else f"attnbench run --suite {run.suite}")
    fa = " --flops-convention fa" if convention == "fa" else ""
    report = f"attnbench report {shlex.join(f.name for f in files)}{fa}"
    lines += ["", "# this page, and one of its figures for a paper", f"{report} --html report.html"]
    lines += [f"{report} --figure throughput --svg throughput.svg"]
    commands = escape("\n".join(lines))
    return f"<pre tabindex=0><code>{commands}</code></pre><p class=quiet>Made by attnbench {__version__}.</p>"
