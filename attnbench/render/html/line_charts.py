"""Line charts of a page: Vega-Lite specifications with their data, which assets/line_charts.js draws in the browser.

The drawing takes its colours from the style sheet. The tables of the page have the same figures, for those who do not
see it, or have no JavaScript.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attnbench.core.formats import digits
from attnbench.render.document import LineChart
from attnbench.render.html.elements import Markup, Part, asset, element, script_data, section
from attnbench.render.html.figures import Spec
from attnbench.render.html.palette import DASHES, SERIES, color

SCRIPTS = ("vega.min.js", "vega-lite.min.js", "line_charts.js")  # in assets/, in the order in which a page runs them
HEIGHT = 300  # pixels; assets/line_charts.js sets the width
DATA = "line-charts"
FIRST = 3  # the number of the colour of the first line: blue


def parts(found: Sequence[LineChart]) -> list[Part]:
    """Return a part of a page for each chart."""
    return [
        section(
            one.name,
            one.title,
            element("p", one.caption, class_="quiet"),
            element("p", element("button", "Save SVG", type="button", data_save_chart=place), class_="tools"),
            drawing(one, place),
            element("noscript", element("p", "The chart needs JavaScript; a table of this page has its figures.")),
            class_="figure",
        )
        for place, one in enumerate(found)
    ]


def drawing(one: LineChart, place: int, size: tuple[int, int] | None = None) -> Markup:
    """Return the place of a drawing, the chart of that number; `size` in pixels, None: as wide as the page."""
    width, height = size or (None, None)
    own = {"data_chart": place, "data_width": width, "data_height": height}
    return element("div", class_="chart", role="img", aria_label=finding(one), **own)


def finding(one: LineChart) -> str:
    """Return what a chart shows, in words."""
    ends = (f"{line.label}: {digits(line.points[-1][1])} at {digits(line.points[-1][0])}" for line in one.lines)
    marks = (f"{label}: {digits(y)} at {digits(x)}" for x, y, label in one.marks)
    return f"{one.title}: {one.y_title} over {one.x_title}. {'; '.join((*ends, *marks))}. A table has the same figures."


def data(found: Sequence[LineChart]) -> Markup:
    """Return the element with the specifications that assets/line_charts.js reads."""
    return script_data(DATA, [{"name": one.name, "spec": spec(one)} for one in found])


def spec(one: LineChart) -> Spec:
    """Return the Vega-Lite specification of a chart with its data, without a width."""
    labels = [line.label for line in one.lines]
    rows = [
        {"line": line.label, "x": x, "y": y, "low": low, "high": high}
        for line in one.lines
        for x, y, low, high in line.points
    ]
    colors = [color(f"c{(FIRST + i) % SERIES}") for i in range(len(labels))]
    dashes = [list(DASHES[i % len(DASHES)]) for i in range(len(labels))]
    x = {"field": "x", "type": "quantitative", "title": one.x_title, "axis": {"tickCount": 6}}
    y = {"field": "y", "type": "quantitative", "title": one.y_title, "axis": {"tickCount": 6}}
    legend: Spec = {"orient": "top", "title": None, "columns": 2, "labelLimit": 320, "symbolStrokeWidth": 2}

    def by_line(values: list[Any]) -> Spec:
        return {"field": "line", "type": "nominal", "legend": legend, "scale": {"domain": labels, "range": values}}

    # The colour of a band is no scale's, as one without a legend would hide the legend of the lines too.
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
            "encoding": {"x": x, "y": y, "stroke": by_line(colors), "strokeDash": by_line(dashes)},
        },
    ]
    if one.level is not None:
        rule = {"type": "rule", "stroke": color("quiet"), "strokeDash": [5, 4]}
        layers.append({"data": {"values": [{"x": one.level}]}, "mark": rule, "encoding": {"x": x}})
    if one.marks:
        values = {"values": [{"x": x, "y": y, "label": label} for x, y, label in one.marks]}
        point = {"type": "point", "filled": True, "size": 70, "color": color("ink")}
        text = {"type": "text", "align": "left", "dx": 8, "dy": 4, "color": color("ink")}
        layers += [
            {"data": values, "mark": point, "encoding": {"x": x, "y": y}},
            {"data": values, "mark": text, "encoding": {"x": x, "y": y, "text": {"field": "label"}}},
        ]
    return {"data": {"values": rows}, "height": HEIGHT, "layer": layers, "config": json.loads(asset("figures.json"))}
