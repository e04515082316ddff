"""The figures: each is one Vega-Lite specification, which pages and the files of --png and --svg share.

Why Vega-Lite (Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", IEEE TVCG 23(1), 2017): a
specification is plain JSON, so Python needs no library to write it. Vega draws it in the page; vl-convert, which embeds
the same Vega, draws it to PNG and SVG, so that no figure is written twice. In the page it is SVG, which prints sharply
and takes its colours from the style sheet, so that dark mode needs no second drawing. The alternatives: Plotly (its
smallest bundle has 1.2 MB against 0.77 MB, and files need a browser), Bokeh (draws on a canvas, so that it prints as
pixels), matplotlib (tips, filters and dark mode would have to be written by hand), uPlot (50 kB, but neither panels nor
shapes nor vector output).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnbench.report.html import vega_layers
from attnbench.report.html.charts import Charts, Row
from attnbench.report.html.palette import FONT, Theme


@dataclass(frozen=True)
class VegaFigure:
    """A figure: its name, what it shows, and how its panels are drawn."""

    name: str  # as --figure takes it
    title: str
    caption: str
    needs: str  # the field of rows without which there is nothing to draw
    layers: Callable[[vega_layers.PanelStyle], list[vega_layers.Spec]]  # of a panel
    panel: str = "panel"  # the field of rows that says to which panel a cell belongs
    lines: str = ""  # the "kind" of lines that it draws behind the cells
    crosses: bool = True  # whether it marks cells that have no figure
    hollow: bool = True  # whether it marks cells whose clock was held down

    @property
    def counts_flops(self) -> bool:
        """Whether its values depend on the convention by which FLOPs are counted."""
        return self.needs in ("tflops", "utilization", "utilization_clock", "intensity", "efficiency")


def spec(
    figure: VegaFigure, charts: Charts, theme: Theme, size: tuple[int, int], columns: int, *, legend: bool
) -> vega_layers.Spec:
    """Return the Vega-Lite specification of a figure, without data.

    `size` is the width and height of a panel in pixels, `columns` the number of panels in a line.
    """
    style = vega_layers.panel_style(charts, theme, size[1], columns * size[0] if legend else 0)
    panels = list(dict.fromkeys(row[figure.panel] for row in charts.rows))
    header = {
        "title": None,
        "labelFontSize": 13,
        "labelFontWeight": 600,
        "labelColor": theme.ink,
        "labelAnchor": "start",
        "labelPadding": 6,
    }
    own_scales = figure.needs == "tflops" and _has_several_peaks(charts)
    return {
        "data": {"name": "rows"},
        "facet": {"field": figure.panel, "type": "nominal", "sort": panels, "header": header},
        "columns": columns,
        "resolve": {"scale": {"y": "independent" if own_scales else "shared"}},
        "spacing": {"row": 22, "column": 20},
        "spec": {"width": size[0], "height": size[1], "layer": figure.layers(style)},
        "config": _config(theme),
    }


def data(figure: VegaFigure, charts: Charts) -> list[Row]:
    """Return the data that a figure is drawn from: all cells, and the lines behind them."""
    return [*charts.rows, *(line for line in charts.lines if line["kind"] == figure.lines)]


def drawable(charts: Charts) -> list[VegaFigure]:
    """Return the figures for which at least one cell has a value."""
    return [f for f in FIGURES if any(row[f.needs] is not None for row in charts.rows)]


def _has_several_peaks(charts: Charts) -> bool:
    """Return whether cells have different peaks, as bf16 and fp8 do; the axis of each panel reaches up to its peak."""
    return len({row["peak"] for row in charts.rows}) > 1


def _config(theme: Theme) -> vega_layers.Spec:
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": theme.grid},
        "axis": {
            "domain": False,
            "ticks": False,
            "gridColor": theme.grid,
            "labelColor": theme.quiet,
            "titleColor": theme.quiet,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 11,
            "labelPadding": 6,
        },
        "legend": {"labelColor": theme.ink, "labelFontSize": 12, "symbolSize": 70, "columnPadding": 16},
        "title": {
            "color": theme.ink,
            "subtitleColor": theme.quiet,
            "fontSize": 16,
            "subtitleFontSize": 12,
            "anchor": "start",
            "subtitlePadding": 4,
            "offset": 12,
        },
        "aria": False,
    }


_BARS = "Bars behind the marks: 95 % interval of the median."
FIGURES: tuple[VegaFigure, ...] = (
    VegaFigure("throughput", "Throughput", f"TFLOP/s over sequence length. {_BARS}", "tflops", vega_layers.throughput),
    VegaFigure(
        "utilization",
        "Utilisation",
        f"Throughput as a share of the datasheet's peak. {_BARS}",
        "utilization",
        vega_layers.utilization("utilization"),
    ),
    VegaFigure(
        "utilization_clock",
        "Utilisation at the clock held",
        "Throughput as a share of the datasheet's peak at the clock that was held, so that a power limit does not "
        f"count against the kernel. {_BARS}",
        "utilization_clock",
        vega_layers.utilization("utilization_clock"),
    ),
    VegaFigure(
        "speedup",
        "Speed-up over eager",
        "Latency of eager attention over the latency, on the same case. Bars: the intervals of both, combined.",
        "speedup",
        vega_layers.speedup,
    ),
    VegaFigure("latency", "Latency", f"Median time of one call, log-log. {_BARS}", "latency", vega_layers.latency),
    VegaFigure(
        "memory",
        "Memory",
        "Peak memory that one call adds, per sequence of the batch, log-log. Memory that is quadratic in the length "
        "runs parallel to ∝ n², linear memory parallel to ∝ n.",
        "memory_sequence",
        vega_layers.memory,
        lines="slope",
    ),
    VegaFigure(
        "roofline",
        "Roofline",
        "Throughput over arithmetic intensity, with a line for each backend and mask. The solid roof is the "
        "datasheet's; the dashed one is what a large matmul and a large copy reached in the same run.",
        "intensity",
        vega_layers.roofline,
        panel="roof",
        lines="roof",
        crosses=False,
    ),
    VegaFigure(
        "spread",
        "Spread of the samples",
        "Every sample relative to the median of its round: the thick bar holds 80 % of them, the thin line all. The "
        "scale is logarithmic beyond 0.2 %.",
        "p0",
        vega_layers.spread,
        crosses=False,
        hollow=False,
    ),
    VegaFigure(
        "clock",
        "SM clock",
        "Median clock of the multiprocessors while each cell was timed. The dashed line is the highest clock that the "
        "device allows.",
        "clock",
        vega_layers.clock,
    ),
    VegaFigure(
        "power",
        "Power",
        "Median power while each cell was timed, as NVML reports it: averaged over about a second, so that the figure "
        "of a short cell also holds the pauses and the cells beside it.",
        "power",
        vega_layers.power,
    ),
    VegaFigure(
        "efficiency",
        "Efficiency",
        "TFLOP/s per watt, measured in a long run without pauses.",
        "efficiency",
        vega_layers.efficiency,
    ),
)
