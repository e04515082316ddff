"""The blocks of a document as HTML: tables of text and drawings, grids of values, paragraphs, pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.core.formats import percent
from attnbench.render.characters import HARDLY_KNOWN, HELD_DOWN, MEMORY_BOUND, NO_FIGURES, marks
from attnbench.render.document import (
    Bar,
    Block,
    Code,
    Column,
    Drawing,
    Ending,
    Entry,
    Figure,
    Grid,
    Grids,
    Line,
    Pairs,
    Paragraphs,
    Plot,
    Span,
    Steps,
    Table,
)
from attnbench.render.html.elements import Markup, Part, element, filled, items, joined, lines, scrolling, section
from attnbench.render.html.palette import SERIES, color
from attnbench.render.html.plots import plot

SERIES_OF_BARS = 3  # number of the colour of the bars of group 0: blue
MOST_WHOLE = 40  # rows; a longer table scrolls in a frame, so that the rest of the page stays readable
_LONG = 20  # letters; a column with a longer entry that wraps gets a least width
_LEAST_BAR = 0.004  # least length of a bar, as a share of the axis, so that it can be seen
_HATCH = 50.0  # distance of the slanted lines of a hatched bar, in thousandths of the axis


def block_part(found: Block, number: int) -> Part:
    """Return a block as a part of a page; `number` makes its id differ from those of other blocks."""
    heading = found.heading if isinstance(found, Grids) else found.title
    id = f"table-{found.name}" if isinstance(found, Table) else f"block-{number}"
    return section(id, heading, content(found))


def content(found: Block | Plot) -> Markup:
    """Return the part of a block below its heading."""
    if isinstance(found, Plot):
        return plot(found)
    if isinstance(found, Table):
        return _table(found)
    if isinstance(found, Grids):
        return _grids(found)
    if isinstance(found, Code):
        return element("pre", element("code", found.text), tabindex=0)
    return _pairs(found) if isinstance(found, Pairs) else _paragraphs(found)


def spans(line: Line) -> Markup:
    """Return a line of text, each of its spans in its style."""
    return joined(*map(_span, line))


def _span(span: Span) -> str:
    tag = "strong" if span.style == "strong" else "span"
    styled = element(tag, span.text, class_=span.style) if span.style else span.text
    if span.folded:
        return element("details", element("summary", styled), " ", spans(span.folded), class_="more")
    return element("a", styled, href=span.link) if span.link else styled


def _paragraphs(found: Paragraphs) -> Markup:
    indented = [i % 2 for i in range(len(found.lines))] if found.indent else [0] * len(found.lines)
    return joined(
        *(element("p", spans(line), class_="in" if i else None) for line, i in zip(found.lines, indented, strict=True))
    )


def _pairs(found: Pairs) -> Markup:
    rows = (
        element("tr", element("th", label, scope="row"), element("td", value), filled("td", meaning, class_="quiet"))
        for label, value, meaning in found.rows
    )
    return element("table", element("tbody", *rows), class_="pairs")


# ---- Tables of text and drawings.


def _table(table: Table) -> Markup:
    headings = (element("th", column.heading, scope="col", class_=_classes(column)) for column in table.columns)
    rows = (
        element(
            "tr",
            *(_entry(entry, column, i) for i, (entry, column) in enumerate(zip(entries, table.columns, strict=True))),
        )
        for entries in table.rows
    )
    found = element("table", element("thead", element("tr", *headings)), element("tbody", lines(*rows)), class_="text")
    frame = "scroll limited" if len(table.rows) > MOST_WHOLE else "scroll"
    shown = scrolling(found, f"{table.title or table.name}: table", frame)  # differs from the section's name
    if narrow := table.narrow:
        if isinstance(narrow, Table):  # the two share one note and footnotes
            narrow = replace(narrow, note="", footnotes=())
        shown = joined(element("div", shown, class_="wide"), element("div", content(narrow), class_="narrow"))
    hidden = [column.heading for column in table.columns if column.optional and column.heading]
    told = f"On a wider screen also: {', '.join(hidden)}." if hidden and not table.narrow else ""
    return joined(
        filled("p", table.note, class_="quiet"),
        filled("p", told, class_="narrow quiet"),
        shown,
        items(table.footnotes, "ol", class_="quiet"),
    )


def _classes(column: Column) -> str | None:
    names = {"end": column.align == "right", "whole": not column.wrap, "optional": column.optional > 0}
    return " ".join(name for name, given in names.items() if given) or None


def _entry(entry: Entry, column: Column, place: int) -> Markup:
    """Return an entry of a table; text in the first column is the heading of its row."""
    if isinstance(entry, Drawing):
        return element("td", _drawn(entry), class_=_classes(column))
    line = [Span(entry)] if isinstance(entry, str) else [entry] if isinstance(entry, Span) else entry
    text = spans(line)
    heads = place == 0 and text
    long = "long" if column.wrap and sum(len(span.text) for span in line) > _LONG else None
    classes = " ".join(filter(None, (_classes(column), long))) or None
    return element("th" if heads else "td", text, scope="row" if heads else None, class_=classes)


def _drawn(entry: Drawing) -> Markup:
    if isinstance(entry, Bar):
        return _bar(entry)
    return _steps(entry)


def _bar(bar: Bar) -> Markup:
    """Return a bar as an SVG whose width is the whole axis; not by CSS, because browsers do not print backgrounds."""
    width = max(bar.end - bar.start, _LEAST_BAR)
    start = min(bar.start, 1 - width)
    shape = element("rect", x=_thousandths(start), y=0, width=_thousandths(width), height=10, fill=_color(bar.group))
    label = bar.label or f"{percent(bar.start)} to {percent(bar.end)} of the axis"
    if bar.hatched:
        return _drawing(_hatched(1000 * start, 1000 * (start + width)), "0 0 1000 10", "bar", f"{label}, hatched")
    if bar.interval is None:
        return _drawing(shape, "0 0 1000 10", "bar", label)
    low, high = bar.interval
    whisker = element(
        "rect", x=_thousandths(low), y=4, width=_thousandths(max(high - low, _LEAST_BAR)), height=2, fill=color("ink")
    )
    return _drawing(
        joined(shape, whisker), "0 0 1000 10", "bar", bar.label or f"{label}, {percent(low)} to {percent(high)}"
    )


def _hatched(start: float, end: float) -> Markup:
    """Return the outline of a bar from `start` to `end` of 1000 with slanted lines."""
    slants = "".join(
        f"M{x:.4g} 10L{min(x + _HATCH, end):.4g} {10 - 10 * (min(x + _HATCH, end) - x) / _HATCH:.3g}"
        for x in (start + i * _HATCH for i in range(math.ceil((end - start) / _HATCH)))
    )
    outline = f"M{start:.4g} 0H{end:.4g}V10H{start:.4g}Z"
    style: Mapping[str, str] = {"vector-effect": "non-scaling-stroke", "fill": "none", "stroke": color("quiet")}
    return joined(element("path", d=outline, **style), element("path", d=slants, **style))


def _steps(found: Steps) -> Markup:
    """Return a step function as an area above the axis; any height above 0 is large enough to be seen."""
    path = "M0 100"
    for start, height in found.steps:
        path += f"H{_thousandths(start)}V{100 - 100 * (max(height, 0.02) if height > 0 else 0):.4g}"
    shape = element("path", d=f"{path}H1000V100Z", fill=_color())
    most = max((height for _, height in found.steps), default=0.0)
    return _drawing(shape, "0 0 1000 100", "steps", f"at most {percent(most)} of the height")


def _color(group: int = 0) -> str:
    return color(f"c{(SERIES_OF_BARS + group) % SERIES}")


def _thousandths(share: float) -> str:
    return f"{1000 * share:.4g}"


def _drawing(shape: Markup, box: str, class_: str, label: str) -> Markup:
    return element("svg", shape, class_=class_, viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)


# ---- Grids of values: one table for all, so that columns of one name are aligned.


def _grids(found: Grids) -> Markup:
    names = list(dict.fromkeys(name for grid in found.grids for name in grid.columns))
    content = element("table", *(_grid(grid, names) for grid in found.grids), class_="grids")
    return joined(
        filled("p", found.legend("green and bold:", HELD_DOWN, HARDLY_KNOWN), class_="quiet"),
        scrolling(content, found.heading) if found.grids else element("p", NO_FIGURES),
        filled("p", found.more),
    )


def _grid(grid: Grid, names: Sequence[str]) -> Markup:
    """Return a grid as a group of rows; `names` are the columns of all grids in the table."""
    title = element("th", grid.title, _aside(grid.details), scope="rowgroup", colspan=len(names) + 1, class_="title")
    headings = (element("th", name if name in grid.columns else "", scope="col", class_="end") for name in names)
    rows = []
    for label, entries in grid.rows:
        by_name = dict(zip(grid.columns, entries, strict=True))
        cells = (_figure(by_name[name]) if name in by_name else element("td") for name in names)
        rows.append(element("tr", element("th", label, scope="row"), *cells))
    corner = element("th", grid.corner, scope="col", class_="quiet")
    return element("tbody", lines(element("tr", title), element("tr", corner, *headings), *rows))


def _figure(entry: Figure | Ending) -> Markup:
    if isinstance(entry, Ending):
        return element("td", element("span", entry.word, class_=entry.style), class_="end")
    digits = entry.digits + marks(entry)
    shown = element("strong", digits, class_="good") if entry.best else digits
    return element("td", shown, _aside(entry.aside + (MEMORY_BOUND if entry.memory_bound else "")), class_="end")


def _aside(text: str) -> Markup:
    """Return text that is shown less prominently, after other text."""
    return joined(" ", element("span", text, class_="quiet")) if text else Markup()
