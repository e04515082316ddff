"""The blocks of a document as HTML: tables of text, bars and steps, grids of figures, paragraphs, pairs."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.core.formats import percent
from attnbench.report.characters import HELD_DOWN, MEMORY_BOUND, NO_FIGURES
from attnbench.report.document import (
    Bar,
    Block,
    Column,
    Ending,
    Entry,
    Figure,
    Grid,
    Grids,
    Line,
    Pairs,
    Paragraphs,
    Span,
    Steps,
    Table,
)
from attnbench.report.html.elements import Markup, Part, element, joined, lines, section
from attnbench.report.html.palette import LIGHT

SERIES_OF_BARS = 3  # the place in Theme.series of the bars of group 0: blue
_LEAST_BAR = 0.004  # of the axis, so that a bar can be seen however short it is
_ENDINGS = {"WRONG": "bad", "KERNEL!": "bad", "FAIL": "bad", "OOM": "warning", "TIMEOUT": "warning"}


def block(found: Block, number: int) -> Part:
    """Return a block as a part of a page; `number` tells it from other blocks of the page."""
    heading = found.heading if isinstance(found, Grids) else found.title
    id = f"table-{found.name}" if isinstance(found, Table) else f"block-{number}"
    return section(id, heading, content(found)) if heading else Part(element("section", content(found), id=id))


def content(found: Block) -> Markup:
    """Return what is below the heading of a block."""
    if isinstance(found, Table):
        return _table(found)
    if isinstance(found, Grids):
        return _grids(found)
    return _pairs(found) if isinstance(found, Pairs) else _paragraphs(found)


def spans(line: Line) -> Markup:
    """Return a line of text, each of its spans in its style."""
    return joined(*map(_span, line))


def _span(span: Span) -> str:
    if span.style == "":
        return span.text
    return element("strong" if span.style == "strong" else "span", span.text, class_=span.style)


def _paragraphs(found: Paragraphs) -> Markup:
    indented = [bool(found.indent and i % 2) for i in range(len(found.lines))]
    return joined(
        *(
            element("p", spans(line), class_="indented" if inner else None)
            for line, inner in zip(found.lines, indented, strict=True)
        )
    )


def _pairs(found: Pairs) -> Markup:
    rows = (
        element(
            "tr",
            element("th", label, scope="row"),
            element("td", value),
            element("td", meaning, class_="quiet") if meaning else "",
        )
        for label, value, meaning in found.rows
    )
    return element("table", element("tbody", *rows), class_="pairs")


# ---- Tables of text, bars and steps.


def _table(table: Table) -> Markup:
    headings = (element("th", column.heading, scope="col", class_=_classes(column)) for column in table.columns)
    rows = (
        element(
            "tr", *(_entry(entry, column, i) for i, (entry, column) in enumerate(zip(row, table.columns, strict=True)))
        )
        for row in table.rows
    )
    content = element(
        "table", element("thead", element("tr", *headings)), element("tbody", lines(*rows)), class_="text"
    )
    footnotes = element("ol", *(element("li", text) for text in table.footnotes), class_="quiet")
    return joined(
        element("p", table.note, class_="quiet") if table.note else "",
        _scrolling(content, table.title or table.name),
        footnotes if table.footnotes else "",
    )


def _scrolling(table: Markup, label: str) -> Markup:
    """Return a table that scrolls to the sides where the page is too narrow for it, by keyboard too."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _classes(column: Column) -> str | None:
    names = [*(["end"] if column.align == "right" else []), *([] if column.wrap else ["whole"])]
    return " ".join(names) or None


def _entry(entry: Entry, column: Column, place: int) -> Markup:
    """Return an entry of a table; text in the first column is the heading of its row."""
    if isinstance(entry, Bar):
        content: str = _bar(entry)
    elif isinstance(entry, Steps):
        content = _steps(entry)
    else:
        content = entry if isinstance(entry, str) else spans([entry] if isinstance(entry, Span) else entry)
        if place == 0 and content:
            return element("th", content, scope="row", class_=_classes(column))
    return element("td", content, class_=_classes(column))


def _bar(bar: Bar) -> Markup:
    """Return a bar as a drawing of a fixed width, the whole axis; not by CSS, as browsers do not print backgrounds."""
    width = max(bar.end - bar.start, _LEAST_BAR)
    start = min(bar.start, 1 - width)
    color = f"var(--c{(SERIES_OF_BARS + bar.group) % len(LIGHT.series)})"
    shape = element("rect", x=_thousandths(start), y=0, width=_thousandths(width), height=10, fill=color)
    return _drawing(shape, "0 0 1000 10", "bar", f"{percent(bar.start)} to {percent(bar.end)} of the axis")


def _steps(found: Steps) -> Markup:
    """Return a step function as an area above the axis; what is above 0 can be seen however low it is."""
    path, height = "M0 100", 0.0
    for start, height in found.steps:
        path += f"H{_thousandths(start)}V{100 - 100 * (max(height, 0.02) if height > 0 else 0):.4g}"
    shape = element("path", d=f"{path}H1000V100Z", fill=f"var(--c{SERIES_OF_BARS})")
    most = max((height for _, height in found.steps), default=0.0)
    return _drawing(shape, "0 0 1000 100", "steps", f"at most {percent(most)} of the height")


def _thousandths(share: float) -> str:
    return f"{1000 * share:.4g}"


def _drawing(shape: Markup, box: str, class_: str, label: str) -> Markup:
    return element("svg", shape, class_=class_, viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)


# ---- Grids of figures: one table for all, so that columns of one name stand in line.


def _grids(found: Grids) -> Markup:
    legend = found.legend("green and bold:", HELD_DOWN)
    names = list(dict.fromkeys(name for grid in found.grids for name in grid.columns))
    content = element("table", *(_grid(grid, names) for grid in found.grids), class_="grids")
    return joined(
        element("p", legend, class_="quiet") if legend else "",
        _scrolling(content, found.heading) if found.grids else element("p", NO_FIGURES),
        element("p", found.more) if found.more else "",
    )


def _grid(grid: Grid, names: Sequence[str]) -> Markup:
    """Return a grid as a group of rows; `names` are the columns of all grids in the table."""
    details = joined(" ", element("span", grid.details, class_="quiet")) if grid.details else ""
    title = element("th", grid.title, details, scope="rowgroup", colspan=len(names) + 1, class_="title")
    places = [grid.columns.index(name) if name in grid.columns else None for name in names]
    headings = (
        element("th", name if place is not None else "", scope="col", class_="end")
        for name, place in zip(names, places, strict=True)
    )
    rows = (
        element(
            "tr",
            element("th", label, scope="row"),
            *(element("td") if place is None else _figure(entries[place]) for place in places),
        )
        for label, entries in grid.rows
    )
    corner = element("th", grid.corner, scope="col", class_="quiet")
    return element("tbody", lines(element("tr", title), element("tr", corner, *headings), *rows))


def _figure(entry: Figure | Ending) -> Markup:
    if isinstance(entry, Ending):
        return element("td", element("span", entry.word, class_=_ENDINGS.get(entry.word, "quiet")), class_="end")
    digits = entry.digits + (HELD_DOWN if entry.held_down else "")
    aside = entry.aside + (MEMORY_BOUND if entry.memory_bound else "")
    return element(
        "td",
        element("strong", digits, class_="good") if entry.best else digits,
        joined(" ", element("span", aside, class_="quiet")) if aside else "",
        class_="end",
    )
