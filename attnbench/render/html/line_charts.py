"""Line charts of a page: Vega-Lite specifications with their data, which assets/line_charts.js draws in the browser.

The drawing takes its colours from the style sheet. The tables of the page have the same values, for readers who do not
see the chart or have no JavaScript.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attnbench.core.formats import digits
from attnbench.render.document import BandLine, LineChart
from attnbench.render.html.elements import Markup, Part, asset, element, script_data, section
from attnbench.render.html.figures import Spec
from attnbench.render.html.palette import DASHES, SERIES, color

SCRIPTS = ("shared.js", "vega.min.js", "vega-lite.min.js", "line_charts.js")  # in assets/, in the order of a page
HEIGHT = 300  # pixels; assets/line_charts.js sets the width
DATA = "line-charts"
ROOM = 24  # pixels beside the points at the ends of the axis, for their labels
FIRST = 3  # number of the colour of the first line: blue


def parts(found: Sequence[LineChart]) -> list[Part]:
    """Return a part of a page for each chart."""
    return [
        section(
            one.name,
            one.title,
            element("p", one.caption, class_="quiet"),
            element("p", *(_save(one, kind) for kind in ("svg", "csv")), class_="tools"),
            drawing(one),
            element("noscript", element("p", "The chart needs JavaScript; a table of this page has its figures.")),
            class_="figure",
        )
        for one in found
    ]


def _save(one: LineChart, kind: str) -> Markup:
    return element("button", f"Save {kind.upper()}", type="button", data_save_chart=one.name, data_as=kind)


def drawing(one: LineChart, size: tuple[int, int] | None = None) -> Markup:
    """Return the empty element in which a chart is drawn; `size` is in pixels, None for the width of the page."""
    width, height = size or (None, None)
    own = {"data_chart": one.name, "data_width": width, "data_height": height}
    return element("div", class_="chart", role="img", aria_label=finding(one), **own)


def finding(one: LineChart) -> str:
    """Return what a chart shows, in words."""
    ends = (f"{_end(line)}: {digits(line.points[-1][1])} at {digits(line.points[-1][0])}" for line in one.lines)
    marks = (f"{label}: {digits(y)} at {digits(x)}" for x, y, label in one.marks)
    return f"{one.title}: {one.y_title} over {one.x_title}. {'; '.join((*ends, *marks))}. A table has the same figures."


def _end(line: BandLine) -> str:
    """Return the name of a line, with the name of its last point if its points have names."""
    return f"{line.label} ({line.names[-1]})" if line.names else line.label


def data(found: Sequence[LineChart]) -> Markup:
    """Return the element with the specifications, by the names of the charts, that assets/line_charts.js reads."""
    return script_data(DATA, {one.name: spec(one) for one in found})


def spec(one: LineChart) -> Spec:
    """Return the Vega-Lite specification of a chart with its data, without a width."""
    labels = [line.label for line in one.lines]
    rows: list[Spec] = [
        {"line": line.label, "place": place, "name": name, "x": x, "y": y, "low": low, "high": high}
        for line in one.lines
        for place, (x, y, low, high) in enumerate(line.points)
        for name in (line.names[place] if line.names else "",)
    ]
    colors = [color(f"c{(FIRST + i) % SERIES}") for i in range(len(labels))]
    dashes = [list(DASHES[i % len(DASHES)]) for i in range(len(labels))]
    x: Spec = {"field": "x", "type": "quantitative", "title": one.x_title, "axis": {"tickCount": 6}}
    if any(line.names for line in one.lines):
        x["scale"] = {"padding": ROOM, "zero": False}
    y = {"field": "y", "type": "quantitative", "title": one.y_title, "axis": {"tickCount": 6}}
    legend: Spec = {"orient": "top", "title": None, "columns": 1, "symbolStrokeWidth": 2}

    def by_line(values: list[Any]) -> Spec:
        return {"field": "line", "type": "nominal", "legend": legend, "scale": {"domain": labels, "range": values}}

    # Bands take their colour from no scale: a scale without a legend would hide the legend of the lines too.
    layers: list[Spec] = [
        {
            "data": {"values": [row for row in rows if row["line"] == label]},
            "mark": {"type": "area", "opacity": 0.18, "fill": own},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        }
        for label, own in zip(labels, colors, strict=True)
    ]
    layers += [
        {
            "mark": {"type": "line", "strokeWidth": 1.75},
            "encoding": {
                "x": x,
                "y": y,
                "stroke": by_line(colors),
                "strokeDash": by_line(dashes),
                "order": {"field": "place", "type": "quantitative"},
            },
        },
    ]
    for label, own in zip(labels, colors, strict=True):
        named = [
            {**row, "tip": f"{label} ({row['name']}): {digits(row['y'])} at {digits(row['x'])}"}
            for row in rows
            if row["line"] == label and row["name"]
        ]
        layers += _points(named, own, x, y, dy=-6) if named else []
    if one.level is not None:
        rule = {"type": "rule", "stroke": color("quiet"), "strokeDash": [5, 4]}
        layers.append({"data": {"values": [{"x": one.level}]}, "mark": rule, "encoding": {"x": x}})
    if one.marks:
        marked = [{"x": x, "y": y, "name": label, "tip": label} for x, y, label in one.marks]
        layers += _points(marked, color("ink"), x, y, dy=4)
    return {"data": {"values": rows}, "height": HEIGHT, "layer": layers, "config": json.loads(asset("figures.json"))}


def _points(named: Sequence[Spec], own: str, x: Spec, y: Spec, dy: int) -> list[Spec]:
    """Return layers of points of one colour; their labels are beside them and `dy` pixels below, and each has a tip."""
    values = {"values": named}
    point = {"type": "point", "filled": True, "size": 50, "opacity": 1, "color": own}
    text = {"type": "text", "align": "left", "dx": 7, "dy": dy, "color": color("ink")}
    return [
        {"data": values, "mark": point, "encoding": {"x": x, "y": y, "tooltip": {"field": "tip"}}},
        {"data": values, "mark": text, "encoding": {"x": x, "y": y, "text": {"field": "name"}}},
    ]
