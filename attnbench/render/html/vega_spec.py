"""A figure as a Vega-Lite specification, which pages and the files of --png and --svg share.

Why Vega-Lite (Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", IEEE TVCG 23(1), 2017): a
specification is plain JSON, so Python needs no library to write it. Vega draws it in the page; vl-convert, which embeds
the same Vega, draws it to PNG and SVG, so that each chart is written once. In the page it is SVG, which prints sharply
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

from attnbench.render.html.charts import Charts, Row
from attnbench.render.html.elements import asset
from attnbench.render.html.figures import LOG, LOG_TICKS, SECONDS, Spec, VegaFigure
from attnbench.render.html.palette import DASHES, backend_marks, color

_LEGEND_MARK, _LEGEND_LETTER = 45, 7  # about the pixels of a mark with its gap, and of a letter
_LENGTH = (  # a Vega expression that writes a label of the axis
    "datum.value % 1048576 == 0 ? datum.value / 1048576 + 'm' : "
    "datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)
_FOCUS = "focus"  # parameter with the backends to highlight; where it is empty all are
_IN_FOCUS = f"!length({_FOCUS}) || indexof({_FOCUS}, datum.backend) >= 0"
_MANY = 10  # number of backends above which marks are smaller
STEP = 20  # pixels: the height of a bar of a ranking and its gap
_CELLS: Spec = {"filter": "isValid(datum.backend)"}  # the cells among the data; the others are lines behind them
_TIP: Spec = {"content": "data"}  # the tip that describes the cell


def spec(figure: VegaFigure, charts: Charts, size: tuple[int, int], columns: int, *, legend: bool) -> Spec:
    """Return the Vega-Lite specification of a chart, without data.

    `size` is the width and height of a panel in pixels, `columns` the number of panels in a row.
    """
    panels = figure.panels_of(charts)
    style = _panel_style(charts, size[1], columns * size[0] if legend else 0)
    own = {"ranking": _ranking, "approximation": _error_over_time, "roofline": _roofline, "spread": _spread}
    layers = own.get(figure.name, _over_length)(figure, style)
    # The y axis of each panel has its own range: bf16 and fp8 have different peaks.
    own_scales = figure.name == "throughput" and len({row["peak"] for row in charts.rows}) > 1
    own_scales |= figure.name == "ranking" and columns > 1
    height = {"step": STEP} if figure.name == "ranking" else size[1]
    return {
        "params": [{"name": _FOCUS, "value": []}],
        "data": {"name": "rows"},
        "facet": {"field": figure.panel, "type": "nominal", "sort": panels, "header": {"title": None}},
        "columns": columns,
        "resolve": {"scale": {"y": "independent" if own_scales else "shared"}},
        "spacing": {"row": 22, "column": 20},
        "spec": {"width": size[0], "height": height, "layer": layers},
        "config": json.loads(asset("figures.json")),
    }


def data(figure: VegaFigure, charts: Charts) -> list[Row]:
    """Return the data that a chart is drawn from: all cells, and the lines behind them."""
    kept = set(figure.panels_of(charts))
    rows = [row for row in charts.rows if row[figure.panel] in kept]
    if figure.name == "ranking":
        tried = [row for row in rows if row["exact"] and (row["status"] == "ok" or row["slot"] is not None)]
        rows = sorted(tried, key=lambda row: -(row[figure.field] or 0.0))
    lines = (line for line in charts.lines if line["kind"] == figure.lines and line[figure.panel] in kept)
    return [*rows, *lines]


@dataclass(frozen=True)
class _PanelStyle:
    """The encodings and sizes that the layers of all panels of a chart share."""

    stroke: Spec  # encoding: the colour of the backend
    fill: Spec  # encoding: the same colour, but the background's where the clock was held down
    shape: Spec  # encoding: the shape of the backend
    dash: Spec  # encoding: the dash of its line
    lengths: list[int]  # sequence lengths that occur, ascending
    backends: list[str]
    devices: int  # number of devices
    height: int  # of a panel, in pixels


def _panel_style(charts: Charts, height: int, legend_width: int) -> _PanelStyle:
    """Return the shared style of a chart's panels. `legend_width` is in pixels; with 0 there is no legend."""
    marks = backend_marks(charts.backends)
    names = list(marks)
    legend: Spec | None = None
    if legend_width:
        legend = {"orient": "top", "title": None, "symbolOpacity": 1, "symbolStrokeWidth": 2}
        entry = _LEGEND_MARK + _LEGEND_LETTER * max(map(len, names), default=0)
        if legend_width // entry < len(names):
            legend["columns"] = max(1, legend_width // entry)

    def by_backend(values: list[Any]) -> Spec:
        return {"field": "backend", "type": "nominal", "scale": {"domain": names, "range": values}}

    colors = by_backend([color(f"c{mark.color}") for mark in marks.values()])
    return _PanelStyle(
        stroke={**colors, "legend": legend},
        fill={"condition": {"test": "datum.held", "value": color("paper")}, **colors, "legend": None},
        shape={**by_backend([mark.shape for mark in marks.values()]), "legend": legend},
        dash={**by_backend([list(DASHES[mark.dash]) for mark in marks.values()]), "legend": None},
        lengths=sorted({row["seqlen"] for row in charts.rows}),
        backends=names,
        devices=len({row["device"] for row in charts.rows}),
        height=height,
    )


def _faded(opacity: float = 1) -> Spec:
    """Return the encoding that fades all backends but the highlighted ones, which have this `opacity`."""
    return {"opacity": {"condition": {"test": _IN_FOCUS, "value": opacity}, "value": 0.12 * opacity}}


# ---- Layers of a panel, from the back to the front.


def _ranking(figure: VegaFigure, style: _PanelStyle) -> Sequence[Spec]:
    """Return a bar for each backend and device in the order of the data, its interval, and the label at its end."""
    y = {"field": "bar", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 320, "grid": False}}
    x = {**figure.y, "axis": {"tickCount": 5}}
    low, high = (end.format(y=f"datum.{figure.field}") for end in figure.interval)
    measured = {"filter": f"isValid(datum.{figure.field})"}
    said = (
        f"format(datum.{figure.field}, datum.{figure.field} < 1000 ? '.3r' : '.0f') + (datum.held ? '~' : '')"
        " + ' ' + datum.unit + (isValid(datum.share) ? '  ' + format(datum.share, '.0%') : '')"
        " + (isValid(datum.best) ? '  ' + datum.best : '')"
    )
    solid = {"condition": {"test": "datum.held", "value": 0.3}, "value": 1}
    at_end = {"y": y, "x": {**x, "field": "high"}, "text": {"field": "said"}}
    limits = [_limit(x, field, label, along="x") for field, label in figure.limits]
    if style.devices > 1:  # each device has its own limit, marked at each bar
        tick = {"type": "tick", "color": color("quiet"), "thickness": 2, "height": STEP - 4}
        for limit, (field, _) in zip(limits, figure.limits, strict=True):
            limit["layer"][0] = {"mark": tick, "encoding": {"y": y, "x": {**x, "field": field}}}
    return [
        {  # first and with all cells, because it sets the order of the bars
            "transform": [{"calculate": f"isValid(datum.{figure.field}) ? '' : '✕ ' + datum.status", "as": "ending"}],
            "mark": {"type": "text", "align": "left", "dx": 4, "tooltip": _TIP, "color": color("quiet")},
            "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "ending"}, **_faded()},
        },
        *limits,
        {
            "transform": [measured],
            "mark": {"type": "bar", "height": STEP - 6, "strokeWidth": 1.5, "tooltip": _TIP},
            "encoding": {
                "y": y,
                "x": x,
                "fill": {**style.stroke, "legend": None},
                "stroke": {**style.stroke, "legend": None},
                "fillOpacity": solid,
                **_faded(),
            },
        },
        {
            "transform": [measured, {"calculate": low, "as": "low"}, {"calculate": high, "as": "high"}],
            "mark": {"type": "rule", "strokeWidth": 1.5, "stroke": color("ink")},
            "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, **_faded()},
        },
        {
            "transform": [measured, {"calculate": high, "as": "high"}, {"calculate": said, "as": "said"}],
            "mark": {"type": "text", "align": "left", "dx": 5, "color": color("ink"), "tooltip": _TIP},
            "encoding": {**at_end, **_faded()},
        },
    ]


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
        ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.append(
            {
                "transform": [
                    {"filter": f"isValid(datum.{figure.field}) && isValid(datum.lo)"},
                    {"calculate": low, "as": "low"},
                    {"calculate": high, "as": "high"},
                ],
                "mark": {"type": "rule", "strokeWidth": 5, "strokeCap": "butt"},
                "encoding": {"x": x, **ends, "stroke": style.stroke, **_faded(0.35)},
            }
        )
    line = {"type": "line", "strokeWidth": 1.75}
    drawn = {"x": x, "y": y, "stroke": style.stroke, "strokeDash": style.dash, **_faded()}
    layers.append({"transform": [_CELLS], "mark": line, "encoding": drawn})
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


def _limit(scale: Spec, field: str, label: str, along: str = "y") -> Spec:
    """Return a dashed line across the panel, with its label, if any, at the left, or above a line along x."""
    at = {along: {**scale, "field": field, "aggregate": "max"}}
    rule = {"type": "rule", "strokeDash": [5, 4], "stroke": color("quiet"), "strokeWidth": 1}
    layers: list[Spec] = [{"mark": rule, "encoding": at}]
    if label:
        place = {"align": "left", "dx": 4, "dy": 9} if along == "y" else {"align": "right", "dx": -4, "dy": -6}
        other = "x" if along == "y" else "y"
        layers.append({"mark": _label(**place, text=label), "encoding": {**at, other: {"value": 0}}})
    return {"transform": [{"filter": f"isValid(datum.{field})"}], "layer": layers}


def _label(**mark: Any) -> Spec:
    return {"type": "text", "fontSize": 10, "color": color("quiet"), **mark}


def _marks(style: _PanelStyle, x: Spec, y: Spec) -> Spec:
    """Return a mark for each cell, hollow where the clock was held down."""
    size = 46 if len(style.backends) <= _MANY else 30
    return {
        "transform": [{"filter": f"isValid(datum.backend) && isValid(datum.{y['field']})"}],
        "mark": {"type": "point", "size": size, "strokeWidth": 1.5, "tooltip": _TIP},
        "encoding": {"x": x, "y": y, "stroke": style.stroke, "fill": style.fill, "shape": style.shape, **_faded()},
    }


def _crosses(style: _PanelStyle, x: Spec) -> Spec:
    """Return a cross at the bottom of the panel for each cell without a value."""
    foot = {"field": "foot", "type": "quantitative", "scale": None, "axis": None}
    place = {"calculate": f"{style.height} - 7 - 9 * datum.slot", "as": "foot"}
    return {
        "transform": [{"filter": "isValid(datum.slot)"}, place],
        "mark": {"type": "text", "text": "✕", "fontSize": 12, "tooltip": _TIP},
        "encoding": {"x": x, "y": foot, "color": {**style.stroke, "legend": None}, **_faded()},
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
    dashes = {"domain": ["datasheet", "measured", "exp"], "range": [[1, 0], [5, 4], [1, 3]]}
    dash = {"field": "which", "type": "nominal", "legend": None, "scale": dashes}
    roof = {"type": "line", "stroke": color("ink"), "strokeWidth": 1.25}
    along = {"x": {**x, "field": "x"}, "y": {**figure.y, "field": "y"}, "strokeDash": dash}
    path = {"type": "line", "strokeWidth": 1}
    cells = {"x": x, "y": figure.y, "stroke": style.stroke, "detail": {"field": "panel"}, "order": {"field": "seqlen"}}
    cells |= _faded(0.4)
    return [
        {"transform": [{"filter": "datum.kind == 'roof'"}], "mark": roof, "encoding": along},
        {"transform": [_CELLS], "mark": path, "encoding": cells},
        _marks(style, x, figure.y),
    ]


def _error_over_time(figure: VegaFigure, style: _PanelStyle) -> Sequence[Spec]:
    """Return a mark for each backend by its time and its error, which is 0 where it computes attention."""
    x = {
        "field": "latency",
        "type": "quantitative",
        "scale": {**LOG, "nice": False, "padding": 30},
        "axis": {"labelExpr": SECONDS, "tickCount": 4, "grid": False, "labelOverlap": "greedy"},
        "title": "latency of one call",
    }
    off = f"isValid(datum.{figure.field}) ? datum.{figure.field} : 0"
    marks = _marks(style, x, {**figure.y, "field": "off"})
    found = [{"filter": "isValid(datum.latency)"}, {"calculate": off, "as": "off"}]
    return [{**marks, "transform": [*found, *marks["transform"]]}]


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
                "encoding": {"x": x, "xOffset": offset, "stroke": style.stroke, **ends, **_faded()},
            }
        )
    return layers
