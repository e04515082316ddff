"""The interactive parts of a page: filters, figures, and a table to sort and filter. assets/charts.js draws them.

Figures and table are drawn in the browser from one array of rows. Vega draws a figure when it comes into view, and the
table shows its first rows only, so that a page of 5,000 cells opens in two seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from attnbench.render.html import palette, vega_spec
from attnbench.render.html.charts import Charts
from attnbench.render.html.elements import Markup, Part, asset, element, filled, lines, script_data, scrolling, section
from attnbench.render.html.figures import VegaFigure, drawable
from attnbench.results.metrics import METRICS

PANEL = (340, 210)  # width and height in pixels, before charts.js fits panels to the width of the page
# (field of a row, heading, how charts.js writes it, what it is)
COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("device", "device", "text", "Device, with what sets it apart from others of its name"),
    ("backend", "backend", "text", "Implementation"),
    ("dtype", "dtype", "text", "Type of the inputs"),
    ("headdim", "headdim", "number", "Head dimension"),
    ("mask", "mask", "text", "Mask"),
    ("pass", "pass", "text", "Forward, backward, or both"),
    ("other", "other", "text", "What else differs from the default"),
    ("seqlen", "seqlen", "length", "Length of the keys, and of the queries unless said otherwise"),
    ("batch", "batch", "number", "Batch size"),
    ("heads", "heads", "number", "Query heads, or query heads/key heads"),
    ("latency", "latency", "duration", METRICS["latency"].doc),
    ("ci", "±", "percent", METRICS["ci"].doc),
    ("tflops", "TFLOP/s", "digits", METRICS["tflops"].doc),
    ("utilization", "of peak", "share", METRICS["utilization"].doc),
    ("utilization_clock", "of peak at clock", "share", METRICS["utilization_clock"].doc),
    ("gbps", "GB/s", "digits", METRICS["gbps"].doc),
    ("bandwidth_utilization", "of bandwidth", "share", METRICS["bandwidth_utilization"].doc),
    ("speedup", "over eager", "times", METRICS["speedup"].doc),
    ("memory_peak", "memory", "size", METRICS["memory_peak"].doc),
    ("clock", "SM clock", "megahertz", METRICS["clock_held"].doc),
    ("sustained_power", "power", "watts", METRICS["sustained_power"].doc),
    ("temperature", "temp.", "celsius", METRICS["temperature"].doc),
    ("samples", "samples", "number", METRICS["samples"].doc),
    ("error", "error", "digits", METRICS["error"].doc),
    ("approximation_error", "approx. error", "percent", METRICS["approximation_error"].doc),
    ("mass_kept", "mass kept", "percent", METRICS["mass_kept"].doc),
    ("first_call", "first call", "duration", METRICS["first_call"].doc),
    ("status", "remark", "remark", "Why there is no figure, or whether the clock was held down"),
)
ALWAYS_SHOWN = ("backend", "seqlen", "status")  # columns that are shown even where they say the same of all cells
FILTERS: Mapping[str, str] = {  # field of a row -> the title of its boxes
    "device": "Device",
    "dtype": "dtype",
    "headdim": "Head dimension",
    "mask": "Mask",
    "pass": "Pass",
    "other": "Other",
}


def filters(charts: Charts) -> Markup:
    """Return the form with a box to tick for each backend, which is the legend too, and each value that varies."""
    groups = [_boxes("backend", "Backend", charts.backends)]
    for field, title in FILTERS.items():
        values = list(dict.fromkeys(row[field] for row in charts.rows))
        if len(values) > 1:
            groups.append(_boxes(field, title, values))
    reset = element("p", element("button", "Show all", type="button", id="reset"))
    shown = element("p", class_="quiet", id="shown", role="status")
    form = element("form", lines(*groups, reset, shown), id="filters", aria_label="Filters")
    return element("details", element("summary", "Filters"), form, id="filtering")


def _boxes(field: str, title: str, values: Iterable[str]) -> Markup:
    boxes = []
    for value in values:
        box = element("input", type="checkbox", checked=True, name=field, value=value)
        boxes.append(element("label", box, element("span", value or "none")))
    return element("fieldset", element("legend", title), *boxes, id=f"filter-{field}")


def parts(charts: Charts) -> list[Part]:
    """Return the figures that can be drawn, and the table."""
    drawn = drawable(charts)
    without_scripts = "Figures and table need JavaScript. attnbench report shows the same as text."
    before = section(
        "figures",
        "",
        element("noscript", element("p", without_scripts)),
        filled("p", charts.note, class_="quiet"),
        element("p", class_="key quiet", id="key"),
        element("p", "No cell has a figure to draw.") if charts.rows and not drawn else "",
    )
    return [before, *map(_figure, drawn), _table()]


def _figure(figure: VegaFigure) -> Part:
    label = f"{figure.title}; the table below has the same figures"
    shape = element("p", element("label", "Shape ", element("select", id="shape")), class_="tools")
    return section(
        figure.name,
        figure.title,
        element("p", figure.caption, class_="quiet"),
        shape if figure.name == "ranking" else element("p", class_="legend"),
        element("div", class_="drawing", role="img", aria_label=label),
        class_="figure",
    )


def _table() -> Part:
    off: Mapping[str, str] = {"autocomplete": "off", "spellcheck": "false"}
    search = element("input", type="search", id="find", placeholder="causal 16k skip", **off)
    count = element("span", class_="quiet", id="count", role="status")
    table = element("table", element("thead"), element("tbody"), id="cells")
    return section(
        "table",
        "Table",
        element("p", element("label", "Find ", search), " ", count, class_="tools"),
        scrolling(table, "All cells", "scroll limited"),
        element("p", element("button", type="button", id="more", hidden=True)),
    )


def scripts(charts: Charts) -> Markup:
    """Return the element for tips, the data, Vega, and the script that draws."""
    vega_lite, _, _ = asset("vega-lite.min.js").partition("//# sourceMappingURL")
    return lines(
        element("div", id="tip", role="tooltip", hidden=True),
        script_data("data", data(charts)),
        element("script", asset("vega.min.js")),
        element("script", Markup(vega_lite)),
        element("script", asset("charts.js")),
    )


def data(charts: Charts) -> dict[str, Any]:
    """Return what charts.js reads."""
    fields = {name: [row[name] for row in charts.rows] for name in next(iter(charts.rows), ())}
    marks = palette.backend_marks(charts.backends)
    specs = [(figure, vega_spec.spec(figure, charts, PANEL, 1, legend=False)) for figure in drawable(charts)]
    return {
        "number": len(charts.rows),
        "fields": fields,
        "lines": charts.lines,
        "panels": charts.panels,
        "backends": [
            {"name": name, "color": mark.color, "dash": palette.DASHES[mark.dash], "shape": mark.shape}
            for name, mark in marks.items()
        ],
        "columns": [
            dict(zip(("field", "title", "kind", "doc"), column, strict=True))
            | {"better": METRICS[column[0]].better if column[0] in METRICS else None}
            for column in COLUMNS
            if column[0] in ALWAYS_SHOWN or _says_something(column[0], {*fields.get(column[0], ())})
        ],
        "filters": list(FILTERS),
        "figures": [
            {
                "name": figure.name,
                "panel": figure.panel,
                "lines": figure.lines,
                "field": figure.field,
                "spec": {name: part for name, part in spec.items() if name != "config"},
            }
            for figure, spec in specs
        ],
        "config": next((spec["config"] for _, spec in specs), {}),  # the same for all
    }


def _says_something(field: str, values: Collection[Any]) -> bool:
    """Return whether a column is worth showing: a filter's has several values, another's a value at all."""
    return len(values) > 1 if field in FILTERS else any(value is not None for value in values)
