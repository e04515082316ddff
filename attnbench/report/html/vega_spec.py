"""A figure as a Vega-Lite specification, which pages and the files of --png and --svg share.

Why Vega-Lite (Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", IEEE TVCG 23(1), 2017): a
specification is plain JSON, so Python needs no library to write it. Vega draws it in the page; vl-convert, which embeds
the same Vega, draws it to PNG and SVG, so that no figure is written twice. In the page it is SVG, which prints sharply
and takes its colours from the style sheet, so that dark mode needs no second drawing. The alternatives: Plotly (its
smallest bundle has 1.2 MB against 0.77 MB, and files need a browser), Bokeh (draws on a canvas, so that it prints as
pixels), matplotlib (tips, filters and dark mode would have to be written by hand), uPlot (50 kB, but neither panels nor
shapes nor vector output).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.report.html.charts import Charts, Row
from attnbench.report.html.elements import asset
from attnbench.report.html.figures import LOG_TICKS, Spec, VegaFigure
from attnbench.report.html.palette import backend_marks, color

_LEGEND_MARK, _LEGEND_LETTER = 45, 7  # pixels, about: of an entry's mark with the gap, and of a letter of its name
_LENGTH = (  # a Vega expression that writes a label of the axis
    "datum.value % 1048576 == 0 ? datum.value / 1048576 + 'm' : "
    "datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)
_CELLS: Spec = {"filter": "isValid(datum.backend)"}  # the cells among the data; the others are lines behind them
_TIP: Spec = {"content": "data"}  # the tip that describes the cell


def spec(figure: VegaFigure, charts: Charts, size: tuple[int, int], columns: int, *, legend: bool) -> Spec:
    """Return the Vega-Lite specification of a figure, without data.

    `size` is the width and height of a panel in pixels, `columns` the number of panels in a line.
    """
    panels = list(dict.fromkeys(row[figure.panel] for row in charts.rows))
    style = _panel_style(charts, size[1], columns * size[0] if legend else 0)
    layers = {"roofline": _roofline, "spread": _spread}.get(figure.name, _over_length)(figure, style)
    # bf16 and fp8 have different peaks; the axis of each panel then reaches up to its own.
    own_scales = figure.name == "throughput" and len({row["peak"] for row in charts.rows}) > 1
    return {
        "data": {"name": "rows"},
        "facet": {"field": figure.panel, "type": "nominal", "sort": panels, "header": {"title": None}},
        "columns": columns,
        "resolve": {"scale": {"y": "independent" if own_scales else "shared"}},
        "spacing": {"row": 22, "column": 20},
        "spec": {"width": size[0], "height": size[1], "layer": layers},
        "config": json.loads(asset("figures.json")),
    }


def data(figure: VegaFigure, charts: Charts) -> list[Row]:
    """Return the data that a figure is drawn from: all cells, and the lines behind them."""
    return [*charts.rows, *(line for line in charts.lines if line["kind"] == figure.lines)]


@dataclass(frozen=True)
class _PanelStyle:
    """What the layers of all panels of a figure share."""

    stroke: Spec  # encoding: the colour of the backend
    fill: Spec  # encoding: that colour too, but the background's where the clock was held down
    shape: Spec  # encoding: the shape of the backend
    lengths: list[int]  # sequence lengths that occur, ascending
    backends: list[str]
    height: int  # of a panel, in pixels


def _panel_style(charts: Charts, height: int, legend_width: int) -> _PanelStyle:
    """Return what the panels of a figure share. `legend_width` is in pixels; with 0 there is no legend."""
    marks = backend_marks(charts.backends)
    names = list(marks)
    legend: Spec | None = None
    if legend_width:
        legend = {"orient": "top", "title": None, "symbolOpacity": 1, "symbolStrokeWidth": 2}
        entry = _LEGEND_MARK + _LEGEND_LETTER * max(map(len, names), default=0)
        if legend_width // entry < len(names):
            legend["columns"] = max(1, legend_width // entry)

    def by_backend(values: list[str]) -> Spec:
        return {"field": "backend", "type": "nominal", "scale": {"domain": names, "range": values}}

    colors = by_backend([color(f"c{number}") for number, _ in marks.values()])
    return _PanelStyle(
        stroke={**colors, "legend": legend},
        fill={"condition": {"test": "datum.held", "value": color("paper")}, **colors, "legend": None},
        shape={**by_backend([shape for _, shape in marks.values()]), "legend": legend},
        lengths=sorted({row["seqlen"] for row in charts.rows}),
        backends=names,
        height=height,
    )


# ---- Layers of a panel, from the back to the front.


def _over_length(figure: VegaFigure, style: _PanelStyle) -> Sequence[Spec]:
    """Return slopes, limits, intervals, lines, marks and crosses over sequence length."""
    x = {
        "field": "seqlen",
        "type": "quantitative",
        "scale": {
            "type": "log",
            "base": 2,
            "domain": [style.lengths[0], style.lengths[-1]],
            "nice": False,
            "padding": 14,
        },
        "axis": {"values": style.lengths, "labelExpr": _LENGTH, "grid": False, "labelOverlap": "greedy"},
        "title": "sequence length",
    }
    y = figure.y
    layers = _slopes(style, x, y) if figure.lines == "slope" else []
    layers += [_limit(y, field, label) for field, label in figure.limits]
    if figure.interval:
        low, high = (end.format(y=f"datum.{figure.field}") for end in figure.interval)
        layers.append(
            {
                "transform": [
                    {"filter": f"isValid(datum.{figure.field}) && isValid(datum.lo)"},
                    {"calculate": low, "as": "low"},
                    {"calculate": high, "as": "high"},
                ],
                "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.35, "strokeCap": "butt"},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "stroke": style.stroke},
            }
        )
    if figure.joined:
        line = {"type": "line", "strokeWidth": 1.75}
        layers.append({"transform": [_CELLS], "mark": line, "encoding": {"x": x, "y": y, "stroke": style.stroke}})
    return [*layers, _marks(style, x, y), _crosses(style, x)]


def _slopes(style: _PanelStyle, x: Spec, y: Spec) -> list[Spec]:
    """Return the lines of memory that is linear or quadratic in the length, each with its name at the end."""
    slopes = {"filter": "datum.kind == 'slope'"}
    last = {"filter": f"datum.seqlen == {style.lengths[-1]}"}
    line = {"type": "line", "stroke": color("quiet"), "strokeDash": [2, 3], "strokeWidth": 1}
    at = {"x": x, "y": {**y, "field": "y"}}
    return [
        {"transform": [slopes], "mark": line, "encoding": {**at, "detail": {"field": "which"}}},
        {
            "transform": [slopes, last],
            "mark": _label(align="right", dx=-4, dy=12),
            "encoding": {**at, "text": {"field": "which"}},
        },
    ]


def _limit(y: Spec, field: str, label: str) -> Spec:
    """Return a dashed line across the panel, with its label at the left if it has one."""
    at = {"y": {**y, "field": field, "aggregate": "max"}}
    rule = {"type": "rule", "strokeDash": [5, 4], "stroke": color("quiet"), "strokeWidth": 1}
    layers: list[Spec] = [{"mark": rule, "encoding": at}]
    if label:
        text = _label(align="left", dx=4, dy=9, text=label)
        layers.append({"mark": text, "encoding": {**at, "x": {"value": 0}}})
    return {"transform": [{"filter": f"isValid(datum.{field})"}], "layer": layers}


def _label(**mark: Any) -> Spec:
    return {"type": "text", "fontSize": 10, "color": color("quiet"), **mark}


def _marks(style: _PanelStyle, x: Spec, y: Spec) -> Spec:
    """Return a mark for each cell, hollow where the clock was held down."""
    return {
        "transform": [{"filter": f"isValid(datum.backend) && isValid(datum.{y['field']})"}],
        "mark": {"type": "point", "size": 46, "strokeWidth": 1.5, "opacity": 1, "tooltip": _TIP},
        "encoding": {"x": x, "y": y, "stroke": style.stroke, "fill": style.fill, "shape": style.shape},
    }


def _crosses(style: _PanelStyle, x: Spec) -> Spec:
    """Return a cross at the bottom of the panel for each cell without a figure."""
    foot = {"field": "foot", "type": "quantitative", "scale": None, "axis": None}
    place = {"calculate": f"{style.height} - 7 - 9 * datum.slot", "as": "foot"}
    return {
        "transform": [{"filter": "isValid(datum.slot)"}, place],
        "mark": {"type": "text", "text": "✕", "fontSize": 12, "tooltip": _TIP},
        "encoding": {"x": x, "y": foot, "color": {**style.stroke, "legend": None}},
    }


def _roofline(figure: VegaFigure, style: _PanelStyle) -> Sequence[Spec]:
    """Return roofs, lines and marks over arithmetic intensity, both axes logarithmic."""
    x = {
        "field": "intensity",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "axis": {"values": list(LOG_TICKS), "format": "~s"},
        "title": "arithmetic intensity, FLOP/byte",
    }
    dashes = {"domain": ["datasheet", "measured"], "range": [[1, 0], [5, 4]]}
    dash = {"field": "which", "type": "nominal", "legend": None, "scale": dashes}
    roof = {"type": "line", "stroke": color("ink"), "strokeWidth": 1.25}
    along = {"x": {**x, "field": "x"}, "y": {**figure.y, "field": "y"}, "strokeDash": dash}
    path = {"type": "line", "strokeWidth": 1, "opacity": 0.4}
    cells = {"x": x, "y": figure.y, "stroke": style.stroke, "detail": {"field": "panel"}, "order": {"field": "seqlen"}}
    return [
        {"transform": [{"filter": "datum.kind == 'roof'"}], "mark": roof, "encoding": along},
        {"transform": [_CELLS], "mark": path, "encoding": cells},
        _marks(style, x, figure.y),
    ]


def _spread(figure: VegaFigure, style: _PanelStyle) -> Sequence[Spec]:
    """Return the ranges of the samples at each length, backends side by side."""
    x = {
        "field": "seqlen",
        "type": "ordinal",
        "axis": {"labelExpr": _LENGTH, "labelAngle": 0, "grid": False},
        "title": "sequence length",
    }
    offset = {"field": "backend", "type": "nominal", "scale": {"domain": style.backends}}
    median = {"type": "rule", "stroke": color("quiet"), "strokeWidth": 1}
    layers = [{"data": {"values": [{"y": 0}]}, "mark": median, "encoding": {"y": {**figure.y, "field": "y"}}}]
    for low, high, width in (("p0", "p100", 1), ("p10", "p90", 4)):
        ends = {"y": {**figure.y, "field": low}, "y2": {"field": high}}
        layers.append(
            {
                "transform": [{"filter": "isValid(datum.p0)"}],
                "mark": {"type": "rule", "strokeWidth": width, "tooltip": _TIP},
                "encoding": {"x": x, "xOffset": offset, "stroke": style.stroke, **ends},
            }
        )
    return layers
