"""Cells as plain rows: what figures are drawn from and the table of the HTML report shows.

JSON values in SI units, to seven digits as samples are stored. A panel of a figure holds the cells that differ in
backend and length alone; what all panels share stands in `common`, not in their names. "lo" and "hi" are the 95 %
interval of the median latency over that median: of the samples of one round, or of the rounds' medians where there are
several (their range below six rounds, stats.median_interval).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.core import flops, stats
from attnbench.core.case import Case
from attnbench.core.flops import Convention
from attnbench.core.sizes import short
from attnbench.results import case_names, derive
from attnbench.results.cells import Cell

Row = dict[str, Any]

# Field of a row -> metric: what the table, the tips and the figures show of it.
METRICS: Mapping[str, str] = {
    "latency": "latency",
    "ci": "ci",
    "tflops": "tflops",
    "utilization": "utilization",
    "utilization_clock": "utilization_clock",
    "utilization_ceiling": "utilization_ceiling",
    "speedup": "speedup",
    "memory": "memory_peak",
    "power": "power",
    "temperature": "temperature",
    "efficiency": "tflops_per_watt",
    "samples": "samples",
    "error": "error",
    "first_call": "first_call",
}
QUANTILES = (0, 10, 25, 75, 90, 100)
_TITLES: Mapping[str, Callable[[Cell], str]] = {
    "device": lambda c: c.device,
    "dtype": lambda c: c.case.dtype,
    "headdim": lambda c: f"d{case_names.headdim(c.case)}",
    "mask": lambda c: case_names.mask(c.case),
    "pass": lambda c: c.case.direction,
    "other": lambda c: other(c.case),
    "queries": lambda c: _queries(c.case),
}
_SPLITS: tuple[Callable[[Cell], str], ...] = (  # where lengths alone do not tell cells of a panel apart
    lambda c: f"{case_names.heads(c.case)} heads",
    lambda c: f"batch {c.case.shape.batch}",
)


@dataclass(frozen=True)
class Points:
    """All that figures need: the rows of the cells, and the lines that are drawn behind them."""

    backends: tuple[str, ...]  # in the order of legends
    panels: tuple[str, ...]
    common: str  # what all panels share: "NVIDIA H200, bf16"
    cells: tuple[Row, ...]
    lines: tuple[Row, ...]  # roofs and slopes, told apart by "kind"

    def only(self, wanted: str) -> Points:
        """Those of the panels whose title holds every one of the words."""
        kept = [p for p in self.panels if set(wanted.split()) <= set(f"{p} {self.common}".replace(",", " ").split())]
        cells = tuple(row for row in self.cells if row["panel"] in kept)
        roofs = {row["roof"] for row in cells}
        lines = tuple(row for row in self.lines if row.get("panel") in kept or row.get("roof") in roofs)
        backends = tuple(b for b in self.backends if any(row["backend"] == b for row in cells))
        return Points(backends, tuple(kept), self.common, cells, lines)


def points(cells: Sequence[Cell], convention: Convention = "exact") -> Points:
    """The rows of the cells, panel by panel. As in tables, a backend that was skipped throughout has no place.

    One that was skipped throughout a panel has none there: its rows have no slot, so that figures do not mark them.
    """
    tried = {c.backend for c in cells if c.status != "skipped"}
    cells = [c for c in cells if c.backend in tried] or cells
    eager = {(c.device, c.case): interval(c) for c in cells if c.backend == "eager"}
    varying = [name for name, title in _TITLES.items() if len({title(c) for c in cells}) > 1]
    shown = [name for name in _TITLES if name in varying or name in ("headdim", "mask", "pass")]
    panels = _panels(cells, shown)
    roofs = [name for name in shown if name != "mask"]
    rows: list[Row] = []
    for panel, members in panels.items():
        failed = Counter[int]()
        here = {c.backend for c in members if c.status != "skipped"}
        for cell in members:
            length = cell.case.shape.seqlen_k
            marked = cell.status != "ok" and cell.backend in here
            slot = failed[length] if marked else None
            failed[length] += marked
            titles = {"panel": panel, "roof": _title(cell, roofs)}
            rows.append(titles | _row(cell, slot, eager.get((cell.device, cell.case)), convention))
    common = [title(cells[0]) for name, title in _TITLES.items() if name not in shown] if cells else []
    backends = sorted({c.backend for c in cells}, key=case_names.backend_rank)
    rates = {_title(c, roofs): c.rates for c in cells}
    lines = [*_roofs(rates, rows), *_slopes(rows)]
    return Points(tuple(backends), tuple(panels), ", ".join(filter(None, common)), tuple(rows), tuple(lines))


def interval(cell: Cell) -> tuple[float, float] | None:
    """The 95 % interval of the median latency over that median, as (low, high); None where there is none."""
    found = [samples for r in cell.records if r.status == "ok" and (samples := derive.samples(r))]
    values = [stats.median(samples) for samples in found] if len(found) > 1 else found[0] if found else ()
    if len(values) < 2:
        return None
    low, high = stats.median_interval(values)
    middle = stats.median(values)
    return (low / middle, high / middle) if middle else None


def other(case: Case) -> str:
    """What has no place of its own: softcap 30, dropout 0.1."""
    return ", ".join(case_names.extras(case))


def _queries(case: Case) -> str:
    s = case.shape
    return "" if s.seqlen_q == s.seqlen_k else f"seqlen_q {short(s.seqlen_q)}"


def _panels(cells: Iterable[Cell], shown: Sequence[str]) -> dict[str, list[Cell]]:
    """By title, in the order of the report."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_title(cell, shown), []).append(cell)
    return {title: group for name, members in groups.items() for title, group in _split(name, members, _SPLITS)}


def _title(cell: Cell, names: Sequence[str]) -> str:
    return " ".join(filter(None, (_TITLES[name](cell) for name in names)))


def _split(title: str, cells: list[Cell], by: Sequence[Callable[[Cell], str]]) -> Iterable[tuple[str, list[Cell]]]:
    """Further, until a backend has one cell a length."""
    if not by or len({(c.backend, c.case.shape.seqlen_k) for c in cells}) == len(cells):
        return [(title, cells)]
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(by[0](cell), []).append(cell)
    if len(groups) == 1:
        return _split(title, cells, by[1:])
    return [part for name, group in groups.items() for part in _split(f"{title} {name}", group, by[1:])]


def _row(cell: Cell, slot: int | None, eager: tuple[float, float] | None, convention: Convention) -> Row:
    case, shape = cell.case, cell.case.shape
    ok = cell.status == "ok"
    found = {field: cell.value(metric, convention) for field, metric in METRICS.items()}
    clocks = [hz for r in cell.records if r.status == "ok" and (hz := derive.clock(r)) is not None]
    low, high = interval(cell) or (None, None)
    pooled = _relative_samples(cell)
    slow, fast = _ratio(eager, (low, high)) if cell.backend != "eager" else (None, None)
    speedup, memory = found["speedup"], found["memory"]
    env = cell.run.environment
    row = {
        "case": case_names.name(cell),
        "device": cell.device,
        "backend": cell.backend,
        "dtype": case.dtype,
        "headdim": case_names.headdim(case),
        "mask": case_names.mask(case),
        "pass": case.direction,
        "other": ", ".join(filter(None, (_queries(case), other(case)))),
        "seqlen": shape.seqlen_k,
        "batch": shape.batch,
        "heads": case_names.heads(case),
        "status": "ok" if ok else case_names.ENDINGS[cell.status],
        "reason": None if ok else case_names.one_line(cell.reason or "no reason given"),
        "slot": slot,
        "held": ok and cell.held_down,
        **found,
        "lo": low,
        "hi": high,
        "speedup_lo": speedup * slow if speedup and slow else None,
        "speedup_hi": speedup * fast if speedup and fast else None,
        "memory_sequence": memory / shape.batch if memory else None,
        "clock": stats.median(clocks) if clocks else None,
        "clock_top": env.clock_max_hz,
        "power_limit": env.power_limit_w,
        "peak": _tera(cell.rates.peak),
        "ceiling": _tera(cell.rates.ceiling),
        "intensity": flops.flops(case, convention) / flops.nbytes(case) if ok else None,
        "bound": cell.bound,
        **{f"p{p}": stats.percentile(pooled, p) if pooled else None for p in QUANTILES},
    }
    return {name: _short(value) for name, value in row.items()}


def _ratio(
    over: tuple[float, float] | None, under: tuple[float | None, float | None]
) -> tuple[float, float] | tuple[None, None]:
    """The interval of a ratio from those of both sides, by their far ends: wider than it need be."""
    low, high = under
    return (over[0] / high, over[1] / low) if over and low and high else (None, None)


def _relative_samples(cell: Cell) -> list[float]:
    """All samples over the median of their round, less 1."""
    rounds = [derive.samples(r) for r in cell.records if r.status == "ok"]
    return [v / middle - 1 for samples in rounds if samples and (middle := stats.median(samples)) for v in samples]


def _roofs(rates: Mapping[str, derive.Context], rows: Sequence[Row]) -> Iterable[Row]:
    """The corners of each roof, by the datasheet and as measured in the run, over the intensities seen."""
    spans: dict[str, list[float]] = {}
    for row in rows:
        if row["intensity"]:
            spans.setdefault(row["roof"], []).append(row["intensity"])
    for roof, span in spans.items():
        known = rates[roof]
        for which, peak, bandwidth in (
            ("datasheet", known.peak, known.bandwidth),
            ("measured", known.ceiling, known.copy),
        ):
            if peak and bandwidth:
                corners = (min(*span, peak / bandwidth) / 2, peak / bandwidth, max(*span, peak / bandwidth) * 2)
                for x in corners:
                    y = min(peak, bandwidth * x) / 1e12
                    yield {"kind": "roof", "roof": roof, "which": which, "x": _short(x), "y": _short(y)}


def _slopes(rows: Sequence[Row]) -> Iterable[Row]:
    """Lines of slope 1 and 2 under the least and the most memory of a panel, from its shortest length on."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if row["memory_sequence"]:
            panels.setdefault(row["panel"], []).append(row)
    for panel, members in panels.items():
        first, last = min(r["seqlen"] for r in members), max(r["seqlen"] for r in members)
        start = [r["memory_sequence"] for r in members if r["seqlen"] == first]
        if first == last:
            continue
        for which, begin, power in (("∝ n²", max(start), 2), ("∝ n", min(start), 1)):
            for length in (first, last):
                y = begin / 2 * (length / first) ** power
                yield {"kind": "slope", "panel": panel, "which": which, "seqlen": length, "y": _short(y)}


def _tera(rate: float | None) -> float | None:
    return rate / 1e12 if rate else None


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None
