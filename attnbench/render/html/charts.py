"""The data of a page's charts and of its interactive table: one row of JSON values for each cell.

Values are in SI units (throughput in TFLOP/s), with seven digits. Cells that differ only in backend and sequence length
share a panel of a chart. The titles of panels say how panels differ, `Charts.common` has what all share. A shape is a
panel's title and a length, on all devices; "bar" names the bar of a cell in the ranking of its shape.

"lo" and "hi" of a row are the 95 % interval of the median latency over that median (Cell.latency_interval).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbench.core import stats
from attnbench.core.flops import Convention, exps, ideal_bytes
from attnbench.core.groups import grouped
from attnbench.core.sizes import format_size
from attnbench.core.text import one_line
from attnbench.results import case_names, metrics
from attnbench.results.cells import Cell, contest_of

Row = dict[str, Any]

# The metrics that the table, the tips and the charts show, each a field of a row.
METRICS = (
    *("latency", "ci", "tflops", "utilization", "utilization_clock", "gbps", "bandwidth_utilization", "speedup"),
    *("memory_peak", "sustained_power", "tflops_per_watt", "temperature", "samples", "error", "first_call"),
    *("approximation_error", "mass_kept"),
)
_OF_RATE = {  # the rate of a panel -> metrics that only such panels have
    "tflops": ("tflops", "utilization", "utilization_clock", "tflops_per_watt"),
    "gbps": ("gbps", "bandwidth_utilization"),
}
_OF_EVERY_OBJECT = {  # names that each object of JavaScript has: Object.prototype, ECMA-262 20.1.3
    *(
        "constructor",
        "hasOwnProperty",
        "isPrototypeOf",
        "propertyIsEnumerable",
        "toLocaleString",
        "toString",
        "valueOf",
    ),
    *("__proto__", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__"),
}
QUANTILES = (0, 10, 90, 100)  # percents of the samples, each a field of a row such as "p10"

# Names of case_names.AXES that are in every title:
_ALWAYS = ("headdim", "causal", "direction")
# Names that are in a title where a length would otherwise have several cases in one panel:
_WHERE_NEEDED = ("nheads", "batch")
# Names with a field of their own in a row; the others are in "other", and in a title where they vary:
_OWN_FIELD = ("dtype", *_ALWAYS, *_WHERE_NEEDED, "seqlen")
_OTHERS = tuple(axis for axis in case_names.AXES if axis not in _OWN_FIELD)


@dataclass(frozen=True)
class Charts:
    """The data of all charts and of the interactive table."""

    backends: tuple[str, ...]  # in the order of legends
    panels: tuple[str, ...]  # their titles, in the order of the report
    common: str  # what all panels have in common: "NVIDIA H200, bf16"
    rows: tuple[Row, ...]  # one for each cell
    lines: tuple[Row, ...]  # points of the roofs and slopes behind the cells; "kind" is "roof" or "slope"
    convention: Convention = "exact"  # by which FLOPs are counted
    note: str = ""  # how FLOPs are counted and what utilisation is a share of, in one sentence

    def only(self, words: str) -> Charts:
        """Return the data of the shapes whose names, with what all panels have in common, contain all of the words.

        The name of a shape is the title of its panel and its length, so that "d128 causal 16k" is one shape in each
        panel.
        """
        wanted = set(words.split())
        rows = tuple(r for r in self.rows if wanted <= {*_words(r["panel"]), *_words(r["shape"]), *_words(self.common)})
        kept = dict.fromkeys(row["panel"] for row in rows)
        roofs = {row["roof"] for row in rows}
        return replace(
            self,
            backends=tuple(b for b in self.backends if any(row["backend"] == b for row in rows)),
            panels=tuple(kept),
            rows=rows,
            lines=tuple(line for line in self.lines if line.get("panel") in kept or line.get("roof") in roofs),
        )


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def charts(cells: Sequence[Cell], note: str = "") -> Charts:
    """Return the rows of the cells, panel by panel, with the roofs and slopes to draw behind them.

    A backend that was skipped in every cell has no rows, as it has no column in a table. Where it was skipped in every
    cell of one panel, its rows there have no "slot", so that charts do not mark them.
    """
    tried = {c.backend for c in cells if c.status != "skipped"}
    cells = [c for c in cells if c.backend in tried] or cells
    of_cells = ("device", "dtype", *_ALWAYS, *_OTHERS)
    title_parts = [axis for axis in of_cells if axis in _ALWAYS or len({_said(axis, c) for c in cells}) > 1]
    roof_parts = [axis for axis in title_parts if axis != "causal"]
    panels = _panels(cells, title_parts)
    eager = {(c.device, c.case): c.latency_interval for c in cells if c.backend == "eager"}
    rows: list[Row] = []
    on_several = "device" in title_parts
    short = short_devices([*dict.fromkeys(cell.device for cell in cells)])
    for panel, members in panels.items():
        rate = _rate(members)
        marks = Counter[int]()  # crosses at each length, which figures stack
        tried_here = {c.backend for c in members if c.status != "skipped"}
        by_length = grouped(members, lambda c: case_names.seqlen(c.case))
        fastest = {n: _fastest(of_shape) for n, of_shape in by_length.items()}
        near = {n for n, of_shape in by_length.items() if any(c.value("approximation_error") for c in of_shape)}
        for cell in members:
            length = case_names.seqlen(cell.case)
            marked = cell.status != "ok" and cell.backend in tried_here
            slot = marks[length] if marked else None
            marks[length] += marked
            shape = f"{panel} {format_size(length)}"
            near_of = shape if length in near else None
            shape = shape.removeprefix(f"{cell.device} ") if on_several else shape
            row = _row(cell, slot, eager.get((cell.device, cell.case)), rate)
            bar = f"{row['backend']}, {short[cell.device]}" if on_several else row["backend"]
            titles = {"panel": panel, "shape": shape, "roof": _title(cell, roof_parts), "bar": bar}
            mark = {"best": fastest[length].get(id(cell)), "near": near_of}
            rows.append(titles | mark | row)
    common = [_said(axis, cells[0]) for axis in of_cells if axis not in title_parts] if cells else []
    by_roof = grouped(cells, lambda c: _title(c, roof_parts))
    return Charts(
        backends=tuple(map(_drawn, sorted({c.backend_name for c in cells}, key=case_names.backend_rank))),
        panels=tuple(panels),
        common=", ".join(filter(None, common)),
        rows=tuple(rows),
        lines=(*_roofs(by_roof, rows), *_slopes(panels, rows)),
        convention=cells[0].source.convention if cells else "exact",
        note=note,
    )


def short_devices(labels: Sequence[str]) -> dict[str, str]:
    """Return device label -> a short name that distinguishes it: its model, or its run where all models are equal."""
    parts = {label: label.partition(" (") for label in labels}
    if len({model for model, *_ in parts.values()}) <= 1:
        return {label: run.removesuffix(")") or model for label, (model, _, run) in parts.items()}
    words = [label.split() for label in labels]
    alike = next(i for i, each in enumerate(zip(*words, strict=False)) if len({*each}) > 1)
    return {label: " ".join(of[alike:]) for label, of in zip(labels, words, strict=True)}


def _drawn(backend: str) -> str:
    """Return a backend's name for charts: "toString()" where every object of JavaScript has the name.

    Vega draws no bar under such a name.
    """
    return f"{backend}()" if backend in _OF_EVERY_OBJECT else backend


def _said(axis: str, cell: Cell) -> str:
    """Return how a title writes a cell's value on an axis."""
    if axis == "device":
        return cell.device
    of = case_names.AXES[axis]
    return of.brief(cell.case) if axis in _ALWAYS else of.label(cell.case)


def _title(cell: Cell, axes: Iterable[str]) -> str:
    return " ".join(filter(None, (_said(axis, cell) for axis in axes)))


def _panels(cells: Iterable[Cell], title_parts: Sequence[str]) -> dict[str, list[Cell]]:
    """Return panel title -> its cells, in the order of the report."""
    panels = grouped(cells, lambda cell: _title(cell, title_parts))
    return {part: found for title, members in panels.items() for part, found in _split(title, members).items()}


def _split(title: str, cells: list[Cell], by: Sequence[str] = _WHERE_NEEDED) -> dict[str, list[Cell]]:
    """Split a panel by further parts of a title, until there is one case at each length."""
    if not by or len({c.case for c in cells}) == len({case_names.seqlen(c.case) for c in cells}):
        return {title: cells}
    groups = grouped(cells, lambda cell: _said(by[0], cell))
    named = {f"{title} {said}" if len(groups) > 1 else title: found for said, found in groups.items()}
    return {part: of_part for name, found in named.items() for part, of_part in _split(name, found, by[1:]).items()}


def _fastest(rivals: Sequence[Cell]) -> dict[int, str]:
    """Return id(cell) -> its mark among the cells of one shape: "best", "= best" where several tie, "? hardly known".

    Where a hardly known cell may be faster, none is the best.
    """
    measured = [cell for cell in rivals if cell.is_ranked and cell.value("latency")]
    found = contest_of(measured).winners
    doubtful = {id(cell): "? hardly known" for cell in measured if cell.is_hardly_known()}
    return doubtful | {id(cell): "best" if len(found) == 1 else "= best" for cell in found if len(measured) > 1}


def _rate(cells: Sequence[Cell]) -> str | None:
    """Return the rate on the panel's axis, "tflops" or "gbps": the usual rate of the panel's longest case.

    None where that case usually shows neither.
    """
    longest = max(cells, key=lambda cell: case_names.seqlen(cell.case))
    return next((rate for rate in metrics.usual(longest.case, longest.rates) if rate in _OF_RATE), None)


def _row(cell: Cell, slot: int | None, eager: tuple[float, float] | None, rate: str | None) -> Row:
    """Return the row of a cell, with the rate of its panel.

    `slot` counts crosses of one panel and length; `eager` is eager's latency interval.
    """
    case, shape, env = cell.case, cell.case.shape, cell.run.environment
    ok = cell.status == "ok"
    values = {name: cell.value(name) for name in METRICS}
    usual = rate if cell.is_exact else None
    intensity = cell.flops / ideal_bytes(case) if ok and cell.is_exact else None
    by_flops = values["tflops"] if intensity else None
    for other in _OF_RATE.keys() - {usual}:
        values |= dict.fromkeys(_OF_RATE[other])
    memory = values["memory_peak"]
    clocks = [hertz for row in cell.ok if (hertz := metrics.clock(row)) is not None]
    low, high = cell.latency_interval or (None, None)
    samples = _relative_samples(cell)
    row = {
        "case": cell.name,
        "device": cell.device,
        "backend": _drawn(cell.backend_name),
        "dtype": case.dtype,
        "headdim": case_names.headdim(case),
        "mask": case_names.mask(case),
        "pass": case.direction,
        "other": ", ".join(filter(None, (case_names.AXES[axis].label(case) for axis in _OTHERS))),
        "seqlen": case_names.seqlen(cell.case),
        "batch": shape.batch,
        "heads": case_names.heads(case),
        "exact": cell.is_exact,
        "status": "ok" if ok else case_names.ENDINGS[cell.status],
        "reason": None if ok else one_line(cell.reason or "no reason given"),
        "slot": slot,
        "held": ok and cell.held_down,
        **values,
        "rate": values[usual] if usual else None,
        "unit": metrics.METRICS[usual].unit if usual else None,
        "limit": _limit(cell, usual),
        "share": metrics.share_of_limit(usual, values.get, memory_bound=False) if usual else None,
        "by_flops": by_flops,
        "lo": low,
        "hi": high,
        **_speedup_interval(cell, eager),
        "memory_sequence": memory / shape.batch if memory else None,
        "clock": stats.median(clocks) if clocks else None,
        "clock_top": env.clock_max_hz,
        "power_limit": env.power_limit_w,
        "peak": _over(cell.rates.peak, 1e12),
        "ceiling": _over(cell.rates.ceiling, 1e12),
        "bandwidth": _over(cell.rates.bandwidth, 1e9),
        "copy": _over(cell.rates.copy, 1e9),
        "intensity": intensity,
        **{f"p{p}": stats.percentile(samples, p) if samples else None for p in QUANTILES},
    }
    return {name: _seven_digits(value) for name, value in row.items()}


def _speedup_interval(cell: Cell, eager: tuple[float, float] | None) -> Row:
    """Return both ends of the speed-up: the least over the most, the most over the least. It is wider than 95 %."""
    speedup, own = cell.value("speedup"), cell.latency_interval
    if cell.backend == "eager" or not (speedup and own and eager and all((*own, *eager))):
        return {"speedup_lo": None, "speedup_hi": None}
    return {"speedup_lo": speedup * (eager[0] / own[1]), "speedup_hi": speedup * (eager[1] / own[0])}


def _relative_samples(cell: Cell) -> list[float]:
    """Return every sample of a cell over the median of its round, minus 1."""
    rounds = [row.samples for row in cell.ok]
    return [v / middle - 1 for samples in rounds if samples and (middle := stats.median(samples)) for v in samples]


def _roofs(by_roof: Mapping[str, Sequence[Cell]], rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the three corners of each roof over the intensities that occur: by the datasheet, and as measured.

    Yield too the two ends of the limit by the softmax's exponentials, where their rate was measured.
    """
    for roof, cells in by_roof.items():
        known = cells[-1].rates
        found = [row["intensity"] for row in rows if row["roof"] == roof and row["intensity"]]
        exact = next((c for c in cells if c.is_exact and not c.case.step and c.case.kind == "softmax"), None)
        if found and known.exp and exact:
            y = known.exp * exact.flops / exps(exact.case) / 1e12
            for x in (min(found) / 2, max(found) * 2):
                yield {"kind": "roof", "roof": roof, "which": "exp", "x": _seven_digits(x), "y": _seven_digits(y)}
        limits = {"datasheet": (known.peak, known.bandwidth), "measured": (known.ceiling, known.copy)}
        for which, (peak, bandwidth) in limits.items() if found else ():
            if peak and bandwidth:
                ridge = peak / bandwidth
                for x in (min(*found, ridge) / 2, ridge, max(*found, ridge) * 2):
                    y = min(peak, bandwidth * x) / 1e12
                    yield {"kind": "roof", "roof": roof, "which": which, "x": _seven_digits(x), "y": _seven_digits(y)}


def _slopes(panels: Iterable[str], rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the ends of two lines in each panel: memory linear and quadratic in the length.

    Both start at the shortest length, at half the least and half the most memory there.
    """
    for panel in panels:
        found = [(r["seqlen"], r["memory_sequence"]) for r in rows if r["panel"] == panel and r["memory_sequence"]]
        first, last = min(found, default=(0, 0))[0], max(found, default=(0, 0))[0]
        if first == last:
            continue
        start = [memory for length, memory in found if length == first]
        for which, begin, power in (("∝ n²", max(start), 2), ("∝ n", min(start), 1)):
            for length in (first, last):
                y = begin / 2 * (length / first) ** power
                yield {"kind": "slope", "panel": panel, "which": which, "seqlen": length, "y": _seven_digits(y)}


def _limit(cell: Cell, rate: str | None) -> float | None:
    """Return the datasheet's limit of a rate, in its unit: the peak in TFLOP/s, or the bandwidth in GB/s."""
    limits = {"tflops": (cell.rates.peak, 1e12), "gbps": (cell.rates.bandwidth, 1e9)}
    return _over(*limits[rate]) if rate else None


def _over(rate: float | None, unit: float) -> float | None:
    return rate / unit if rate else None


def _seven_digits(value: Any) -> Any:
    """Return a float as JSON has it, None where it is not finite; other values unchanged."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None
