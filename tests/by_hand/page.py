"""The data behind the charts and the table of a page, `attnbench report FILE -f html=PAGE`.

A row of a page is found again in the run file by what it says of its case: what differs between cases stands in its
title, so no two rows of one title and backend, and no two cases of one title, may be.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from . import latency, work
from .audit import SEVEN_DIGITS, Audit, run
from .device import bandwidth, clock_of_peak, peak
from .latency import Measured
from .names import extras, headdim, heads, mask, pattern, size
from .raw import Cell, Record, middle, over_rounds, read, samples

BURST = 0.015  # seconds of work between two readings of the clock
HELD = 0.985  # of the best clock
WORDS = {"wrong": "WRONG", "wrong-kernel": "KERNEL!", "failed": "FAIL", "oom": "OOM", "timeout": "TIMEOUT"}
WORDS |= {"skipped": "skip", "ok": "ok"}
Row = dict[str, Any]


class Page(Measured):
    """A run file, with what the rows of its page share."""

    def median_of_all(self, name: str, dtype: str | None = None) -> float | None:
        """Return the median of a measurement over all records of the run, or those of a dtype."""
        records = (r for r in self.file.records if dtype in (None, r["case"].dtype))
        found = [value for record in records for value in samples(record, name)]
        return statistics.median(found) if found else None

    def matmul(self, dtype: str) -> float | None:
        return self.median_of_all("ceiling_matmul", dtype)


def check(audit: Audit, path: Path) -> None:
    """Compare all rows of the page of a run file, and the lines behind its charts."""
    page, data = Page(read(path)), embedded(path)
    rows = [dict(zip(data["fields"], values, strict=True)) for values in zip(*data["fields"].values(), strict=True)]
    cells = _cells_of_rows(page, rows)
    for row, cell in zip(rows, cells, strict=True):
        where = f"{path.name}: page, {row['shape']}, {row['backend']}"
        for name, value in figures(page, cell).items():
            audit.same(where, name, row[name], value, SEVEN_DIGITS)
    _check_titles(audit, path.name, rows, cells)
    _check_marks(audit, path.name, page, rows, cells)
    _check_roofs(audit, path.name, page, rows, cells, data["lines"])
    _check_slopes(audit, path.name, rows, data["lines"])


def embedded(path: Path) -> dict[str, Any]:
    """Return the data that the charts of the page of a run file draw."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        run("report", path, "-f", f"html={page}")
        found = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert found, f"the page of {path.name} has no charts"
    return dict(json.loads(found[1]))


def _cells_of_rows(page: Page, rows: list[Row]) -> list[Cell]:
    """Return the cell of each row, by what the row says of it. A backend that was skipped throughout has no row."""
    tried = {cell.backend for cell in page.cells.values() if cell.status != "skipped"}
    shown = {identity(cell): cell for cell in page.cells.values() if cell.backend in tried}
    assert len(shown) == sum(cell.backend in tried for cell in page.cells.values()), "two cells of one identity"
    found = [shown.pop((_plain(row["backend"]), *(row[name] for name in _TOLD), _words(row["other"]))) for row in rows]
    assert not shown, f"no row of {[*shown]}"
    return found


_TOLD = ("dtype", "headdim", "mask", "pass", "seqlen", "batch", "heads")


def identity(cell: Cell) -> tuple[Any, ...]:
    """Return what a row says of a case on a backend."""
    case = cell.case
    other = [*extras(case), pattern(case)]
    other += [f"seqlen_q {size(case.seqlen_q)}"] if case.seqlen_q != case.seqlen_k else []
    told = (case.dtype, headdim(case), mask(case), case.direction, case.mean_lengths[1], case.batch, heads(case))
    return (cell.backend, *told, _words(", ".join(filter(None, other))))


def _words(other: str) -> frozenset[str]:
    return frozenset(filter(None, other.split(", ")))


def _plain(backend: str) -> str:
    """Return a backend without its version and what else a page says in brackets."""
    return backend.partition(" ")[0]


def figures(page: Page, cell: Cell) -> Row:
    """Return the figures of a row, by the names that the page has for them."""
    case, known, exact = cell.case, page.latency.get(cell.key), page.is_exact(cell.key)
    seconds, half = (known.value, known.half) if known else (None, None)
    top, at_top = peak(page.file, case.dtype), clock_of_peak(case.dtype)
    rate = None if not exact else "gbps" if case.is_decode else "tflops"
    flops, moved = work.flops(case) / case.ranks, work.ideal_bytes(case) / case.ranks
    tflops, gbps = (known.rate(flops / 1e12), known.rate(moved / 1e9)) if known else (None, None)
    at_clock = None  # of the peak at the clock held
    if known and top and rate == "tflops":
        each = ((t, _clock(cell.ok[n])) for n, t in known.rounds.items())
        at_clock = statistics.median(flops / t / (top * clock / at_top) for t, clock in each if clock)
    limit = {"tflops": _over(top, 1e12), "gbps": _over(bandwidth(page.file), 1e9), None: None}[rate]
    share = _over({"tflops": tflops, "gbps": gbps, None: None}[rate], limit)
    eager = page.latency.get((case.key, "eager"))
    speedup = 1.0 if known and cell.backend == "eager" else None
    slow = fast = None
    if known and eager and cell.backend != "eager":
        speedup = statistics.median(eager.rounds.get(n, eager.value) / t for n, t in known.rounds.items())
        if half is not None and eager.half is not None:
            both = math.exp(half + eager.half)
            slow, fast = speedup / both, speedup * both
    memory = over_rounds(cell, lambda r: max(samples(r, "memory_peak"), default=None))
    watts = over_rounds(cell, lambda r: middle(r, "sustained_power"))
    spread_of_samples = _relative(page, cell)
    return {
        "exact": exact,
        "status": WORDS[cell.status],
        **({"held": _is_held_down(cell)} if page.file.method > 1 else {}),
        "latency": seconds,
        "ci": half,
        "lo": None if half is None else math.exp(-half),
        "hi": None if half is None else math.exp(half),
        "tflops": tflops if rate == "tflops" else None,
        "utilization": share if rate == "tflops" else None,
        "utilization_clock": at_clock,
        "gbps": gbps if rate == "gbps" else None,
        "bandwidth_utilization": share if rate == "gbps" else None,
        "rate": {"tflops": tflops, "gbps": gbps, None: None}[rate],
        "unit": {"tflops": "TFLOP/s", "gbps": "GB/s", None: None}[rate],
        "limit": limit,
        "share": share,
        "by_flops": tflops if exact and cell.status == "ok" else None,
        "intensity": flops / moved if exact and cell.status == "ok" else None,
        "speedup": speedup,
        "speedup_lo": slow,
        "speedup_hi": fast,
        "memory_peak": memory,
        "memory_sequence": _over(memory, case.batch),
        "sustained_power": watts,
        "tflops_per_watt": over_rounds(cell, lambda r: _per_watt(r, flops)) if rate == "tflops" else None,
        "temperature": over_rounds(cell, lambda r: middle(r, "temperature")),
        "samples": over_rounds(cell, lambda r: len(latency.calls(r, page.spans)) or None),
        "error": over_rounds(cell, _error),
        "first_call": over_rounds(cell, lambda r: middle(r, "first_call")),
        "approximation_error": over_rounds(cell, lambda r: (r.get("approximation") or {}).get("error")),
        "mass_kept": over_rounds(cell, lambda r: (r.get("approximation") or {}).get("mass_kept")),
        "clock": over_rounds(cell, _clock),
        "clock_top": page.file.head["environment"]["clock_max_hz"],
        "power_limit": page.file.head["environment"]["power_limit_w"],
        "peak": _over(top, 1e12),
        "ceiling": _over(page.matmul(case.dtype), 1e12),
        "bandwidth": _over(bandwidth(page.file), 1e9),
        "copy": _over(page.median_of_all("ceiling_copy"), 1e9),
        **{
            f"p{p}": float(np.percentile(spread_of_samples, p)) if spread_of_samples else None for p in (0, 10, 90, 100)
        },
    }


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _clock(record: Record) -> float | None:
    held = middle(record, "clock_held")
    return middle(record, "clock_sm") if held is None else held


def _is_held_down(cell: Cell) -> bool:
    return cell.status == "ok" and any(map(_held_down, cell.ok.values()))


def _held_down(record: Record) -> bool:
    """Whether, by method 2, the clock was below its best before the calls, while they ran, or after long ones."""
    pairs = [("clock_before", "clock_idle"), ("clock_held", "clock_best")]
    pairs += [("clock_after", "clock_idle")] if (middle(record, "time") or 0) > BURST else []
    read = [(middle(record, clock), middle(record, best)) for clock, best in pairs]
    return any(clock is not None and best is not None and clock < HELD * best for clock, best in read)


def _error(record: Record) -> float | None:
    """Return the largest error of a result over what is allowed."""
    errors = (record.get("accuracy") or {}).get("errors", {}).values()
    shares = [float(e["max_error"]) / e["tolerance"] if e["tolerance"] else 0.0 for e in errors]
    return max(shares, default=None)


def _per_watt(record: Record, flops: float) -> float | None:
    seconds, watts = samples(record, "sustained"), middle(record, "sustained_power")
    return flops / 1e12 / statistics.fmean(seconds) / watts if seconds and watts else None


def _relative(page: Page, cell: Cell) -> list[float]:
    """Return all samples over the median of their round, less 1."""
    rounds = latency.rounds_of(cell, page.spans).values()
    return [seconds / statistics.median(found) - 1 for found in rounds for seconds in found]


def _check_titles(audit: Audit, name: str, rows: list[Row], cells: list[Cell]) -> None:
    """Compare titles with cases: one case a title, in words, and one row a title and backend."""
    cases: dict[str, set[str]] = defaultdict(set)
    for row, cell in zip(rows, cells, strict=True):
        cases[row["shape"]].add(cell.case.key)
    twice = len(rows) - len({(row["shape"], row["backend"]) for row in rows})
    audit.same(f"{name}: page", "rows of one title and backend", twice, 0)
    for shape, found in cases.items():
        audit.same(f"{name}: page, {shape}", "cases of one title", len(found), 1)
        in_words = not any(key[:8] in shape for key in found)
        audit.same(f"{name}: page, {shape}", "titles without the hash of a case", in_words, True)


def _check_marks(audit: Audit, name: str, page: Page, rows: list[Row], cells: list[Cell]) -> None:
    """Compare who is the best of a shape, which shapes have an approximation, and the crosses that stack."""
    shapes: dict[str, list[tuple[Row, Cell]]] = defaultdict(list)
    panels: dict[str, list[Cell]] = defaultdict(list)
    for row, cell in zip(rows, cells, strict=True):
        shapes[row["shape"]].append((row, cell))
        panels[row["panel"]].append(cell)
    for shape, found in shapes.items():
        where = f"{name}: page, {shape}"
        rivals = {c.key: page.latency[c.key] for _, c in found if page.is_exact(c.key) and c.key in page.latency}
        winners = latency.fastest({key: (one.value, one.half) for key, one in rivals.items()})
        word = "best" if len(winners) == 1 else "= best"
        near = any(page.cells[c.key].status == "ok" and c.backend in page.approximate for _, c in found)
        crosses = 0
        tried = {c.backend for c in panels[found[0][0]["panel"]] if c.status != "skipped"}
        for row, cell in found:
            best = word if cell.key in winners and len(rivals) > 1 else None
            if cell.key in rivals and rivals[cell.key].is_hardly_known:
                best = "? hardly known"
            audit.same(f"{where}, {row['backend']}", "best", row["best"], best)
            audit.same(f"{where}, {row['backend']}", "near", row["near"], shape if near else None)
            marked = cell.status != "ok" and cell.backend in tried
            audit.same(f"{where}, {row['backend']}", "slot", row["slot"], crosses if marked else None)
            crosses += marked


def _check_roofs(audit: Audit, name: str, page: Page, rows: list[Row], cells: list[Cell], lines: list[Row]) -> None:
    """Compare the roofs: min(peak, bandwidth x intensity), by the datasheet and as measured, and the exponentials."""
    drawn: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "roof":
            drawn[line["roof"], line["which"]].append((line["x"], line["y"]))
    expected: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for roof in dict.fromkeys(row["roof"] for row in rows):
        own = [cell for row, cell in zip(rows, cells, strict=True) if row["roof"] == roof]
        right = [cell for cell in own if page.is_exact(cell.key) and cell.status == "ok"]
        found = [work.flops(cell.case) / work.ideal_bytes(cell.case) for cell in right]
        if not found:
            continue
        dtype = own[0].case.dtype
        limits = {"datasheet": (peak(page.file, dtype), bandwidth(page.file))}
        limits["measured"] = (page.matmul(dtype), page.median_of_all("ceiling_copy"))
        for which, (most, moved) in limits.items():
            if most and moved:
                at = (min(*found, most / moved) / 2, most / moved, max(*found, most / moved) * 2)
                expected[roof, which] = [(x, min(most, moved * x) / 1e12) for x in at]
        if exponentials := page.median_of_all("ceiling_exp"):
            of_one = {work.flops(c.case) / work.exponentials(c.case) for c in right}
            audit.same(f"{name}: page, roof {roof}", "FLOPs an exponential, of how many kinds", len(of_one), 1)
            height = exponentials * of_one.pop() / 1e12
            expected[roof, "exp"] = [(min(found) / 2, height), (max(found) * 2, height)]
    _same_lines(audit, f"{name}: page, roof", drawn, expected)


def _check_slopes(audit: Audit, name: str, rows: list[Row], lines: list[Row]) -> None:
    """Compare the slopes of memory: from half the least, and half the most, of the shortest length."""
    drawn: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "slope":
            drawn[line["panel"], line["which"]].append((line["seqlen"], line["y"]))
    expected: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for panel in dict.fromkeys(row["panel"] for row in rows):
        own = [(r["seqlen"], r["memory_sequence"]) for r in rows if r["panel"] == panel and r["memory_sequence"]]
        first, last = min(own, default=(0, 0))[0], max(own, default=(0, 0))[0]
        if first < last:
            start = [memory for length, memory in own if length == first]
            for which, begin, power in (("∝ n²", max(start), 2), ("∝ n", min(start), 1)):
                expected[panel, which] = [(n, begin / 2 * (n / first) ** power) for n in (first, last)]
    _same_lines(audit, f"{name}: page, slope", drawn, expected)


def _same_lines(audit: Audit, where: str, drawn: Any, expected: Any) -> None:
    audit.same(where, "lines", sorted(map(str, drawn)) == sorted(map(str, expected)), True)
    for key in drawn.keys() & expected.keys():
        for (x, y), (own_x, own_y) in zip(drawn[key], expected[key], strict=True):
            audit.same(f"{where} {key}", "x of a line", x, own_x, 2 * SEVEN_DIGITS)
            audit.same(f"{where} {key}", "y of a line", y, own_y, 2 * SEVEN_DIGITS)
