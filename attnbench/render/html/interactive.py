"""The interactive parts of a page: filters, charts, and a table to sort and filter. assets/charts.js draws them.

Charts and table are drawn in the browser from one array of rows. Vega draws a chart when it comes into view, and the
table shows its first rows only, so that a page of 5,000 cells opens in two seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from attnbench.core.formats import digits, duration, megahertz, percent, size, times
from attnbench.render.html import palette, vega_spec
from attnbench.render.html.charts import Charts, Row
from attnbench.render.html.elements import Markup, Part, asset, element, filled, lines, script_data, scrolling, section
from attnbench.render.html.figures import VegaFigure, drawable
from attnbench.results.metrics import METRICS

SCRIPTS = ("shared.js", "vega.min.js", "vega-lite.min.js", "charts.js")  # in assets/, in the order of a page
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
_WRITERS: Mapping[str, Callable[[float], str]] = {  # how `finding` writes a field; digits otherwise
    **dict.fromkeys(("utilization", "utilization_clock", "approximation_error", "p0"), percent),
    **dict.fromkeys(("latency",), duration),
    **dict.fromkeys(("memory_sequence",), size),
    "speedup": times,
    "clock": megahertz,
    "sustained_power": lambda watts: f"{digits(watts)} W",
}
_WORTH_A_PART = 40  # least characters of JSON for which a shared part is worth it
_IN_UNITS = ("tflops", "gbps", "by_flops", "tflops_per_watt")  # fields whose axis has the unit in its title
ALWAYS_SHOWN = ("backend", "seqlen", "status")  # columns that are shown even where all cells have the same value
FILTERS: Mapping[str, str] = {  # field of a row -> the title of its checkboxes
    "device": "Device",
    "dtype": "dtype",
    "headdim": "Head dimension",
    "mask": "Mask",
    "pass": "Pass",
    "other": "Other",
}


class Parts:
    """Parts of specifications and columns, each once: figures, layers and the pages of a site have most in common.

    Written out, they would be most of a page. A part may hold parts.
    """

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._places: dict[str, int] = {}  # part as text -> its place

    def packed(self, item: Any) -> Any:
        """Return an item with {"part": i} in the place of each part that is worth it."""
        if isinstance(item, dict):
            item = {name: self.packed(one) for name, one in item.items()}
        elif isinstance(item, list | tuple):
            item = [self.packed(one) for one in item]
        else:
            return item
        text = json.dumps(item)
        if len(text) < _WORTH_A_PART:
            return item
        if text not in self._places:
            self._places[text] = len(self.found)
            self.found.append(item)
        return {"part": self._places[text]}


def filters(charts: Charts) -> Markup:
    """Return the form with a checkbox for each backend, which is also the legend, and for each value that varies."""
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
    """Return the charts that can be drawn, and the table."""
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
    return [before, *(_figure(figure, charts) for figure in drawn), _table()]


def _figure(figure: VegaFigure, charts: Charts) -> Part:
    label = f"{figure.title}. {finding(figure, charts)} Arrow keys read its values, and the table below has them."
    shape = element("label", "Shape ", element("select", id="shape")) if figure.name == "ranking" else ""
    save = element("button", "Save SVG", type="button", data_save=figure.name)
    return section(
        figure.name,
        figure.title,
        element("p", figure.caption, class_="quiet"),
        "" if shape else element("p", class_="legend"),
        element("p", shape, save, class_="tools"),
        element("div", class_="drawing", role="img", aria_label=label),
        class_="figure",
    )


def finding(figure: VegaFigure, charts: Charts) -> str:
    """Return the least and the largest value of a chart and the cells that have them, for readers who cannot see it."""
    write = _WRITERS.get(figure.field, digits)
    found = [row for row in charts.rows if row[figure.field] is not None]
    least, most = (end(found, key=lambda row: row[figure.field]) for end in (min, max))
    unit = f" {figure.y['title']}" if figure.field in _IN_UNITS else ""
    each = (
        f"{end}: {write(row[figure.field])}{unit or _unit(figure, row)} with {row['bar']}, {row['shape']}."
        for end, row in (("Least", least), ("Most", most))
    )
    return " ".join(each)


def _unit(figure: VegaFigure, row: Row) -> str:
    return f" {row['unit']}" if figure.field == "rate" else ""


def _table() -> Part:
    off: Mapping[str, str] = {"autocomplete": "off", "spellcheck": "false"}
    search = element("input", type="search", id="find", placeholder="causal 16k skip", **off)
    count = element("span", class_="quiet", id="count", role="status")
    save = element("button", "Save CSV", type="button", id="save")
    table = element("table", element("thead"), element("tbody"), id="cells")
    return section(
        "table",
        "Table",
        element("p", element("label", "Find ", search), save, " ", count, class_="tools"),
        scrolling(table, "All cells", "scroll limited"),
        element("p", element("button", type="button", id="more", hidden=True)),
    )


def scripts_data(charts: Charts, of_site: Parts | None = None) -> Markup:
    """Return the element for tips, and the data that charts.js reads."""
    return lines(element("div", id="tip", role="status", hidden=True), script_data("data", data(charts, of_site)))


def script(name: str) -> Markup:
    """Return the text of one of SCRIPTS, without the address of a file that no page has."""
    return Markup(asset(name).partition("//# sourceMappingURL")[0])


def data(charts: Charts, of_site: Parts | None = None) -> dict[str, Any]:
    """Return the data that charts.js reads; in a site the parts of specifications go to those that its pages share."""
    every = {name: [row[name] for row in charts.rows] for name in next(iter(charts.rows), ())}
    alike = {name: values[0] for name, values in every.items() if all(value == values[0] for value in values)}
    coded = {name: _coded(values) for name, values in every.items() if name not in alike and _is_text(values)}
    marks = palette.backend_marks(charts.backends)
    drawn = drawable(charts)
    parts = of_site or Parts()
    return {
        "number": len(charts.rows),
        "fields": {name: values for name, values in every.items() if name not in alike and name not in coded},
        "coded": coded,  # fields with text
        "alike": alike,  # the fields that are the same in all rows
        "lines": charts.lines,
        "panels": charts.panels,
        "backends": [
            {"name": name, "color": mark.color, "dash": palette.DASHES[mark.dash], "shape": mark.shape}
            for name, mark in marks.items()
        ],
        "columns": [
            parts.packed(
                dict(zip(("field", "title", "kind", "doc"), column, strict=True))
                | {"better": METRICS[column[0]].better if column[0] in METRICS else None}
            )
            for column in COLUMNS
            if column[0] in ALWAYS_SHOWN or _says_something(column[0], {*every.get(column[0], ())})
        ],
        "filters": list(FILTERS),
        "figures": [
            {
                "name": figure.name,
                "panel": figure.panel,
                "lines": figure.lines,
                "field": figure.field,
                "spec": parts.packed(vega_spec.spec(figure, charts, PANEL, 1, legend=False)),
            }
            for figure in drawn
        ],
        "parts": None if of_site else parts.found,
    }


def _is_text(values: Iterable[Any]) -> bool:
    return any(isinstance(value, str) for value in values)


def _coded(values: Sequence[str | None]) -> dict[str, list[Any]]:
    """Return the distinct values, and each row's index into them: names of panels and cases recur in many rows."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return {"of": [*places], "at": [places[value] for value in values]}


def _says_something(field: str, values: Collection[Any]) -> bool:
    """Return whether a column is worth showing: a filter's column needs several values, any other a value."""
    return len(values) > 1 if field in FILTERS else any(value is not None for value in values)
