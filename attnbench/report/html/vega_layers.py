"""How the panels of each figure are drawn: the layers of a Vega-Lite view, from the back to the front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.report.html.chart_rows import Points
from attnbench.report.html.palette import SHAPES, Look, places

Spec = dict[str, Any]

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
_SPREAD = (-0.5, -0.05, -0.005, 0, 0.005, 0.05, 0.5, 5)
_STEPS = tuple(m * 10.0**n for n in range(-3, 10) for m in (1, 2, 5))  # so that there are ticks within a decade too
_KEY, _LETTER = 45, 7  # pixels of an entry of the legend, about: its mark and the gap, and a letter of its name


@dataclass(frozen=True)
class Pen:
    """What layers are drawn with."""

    look: Look
    stroke: Spec
    fill: Spec
    shape: Spec
    lengths: tuple[int, ...]
    backends: tuple[str, ...]
    height: int


def pen(points: Points, look: Look, height: int, legend: int) -> Pen:
    """`legend`: the pixels that it may be wide; 0 for none."""
    at = places(points.backends)
    names = list(points.backends)
    colors = {"domain": names, "range": [look.colors[at[b] % len(look.colors)] for b in names]}
    shapes = {"domain": names, "range": [SHAPES[at[b] % len(SHAPES)] for b in names]}
    key: Spec | None = {"orient": "top", "title": None, "symbolOpacity": 1, "symbolStrokeWidth": 2} if legend else None
    if key and (abreast := legend // (_KEY + _LETTER * max(map(len, names), default=0))) < len(names):
        key["columns"] = max(1, abreast)
    color = {"field": "backend", "type": "nominal", "scale": colors}
    hollow = {"test": "datum.held", "value": look.paper}
    return Pen(
        look=look,
        stroke={**color, "legend": key},
        fill={"condition": hollow, **color, "legend": None},
        shape={"field": "backend", "type": "nominal", "scale": shapes, "legend": key},
        lengths=tuple(sorted({row["seqlen"] for row in points.cells})),
        backends=points.backends,
        height=height,
    )


def _length(pen: Pen) -> Spec:
    axis = {"values": list(pen.lengths), "labelExpr": _LENGTH, "grid": False, "labelOverlap": "greedy"}
    scale = {"type": "log", "base": 2, "domain": [pen.lengths[0], pen.lengths[-1]], "nice": False, "padding": 14}
    return {"field": "seqlen", "type": "quantitative", "scale": scale, "axis": axis, "title": "sequence length"}


def _y(field: str, title: str, *, scale: Mapping[str, Any] | None = None, **axis: Any) -> Spec:
    own = axis if "values" in axis else {"tickCount": 5, **axis}  # a count would thin given values out
    return {"field": field, "type": "quantitative", "scale": dict(scale or {}), "axis": own, "title": title}


def _over_length(pen: Pen, y: Spec, low: str | None, high: str | None, limits: Sequence[tuple[str, str]]) -> list[Spec]:
    """Limits, intervals, lines, marks and crosses over sequence length. `low` and `high` are expressions."""
    x, field = _length(pen), y["field"]
    layers = [_limit(pen, y, of, label) for of, label in limits]
    if low and high:
        layers.append(
            {
                "transform": [
                    {"filter": f"isValid(datum.{field}) && isValid(datum.lo)"},
                    {"calculate": low, "as": "low"},
                    {"calculate": high, "as": "high"},
                ],
                "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.35, "strokeCap": "butt"},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "stroke": pen.stroke},
            }
        )
    line = {"type": "line", "strokeWidth": 1.75}
    layers.append({"transform": _cells(), "mark": line, "encoding": {"x": x, "y": y, "stroke": pen.stroke}})
    layers.append(_marks(pen, x, y))
    return [*layers, _crosses(pen, x)]


def _cells() -> list[Spec]:
    return [{"filter": "isValid(datum.backend)"}]


def _marks(pen: Pen, x: Spec, y: Spec) -> Spec:
    """One for each cell, hollow where the clock was held down; they carry the tips."""
    return {
        "transform": [{"filter": f"isValid(datum.backend) && isValid(datum.{y['field']})"}],
        "mark": {"type": "point", "size": 46, "strokeWidth": 1.5, "opacity": 1, "tooltip": {"content": "data"}},
        "encoding": {"x": x, "y": y, "stroke": pen.stroke, "fill": pen.fill, "shape": pen.shape},
    }


def _crosses(pen: Pen, x: Spec) -> Spec:
    """At the foot of the panel, where a cell has no figure."""
    foot = {"field": "foot", "type": "quantitative", "scale": None, "axis": None}
    return {
        "transform": [
            {"filter": "isValid(datum.slot)"},
            {"calculate": f"{pen.height} - 7 - 9 * datum.slot", "as": "foot"},
        ],
        "mark": {"type": "text", "text": "✕", "fontSize": 12, "tooltip": {"content": "data"}},
        "encoding": {"x": x, "y": foot, "color": {**pen.stroke, "legend": None}},
    }


def _limit(pen: Pen, y: Spec, field: str, label: str) -> Spec:
    """A line across the panel, with its name at the left where it has one."""
    encoding = {"y": {**y, "field": field, "aggregate": "max"}}
    rule = {"type": "rule", "strokeDash": [5, 4], "stroke": pen.look.quiet, "strokeWidth": 1}
    text = {"type": "text", "align": "left", "dx": 4, "dy": 9, "fontSize": 10, "color": pen.look.quiet, "text": label}
    return {
        "transform": [{"filter": f"isValid(datum.{field})"}],
        "layer": [
            {"mark": rule, "encoding": encoding},
            *([{"mark": text, "encoding": {**encoding, "x": {"value": 0}}}] if label else []),
        ],
    }


def throughput(pen: Pen) -> list[Spec]:
    y = _y("tflops", "TFLOP/s", scale={"zero": True})
    limits = (("peak", "datasheet peak"), ("ceiling", "matmul measured"))
    return _over_length(pen, y, "datum.tflops / datum.hi", "datum.tflops / datum.lo", limits)


def utilization(field: str) -> Callable[[Pen], list[Spec]]:
    def layers(pen: Pen) -> list[Spec]:
        y = _y(field, "utilisation", scale={"zero": True}, format="%")
        return _over_length(pen, y, f"datum.{field} / datum.hi", f"datum.{field} / datum.lo", ())

    return layers


def speedup(pen: Pen) -> list[Spec]:
    y = _y("speedup", "times as fast as eager", scale={"type": "log", "base": 2}, labelExpr="datum.value + 'x'")
    return _over_length(pen, y, "datum.speedup_lo", "datum.speedup_hi", ())


def latency(pen: Pen) -> list[Spec]:
    y = _y("latency", "latency of one call", scale={"type": "log"}, labelExpr=_SECONDS, tickCount=4)
    return _over_length(pen, y, "datum.latency * datum.lo", "datum.latency * datum.hi", ())


def memory(pen: Pen) -> list[Spec]:
    y = _y("memory_sequence", "peak memory a sequence", scale={"type": "log", "base": 2}, labelExpr=_BYTES)
    slopes = {"transform": [{"filter": "datum.kind == 'slope'"}]}
    line = {"type": "line", "stroke": pen.look.quiet, "strokeDash": [2, 3], "strokeWidth": 1}
    x, at = _length(pen), {**y, "field": "y"}
    name = {"type": "text", "align": "right", "dx": -4, "dy": 12, "fontSize": 10, "color": pen.look.quiet}
    last = {"filter": f"datum.seqlen == {pen.lengths[-1]}"}
    return [
        {**slopes, "mark": line, "encoding": {"x": x, "y": at, "detail": {"field": "which"}}},
        {
            "transform": [*slopes["transform"], last],
            "mark": name,
            "encoding": {"x": x, "y": at, "text": {"field": "which"}},
        },
        *_over_length(pen, y, None, None, ()),
    ]


def roofline(pen: Pen) -> list[Spec]:
    x = {
        "field": "intensity",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "axis": {"values": list(_STEPS), "format": "~s"},
        "title": "arithmetic intensity, FLOP/byte",
    }
    y = _y("tflops", "TFLOP/s", scale={"type": "log", "nice": False, "padding": 12}, values=list(_STEPS), format="~s")
    dashes = {"domain": ["datasheet", "measured"], "range": [[1, 0], [5, 4]]}
    dash = {"field": "which", "type": "nominal", "legend": None, "scale": dashes}
    along = {"x": {**x, "field": "x"}, "y": {**y, "field": "y"}}
    roof = {"type": "line", "stroke": pen.look.ink, "strokeWidth": 1.25}
    path = {"type": "line", "strokeWidth": 1, "opacity": 0.4}
    order = {"x": x, "y": y, "stroke": pen.stroke, "detail": {"field": "panel"}, "order": {"field": "seqlen"}}
    return [
        {
            "transform": [{"filter": "datum.kind == 'roof'"}],
            "mark": roof,
            "encoding": {**along, "strokeDash": dash},
        },
        {"transform": _cells(), "mark": path, "encoding": order},
        _marks(pen, x, y),
    ]


def spread(pen: Pen) -> list[Spec]:
    """Ranges of the samples side by side; a symmetric log scale, as a hair and a half of the median both matter."""
    x = {
        "field": "seqlen",
        "type": "ordinal",
        "axis": {"labelExpr": _LENGTH, "labelAngle": 0, "grid": False},
        "title": "sequence length",
    }
    offset = {"field": "backend", "type": "nominal", "scale": {"domain": list(pen.backends)}}
    y = _y(
        "p0",
        "sample over median",
        scale={"type": "symlog", "constant": 0.002},
        labelExpr="datum.value == 0 ? 'median' : format(datum.value, '+~%')",
        values=list(_SPREAD),
    )
    at = {"x": x, "xOffset": offset, "stroke": pen.stroke}
    tip = {"content": "data"}

    def span(low: int, high: int, **mark: Any) -> Spec:
        encoding = {**at, "y": {**y, "field": f"p{low}"}, "y2": {"field": f"p{high}"}}
        return {"transform": [{"filter": "isValid(datum.p0)"}], "mark": {"type": "rule", **mark}, "encoding": encoding}

    middle = {"type": "rule", "stroke": pen.look.quiet, "strokeWidth": 1}
    return [
        {"data": {"values": [{"y": 0}]}, "mark": middle, "encoding": {"y": {**y, "field": "y"}}},
        span(0, 100, strokeWidth=1, tooltip=tip),
        span(10, 90, strokeWidth=4, tooltip=tip),
    ]


def clock(pen: Pen) -> list[Spec]:
    y = _y("clock", "SM clock, MHz", scale={"zero": False}, labelExpr="datum.value / 1e6")
    return _over_length(pen, y, None, None, (("clock_top", ""),))


def power(pen: Pen) -> list[Spec]:
    """Marks alone: NVML's power lags, so that no line through them means anything."""
    x, y = _length(pen), _y("power", "W", scale={"zero": True})
    return [_limit(pen, y, "power_limit", "power limit"), _marks(pen, x, y), _crosses(pen, x)]


def efficiency(pen: Pen) -> list[Spec]:
    return _over_length(pen, _y("efficiency", "TFLOP/s/W", scale={"zero": True}), None, None, ())
