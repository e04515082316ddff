"""The figures, each as one Vega-Lite specification that the HTML report and --png and --svg share.

Vega-Lite (Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", IEEE TVCG 23(1), 2017) because a
specification is plain JSON: made here in Python without a library, drawn by Vega in the page and by vl-convert, which
embeds the same Vega, to PNG and SVG, so that no figure is written twice. It draws SVG, which prints sharp and takes its
colours from the page's style sheet, so that the dark costs nothing. What else was weighed: Plotly (its smallest bundle
is 1.2 MB against 0.77 MB, and files need a browser), Bokeh (a canvas: prints as pixels), matplotlib (tips, filters and
the dark by hand), uPlot (50 kB, but no panels, shapes or vector output).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnbench.report.html import vega_layers
from attnbench.report.html.chart_rows import Points
from attnbench.report.html.palette import FONT, Look


@dataclass(frozen=True)
class Figure:
    """One figure: what it is called, what it shows, and how its panels are drawn."""

    name: str
    title: str
    caption: str
    needs: str  # the field of rows without which there is nothing to draw
    draw: Callable[[vega_layers.Pen], list[vega_layers.Spec]]
    panel: str = "panel"  # the field of rows that tells panels apart
    lines: str = ""  # the kind of lines that it draws behind the cells
    crosses: bool = True  # whether it marks cells that have no figure
    hollow: bool = True  # and those whose clock was held down

    @property
    def counts_flops(self) -> bool:
        """Whether the convention by which FLOPs are counted matters."""
        return self.needs in ("tflops", "utilization", "utilization_clock", "intensity", "efficiency")


def spec(
    figure: Figure, points: Points, look: Look, size: tuple[int, int], columns: int, *, legend: bool
) -> vega_layers.Spec:
    """The Vega-Lite specification without data; `size` is (width, height) of one panel in pixels."""
    pen = vega_layers.pen(points, look, size[1], columns * size[0] if legend else 0)
    panels = list(dict.fromkeys(row[figure.panel] for row in points.cells))
    header = {
        "title": None,
        "labelFontSize": 13,
        "labelFontWeight": 600,
        "labelColor": look.ink,
        "labelAnchor": "start",
    }
    return {
        "data": {"name": "rows"},
        "facet": {"field": figure.panel, "type": "nominal", "sort": panels, "header": {**header, "labelPadding": 6}},
        "columns": columns,
        "resolve": {"scale": {"y": "independent" if figure.needs == "tflops" and _peaks(points) > 1 else "shared"}},
        "spacing": {"row": 22, "column": 20},
        "spec": {"width": size[0], "height": size[1], "layer": figure.draw(pen)},
        "config": _config(look),
    }


def rows(figure: Figure, points: Points) -> list[dict[str, Any]]:
    """What a figure is drawn from."""
    return [*points.cells, *(line for line in points.lines if line["kind"] == figure.lines)]


def _peaks(points: Points) -> int:
    """More than one, as of bf16 and fp8, need scales of their own: a panel's reaches to its peak."""
    return len({row["peak"] for row in points.cells})


def drawable(points: Points) -> list[Figure]:
    """Those for which something was measured."""
    return [f for f in FIGURES if any(row[f.needs] is not None for row in points.cells)]


def _config(look: Look) -> vega_layers.Spec:
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": look.grid},
        "axis": {
            "domain": False,
            "ticks": False,
            "gridColor": look.grid,
            "labelColor": look.quiet,
            "titleColor": look.quiet,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 11,
            "labelPadding": 6,
        },
        "legend": {"labelColor": look.ink, "labelFontSize": 12, "symbolSize": 70, "columnPadding": 16},
        "title": {
            "color": look.ink,
            "subtitleColor": look.quiet,
            "fontSize": 16,
            "subtitleFontSize": 12,
            "anchor": "start",
            "subtitlePadding": 4,
            "offset": 12,
        },
        "aria": False,
    }


_BARS = "Bars behind the marks: 95 % interval of the median."
FIGURES: tuple[Figure, ...] = (
    Figure("throughput", "Throughput", f"TFLOP/s over sequence length. {_BARS}", "tflops", vega_layers.throughput),
    Figure(
        "utilization",
        "Utilisation",
        f"Throughput as a share of the datasheet's peak. {_BARS}",
        "utilization",
        vega_layers.utilization("utilization"),
    ),
    Figure(
        "utilization_clock",
        "Utilisation at the clock held",
        "Throughput as a share of the datasheet's peak at the clock that was held: what power took is left out. "
        + _BARS,
        "utilization_clock",
        vega_layers.utilization("utilization_clock"),
    ),
    Figure(
        "speedup",
        "Speed-up over eager",
        "Latency of eager attention over the latency, on the same case. Bars: the intervals of both, combined.",
        "speedup",
        vega_layers.speedup,
    ),
    Figure("latency", "Latency", f"Median time of one call, log-log. {_BARS}", "latency", vega_layers.latency),
    Figure(
        "memory",
        "Memory",
        "Peak memory that one call adds, over the batch, log-log: what is quadratic in the length runs beside ∝ n², "
        "what is linear beside ∝ n.",
        "memory_sequence",
        vega_layers.memory,
        lines="slope",
    ),
    Figure(
        "roofline",
        "Roofline",
        "Throughput over arithmetic intensity, a line for each backend and mask; above, what the datasheet allows, "
        "and dashed what a large matmul and a large copy reached in the same run.",
        "intensity",
        vega_layers.roofline,
        panel="roof",
        lines="roof",
        crosses=False,
    ),
    Figure(
        "spread",
        "Spread of the samples",
        "Every sample over its cell's median: the thick bar holds 80 % of them, the thin line all. The scale is "
        "logarithmic beyond 0.2 %.",
        "p0",
        vega_layers.spread,
        crosses=False,
        hollow=False,
    ),
    Figure(
        "clock",
        "SM clock",
        "Median clock of the multiprocessors while each cell was timed; dashed, the highest that the device allows.",
        "clock",
        vega_layers.clock,
    ),
    Figure(
        "power",
        "Power",
        "Median power while each cell was timed, as NVML saw it: averaged over about a second, so that short cells "
        "show their pauses and their neighbours too.",
        "power",
        vega_layers.power,
    ),
    Figure("efficiency", "Efficiency", "TFLOP/s for each watt, without pauses.", "efficiency", vega_layers.efficiency),
)
