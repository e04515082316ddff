"""The Vega-Lite layers of each figure's panels, from the back to the front.

Each public function below `panel_style` returns the layers of one figure (figures.FIGURES). Fields are those of the
rows and lines of charts.Charts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.report.html.charts import Charts
from attnbench.report.html.palette import SHAPES, Theme, backend_places

Spec = dict[str, Any]

# Vega expressions that write the labels of axes.
_LENGTH = (
    "datum.value % 1048576 == 0 ? datum.value / 1048576 + 'm' : "
    "datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)
_BYTES = (
    "datum.value >= 1099511627776 ? format(datum.value / 1099511627776, '.3~g') + ' TiB' : "
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "format(datum.value / 1024, '.3~g') + ' KiB'"
)
_SECONDS = (
    "datum.value >= 1 ? format(datum.value, '.3~g') + ' s' : "
    "datum.value >= 1e-3 ? format(datum.value * 1e3, '.3~g') + ' ms' : format(datum.value * 1e6, '.3~g') + ' us'"
)
_SPREAD_TICKS = (-0.5, -0.05, -0.005, 0, 0.005, 0.05, 0.5, 5)
_LOG_TICKS = tuple(m * 10.0**n for n in range(-3, 10) for m in (1, 2, 5))  # so that there are ticks within a decade too
_LEGEND_MARK, _LEGEND_LETTER = 45, 7  # pixels, about: of an entry's mark with the gap, and of a letter of its name


@dataclass(frozen=True)
class PanelStyle:
    """What the layers of all panels of a figure share."""

    theme: Theme
    stroke: Spec  # encoding: the colour of the backend
    fill: Spec  # encoding: that colour too, but the background's where the clock was held down
    shape: Spec  # encoding: the shape of the backend
    lengths: tuple[int, ...]  # sequence lengths that occur, ascending
    backends: tuple[str, ...]
    height: int  # of a panel, in pixels


def panel_style(charts: Charts, theme: Theme, height: int, legend_width: int) -> PanelStyle:
    """Return what the panels of a figure share. `legend_width` is in pixels; with 0 there is no legend."""
    places = backend_places(charts.backends)
    names = list(charts.backends)
    colors = {"domain": names, "range": [theme.series[places[b] % len(theme.series)] for b in names]}
    shapes = {"domain": names, "range": [SHAPES[places[b] % len(SHAPES)] for b in names]}
    legend: Spec | None = None
    if legend_width:
        legend = {"orient": "top", "title": None, "symbolOpacity": 1, "symbolStrokeWidth": 2}
        entry = _LEGEND_MARK + _LEGEND_LETTER * max(map(len, names), default=0)
        if legend_width // entry < len(names):
            legend["columns"] = max(1, legend_width // entry)
    color = {"field": "backend", "type": "nominal", "scale": colors}
    hollow = {"test": "datum.held", "value": theme.paper}
    return PanelStyle(
        theme=theme,
        stroke={**color, "legend": legend},
        fill={"condition": hollow, **color, "legend": None},
        shape={"field": "backend", "type": "nominal", "scale": shapes, "legend": legend},
        lengths=tuple(sorted({row["seqlen"] for row in charts.rows})),
        backends=charts.backends,
        height=height,
    )


def _length_axis(style: PanelStyle) -> Spec:
    axis = {"values": list(style.lengths), "labelExpr": _LENGTH, "grid": False, "labelOverlap": "greedy"}
    scale = {"type": "log", "base": 2, "domain": [style.lengths[0], style.lengths[-1]], "nice": False, "padding": 14}
    return {"field": "seqlen", "type": "quantitative", "scale": scale, "axis": axis, "title": "sequence length"}


def _y_axis(field: str, title: str, *, scale: Mapping[str, Any] | None = None, **axis: Any) -> Spec:
    own = axis if "values" in axis else {"tickCount": 5, **axis}  # a count would drop some of the values given
    return {"field": field, "type": "quantitative", "scale": dict(scale or {}), "axis": own, "title": title}


def _over_length(
    style: PanelStyle, y: Spec, low: str | None, high: str | None, limits: Sequence[tuple[str, str]]
) -> list[Spec]:
    """Return limit lines, intervals, lines, marks and crosses over sequence length.

    `low` and `high` are the ends of the interval as Vega expressions, None where the figure shows none. `limits` are
    (field, label) of lines across the panel.
    """
    x, field = _length_axis(style), y["field"]
    layers = [_limit_line(style, y, of, label) for of, label in limits]
    if low and high:
        layers.append(
            {
                "transform": [
                    {"filter": f"isValid(datum.{field}) && isValid(datum.lo)"},
                    {"calculate": low, "as": "low"},
                    {"calculate": high, "as": "high"},
                ],
                "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.35, "strokeCap": "butt"},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "stroke": style.stroke},
            }
        )
    line = {"type": "line", "strokeWidth": 1.75}
    layers.append({"transform": _cells_only(), "mark": line, "encoding": {"x": x, "y": y, "stroke": style.stroke}})
    layers.append(_cell_marks(style, x, y))
    return [*layers, _crosses(style, x)]


def _cells_only() -> list[Spec]:
    return [{"filter": "isValid(datum.backend)"}]


def _cell_marks(style: PanelStyle, x: Spec, y: Spec) -> Spec:
    """Return a mark for each cell, hollow where the clock was held down, with the tip that describes the cell."""
    return {
        "transform": [{"filter": f"isValid(datum.backend) && isValid(datum.{y['field']})"}],
        "mark": {"type": "point", "size": 46, "strokeWidth": 1.5, "opacity": 1, "tooltip": {"content": "data"}},
        "encoding": {"x": x, "y": y, "stroke": style.stroke, "fill": style.fill, "shape": style.shape},
    }


def _crosses(style: PanelStyle, x: Spec) -> Spec:
    """Return a cross at the bottom of the panel for each cell without a figure."""
    foot = {"field": "foot", "type": "quantitative", "scale": None, "axis": None}
    return {
        "transform": [
            {"filter": "isValid(datum.slot)"},
            {"calculate": f"{style.height} - 7 - 9 * datum.slot", "as": "foot"},
        ],
        "mark": {"type": "text", "text": "✕", "fontSize": 12, "tooltip": {"content": "data"}},
        "encoding": {"x": x, "y": foot, "color": {**style.stroke, "legend": None}},
    }


def _limit_line(style: PanelStyle, y: Spec, field: str, label: str) -> Spec:
    """Return a dashed line across the panel, with its label at the left if it has one."""
    encoding = {"y": {**y, "field": field, "aggregate": "max"}}
    rule = {"type": "rule", "strokeDash": [5, 4], "stroke": style.theme.quiet, "strokeWidth": 1}
    text = {
        "type": "text",
        "align": "left",
        "dx": 4,
        "dy": 9,
        "fontSize": 10,
        "color": style.theme.quiet,
        "text": label,
    }
    return {
        "transform": [{"filter": f"isValid(datum.{field})"}],
        "layer": [
            {"mark": rule, "encoding": encoding},
            *([{"mark": text, "encoding": {**encoding, "x": {"value": 0}}}] if label else []),
        ],
    }


def throughput(style: PanelStyle) -> list[Spec]:
    """Return TFLOP/s over sequence length, below the datasheet's peak and the measured matmul."""
    y = _y_axis("tflops", "TFLOP/s", scale={"zero": True})
    limits = (("peak", "datasheet peak"), ("ceiling", "matmul measured"))
    return _over_length(style, y, "datum.tflops / datum.hi", "datum.tflops / datum.lo", limits)


def utilization(field: str) -> Callable[[PanelStyle], list[Spec]]:
    """Return the function that draws a utilisation, of the field given, over sequence length."""

    def layers(style: PanelStyle) -> list[Spec]:
        y = _y_axis(field, "utilisation", scale={"zero": True}, format="%")
        return _over_length(style, y, f"datum.{field} / datum.hi", f"datum.{field} / datum.lo", ())

    return layers


def speedup(style: PanelStyle) -> list[Spec]:
    """Return the speed-up over eager, over sequence length, on a logarithmic axis."""
    y = _y_axis("speedup", "times as fast as eager", scale={"type": "log", "base": 2}, labelExpr="datum.value + 'x'")
    return _over_length(style, y, "datum.speedup_lo", "datum.speedup_hi", ())


def latency(style: PanelStyle) -> list[Spec]:
    """Return the latency over sequence length, both axes logarithmic."""
    y = _y_axis("latency", "latency of one call", scale={"type": "log"}, labelExpr=_SECONDS, tickCount=4)
    return _over_length(style, y, "datum.latency * datum.lo", "datum.latency * datum.hi", ())


def memory(style: PanelStyle) -> list[Spec]:
    """Return peak memory over sequence length, both axes logarithmic, beside the slopes of n and n²."""
    y = _y_axis("memory_sequence", "peak memory a sequence", scale={"type": "log", "base": 2}, labelExpr=_BYTES)
    slopes = {"transform": [{"filter": "datum.kind == 'slope'"}]}
    line = {"type": "line", "stroke": style.theme.quiet, "strokeDash": [2, 3], "strokeWidth": 1}
    x, at = _length_axis(style), {**y, "field": "y"}
    name = {"type": "text", "align": "right", "dx": -4, "dy": 12, "fontSize": 10, "color": style.theme.quiet}
    last = {"filter": f"datum.seqlen == {style.lengths[-1]}"}
    return [
        {**slopes, "mark": line, "encoding": {"x": x, "y": at, "detail": {"field": "which"}}},
        {
            "transform": [*slopes["transform"], last],
            "mark": name,
            "encoding": {"x": x, "y": at, "text": {"field": "which"}},
        },
        *_over_length(style, y, None, None, ()),
    ]


def roofline(style: PanelStyle) -> list[Spec]:
    """Return TFLOP/s over arithmetic intensity, both axes logarithmic, below the roofs."""
    x = {
        "field": "intensity",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "axis": {"values": list(_LOG_TICKS), "format": "~s"},
        "title": "arithmetic intensity, FLOP/byte",
    }
    y = _y_axis(
        "tflops", "TFLOP/s", scale={"type": "log", "nice": False, "padding": 12}, values=list(_LOG_TICKS), format="~s"
    )
    dashes = {"domain": ["datasheet", "measured"], "range": [[1, 0], [5, 4]]}
    dash = {"field": "which", "type": "nominal", "legend": None, "scale": dashes}
    along = {"x": {**x, "field": "x"}, "y": {**y, "field": "y"}}
    roof = {"type": "line", "stroke": style.theme.ink, "strokeWidth": 1.25}
    path = {"type": "line", "strokeWidth": 1, "opacity": 0.4}
    order = {"x": x, "y": y, "stroke": style.stroke, "detail": {"field": "panel"}, "order": {"field": "seqlen"}}
    return [
        {
            "transform": [{"filter": "datum.kind == 'roof'"}],
            "mark": roof,
            "encoding": {**along, "strokeDash": dash},
        },
        {"transform": _cells_only(), "mark": path, "encoding": order},
        _cell_marks(style, x, y),
    ]


def spread(style: PanelStyle) -> list[Spec]:
    """Return the ranges of the samples at each length, backends side by side.

    The scale is a symmetric logarithm, because deviations of 0.1 % and of 50 % of the median both matter.
    """
    x = {
        "field": "seqlen",
        "type": "ordinal",
        "axis": {"labelExpr": _LENGTH, "labelAngle": 0, "grid": False},
        "title": "sequence length",
    }
    offset = {"field": "backend", "type": "nominal", "scale": {"domain": list(style.backends)}}
    y = _y_axis(
        "p0",
        "sample over median",
        scale={"type": "symlog", "constant": 0.002},
        labelExpr="datum.value == 0 ? 'median' : format(datum.value, '+~%')",
        values=list(_SPREAD_TICKS),
    )
    at = {"x": x, "xOffset": offset, "stroke": style.stroke}
    tip = {"content": "data"}

    def span(low: int, high: int, **mark: Any) -> Spec:
        encoding = {**at, "y": {**y, "field": f"p{low}"}, "y2": {"field": f"p{high}"}}
        return {"transform": [{"filter": "isValid(datum.p0)"}], "mark": {"type": "rule", **mark}, "encoding": encoding}

    middle = {"type": "rule", "stroke": style.theme.quiet, "strokeWidth": 1}
    return [
        {"data": {"values": [{"y": 0}]}, "mark": middle, "encoding": {"y": {**y, "field": "y"}}},
        span(0, 100, strokeWidth=1, tooltip=tip),
        span(10, 90, strokeWidth=4, tooltip=tip),
    ]


def clock(style: PanelStyle) -> list[Spec]:
    """Return the SM clock over sequence length, below the highest that the device allows."""
    y = _y_axis("clock", "SM clock, MHz", scale={"zero": False}, labelExpr="datum.value / 1e6")
    return _over_length(style, y, None, None, (("clock_top", ""),))


def power(style: PanelStyle) -> list[Spec]:
    """Return power over sequence length: marks without lines, because NVML's power lags behind the cell measured."""
    x, y = _length_axis(style), _y_axis("power", "W", scale={"zero": True})
    return [_limit_line(style, y, "power_limit", "power limit"), _cell_marks(style, x, y), _crosses(style, x)]


def efficiency(style: PanelStyle) -> list[Spec]:
    """Return TFLOP/s per watt over sequence length."""
    return _over_length(style, _y_axis("efficiency", "TFLOP/s/W", scale={"zero": True}), None, None, ())
