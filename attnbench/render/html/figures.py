"""The charts of a page, of --png and of --svg, and what each shows. vega_spec.py draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.render.html.charts import Charts

Spec = dict[str, Any]  # a part of a Vega-Lite specification

LOG_TICKS = tuple(m * 10.0**n for n in range(-3, 10) for m in (1, 2, 5))  # several ticks within a decade
SPREAD_TICKS = (-0.5, -0.05, -0.005, 0, 0.005, 0.05, 0.5, 5)
# Vega expressions that write the labels of axes.
BYTES = (
    "datum.value >= 1099511627776 ? format(datum.value / 1099511627776, '.3~g') + ' TiB' : "
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "format(datum.value / 1024, '.3~g') + ' KiB'"
)
SECONDS = (
    "datum.value >= 1 ? format(datum.value, '.3~g') + ' s' : "
    "datum.value >= 1e-3 ? format(datum.value * 1e3, '.3~g') + ' ms' : format(datum.value * 1e6, '.3~g') + ' us'"
)
SPREAD = "datum.value == 0 ? 'median' : format(datum.value, '+~%')"
# Scales of the y axis.
FROM_ZERO: Spec = {"zero": True}
LOG: Spec = {"type": "log"}
LOG2: Spec = {"type": "log", "base": 2}
# Vega expressions for the ends of the interval of {y}; "lo" and "hi" are the ends of the latency's over its median.
INTERVAL_OF_TIME = ("{y} * datum.lo", "{y} * datum.hi")
INTERVAL_OF_RATE = ("{y} / datum.hi", "{y} / datum.lo")
INTERVAL_IN_ROWS = ("{y}_lo", "{y}_hi")


def y_axis(field: str, title: str, scale: Spec, **axis: Any) -> Spec:
    """Return the encoding of a figure's y axis. `axis` are properties of a Vega-Lite axis."""
    own = axis if "values" in axis else {"tickCount": 5, **axis}  # tickCount would drop some of the values
    return {"field": field, "type": "quantitative", "scale": scale, "axis": own, "title": title or None}


@dataclass(frozen=True)
class VegaFigure:
    """A chart with a value of each cell: over sequence length, unless vega_spec.py has a function for its name."""

    name: str  # the name that --figure takes
    title: str
    caption: str
    y: Spec
    interval: Sequence[str] = ()  # ends of its interval, as Vega expressions of {y}
    limits: tuple[tuple[str, str], ...] = ()  # lines across the panel: (field of rows, label)
    panel: str = "panel"  # the field of rows with the name of a cell's panel
    lines: str = ""  # the "kind" of Charts.lines that it draws behind the cells

    @property
    def field(self) -> str:
        """The field of rows that the y axis shows; a chart is drawn only if a row has it."""
        return str(self.y["field"])

    @property
    def counts_flops(self) -> bool:
        """Whether its values depend on the convention by which FLOPs are counted."""
        return self.field in ("rate", "tflops", "utilization", "utilization_clock", "tflops_per_watt", "by_flops")

    def panels_of(self, charts: Charts) -> list[str]:
        """Return the panels in which a cell has a value, in the order of the report."""
        return list(dict.fromkeys(row[self.panel] for row in charts.rows if row[self.field] is not None))


def drawable(charts: Charts) -> list[VegaFigure]:
    """Return the charts for which at least one cell has a value."""
    return [f for f in FIGURES if any(row[f.field] is not None for row in charts.rows)]


_BARS = "Bars behind the marks: 95 % interval of the median."
FIGURES: tuple[VegaFigure, ...] = (
    VegaFigure(
        "ranking",
        "Ranking",
        "All backends that compute attention on one shape, the best first: TFLOP/s, or GB/s where few queries a "
        "sequence read a cache. Thin lines: 95 % interval of the median. = best: alike within it; ? hardly known. "
        "~ and a pale bar: clock held down.",
        y_axis("rate", "", FROM_ZERO),
        INTERVAL_OF_RATE,
        limits=(("limit", "datasheet"),),
        panel="shape",
    ),
    VegaFigure(
        "throughput",
        "Throughput",
        f"TFLOP/s over sequence length. {_BARS}",
        y_axis("tflops", "TFLOP/s", FROM_ZERO),
        INTERVAL_OF_RATE,
        limits=(("peak", "datasheet peak"), ("ceiling", "matmul measured")),
    ),
    VegaFigure(
        "bandwidth",
        "Bandwidth",
        f"GB/s of q, k, v and out over the length of the keys, where few queries a sequence read a cache. {_BARS}",
        y_axis("gbps", "GB/s", FROM_ZERO),
        INTERVAL_OF_RATE,
        limits=(("bandwidth", "datasheet bandwidth"), ("copy", "copy measured")),
    ),
    VegaFigure(
        "utilization",
        "Utilisation",
        f"Throughput as a share of the datasheet's peak. {_BARS}",
        y_axis("utilization", "utilisation", FROM_ZERO, format="%"),
        INTERVAL_OF_RATE,
    ),
    VegaFigure(
        "utilization_clock",
        "Utilisation at the clock held",
        "Throughput as a share of the datasheet's peak at the clock that was held, so that a power limit does not "
        f"count against the kernel. {_BARS}",
        y_axis("utilization_clock", "utilisation", FROM_ZERO, format="%"),
        INTERVAL_OF_RATE,
    ),
    VegaFigure(
        "speedup",
        "Speed-up over eager",
        "Latency of eager attention over the latency, on the same case. Bars: the intervals of both, combined.",
        y_axis("speedup", "times as fast as eager", LOG2, labelExpr="datum.value + 'x'"),
        INTERVAL_IN_ROWS,
    ),
    VegaFigure(
        "latency",
        "Latency",
        f"Median time of one call, log-log. {_BARS}",
        y_axis("latency", "latency of one call", LOG, labelExpr=SECONDS, tickCount=4),
        INTERVAL_OF_TIME,
    ),
    VegaFigure(
        "approximation",
        "Error against time",
        "Error of out against exact attention, over the median time of one call; exact backends are at 0. A panel "
        "for each shape on which an approximation was measured.",
        y_axis("approximation_error", "error of out", FROM_ZERO, format="%"),
        panel="near",
    ),
    VegaFigure(
        "memory",
        "Memory",
        "Peak memory that one call adds, per sequence of the batch, log-log. Memory that is quadratic in the length "
        "runs parallel to ∝ n², linear memory parallel to ∝ n.",
        y_axis("memory_sequence", "peak memory a sequence", LOG2, labelExpr=BYTES),
        lines="slope",
    ),
    VegaFigure(
        "roofline",
        "Roofline",
        "Throughput over arithmetic intensity, with a line for each backend and mask. The solid roof is the "
        "datasheet's; the dashed one has the rates of a large matmul and a large copy in the same run; the dotted line "
        "is the limit by the exponentials of the softmax, at the rate of a kernel that computes nothing else.",
        y_axis("by_flops", "TFLOP/s", {**LOG, "nice": False, "padding": 12}, values=list(LOG_TICKS), format="~s"),
        panel="roof",
        lines="roof",
    ),
    VegaFigure(
        "spread",
        "Spread of the samples",
        "Every sample relative to the median of its round: the thick bar holds 80 % of them, the thin line all. The "
        "scale is logarithmic beyond 0.2 %.",
        # A symmetric logarithm, because deviations of 0.1 % and of 50 % of the median both matter.
        y_axis(
            "p0",
            "sample over median",
            {"type": "symlog", "constant": 0.002},
            labelExpr=SPREAD,
            values=list(SPREAD_TICKS),
        ),
    ),
    VegaFigure(
        "clock",
        "SM clock",
        "Median clock of the multiprocessors while each cell was timed. The dashed line is the highest clock that the "
        "device allows.",
        y_axis("clock", "SM clock, MHz", {"zero": False}, labelExpr="datum.value / 1e6"),
        limits=(("clock_top", ""),),
    ),
    VegaFigure(
        "power",
        "Power",
        "Power in a long run without pauses, by the board's energy counter.",
        y_axis("sustained_power", "W", FROM_ZERO),
        limits=(("power_limit", "power limit"),),
    ),
    VegaFigure(
        "efficiency",
        "Efficiency",
        "TFLOP/s per watt, measured in a long run without pauses.",
        y_axis("tflops_per_watt", "TFLOP/s/W", FROM_ZERO),
    ),
)
