"""The data behind the charts and the table of a page, `attnbench report FILE -f html=PAGE`."""

from __future__ import annotations

import json
import math
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import latency, work
from .audit import SEVEN_DIGITS, Audit, run
from .device import bandwidth, clock_of_peak, peak
from .latency import Measured
from .raw import Case, Cell, Record, memory_peak, middle, over_rounds, read, samples

WORDS = {"wrong": "WRONG", "wrong-kernel": "KERNEL!", "failed": "FAIL", "oom": "OOM", "timeout": "TIMEOUT"}
WORDS |= {"skipped": "skip", "ok": "ok"}
Row = dict[str, Any]


class Page(Measured):
    """A run file with the common data of its page's rows."""

    def median_of_all(self, name: str, dtype: str | None = None) -> float | None:
        """Return the median of a measurement over all records of the run, or over the records of a dtype."""
        records = (r for r in self.file.records if dtype in (None, r["case"].dtype))
        found = [value for record in records for value in samples(record, name)]
        return statistics.median(found) if found else None

    def rate(self, case: Case) -> str | None:
        """Return the rate of a case by its limit; None where only its time says something."""
        by = work.limit(case, peak(self.file, case.dtype), bandwidth(self.file))
        return {"compute": "tflops", "memory": "gbps"}.get(by)

    def matmul(self, dtype: str) -> float | None:
        return self.median_of_all("ceiling_matmul", dtype)


def check(audit: Audit, path: Path, text: str = "") -> None:
    """Check all rows of the page of a run file, and the marks of the best of each shape.

    `text` is the page; the default is the page of `attnbench report`.
    """
    page, fields = Page(read(path)), embedded(text or report_page(path), path.name)
    rows = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
    shapes: dict[str, list[tuple[Row, Cell]]] = defaultdict(list)
    found = [*_cells_of_rows(page, rows)]
    longest: dict[str, tuple[Row, Cell]] = {}  # of each panel, which has one rate
    for row, cell in found:
        longest[row["panel"]] = max(longest.get(row["panel"], (row, cell)), (row, cell), key=lambda of: of[0]["seqlen"])
    for row, cell in found:
        rate = page.rate(longest[row["panel"]][1].case)
        shapes[row["shape"]].append((row, cell))
        for name, value in figures(page, cell, rate).items():
            audit.same(f"{path.name}: page, {row['shape']}, {row['backend']}", name, row[name], value, SEVEN_DIGITS)
    for shape, of_shape in shapes.items():
        rivals = {c.key: page.latency[c.key] for _, c in of_shape if page.is_exact(c.key) and c.key in page.latency}
        winners = latency.fastest({key: (one.value, one.half) for key, one in rivals.items()})
        word = "best" if len(winners) == 1 else "= best"
        for row, cell in of_shape:
            best = word if cell.key in winners and len(rivals) > 1 else None
            if cell.key in rivals and rivals[cell.key].is_hardly_known:
                best = "? hardly known"
            audit.same(f"{path.name}: page, {shape}, {row['backend']}", "best", row["best"], best)


def _cells_of_rows(page: Page, rows: list[Row]) -> Iterator[tuple[Row, Cell]]:
    """Yield each row with its cell, matched by sizes and by the order of latencies."""
    tried = {cell.backend for cell in page.cells.values() if cell.status != "skipped"}  # skipped cells have no row
    found: dict[Any, tuple[list[Row], list[Cell]]] = defaultdict(lambda: ([], []))
    for row in rows:
        name = row["backend"].partition(" ")[0]  # without the version
        found[(name, *(row[of] for of in ("dtype", "pass", "seqlen", "batch", "status")))][0].append(row)
    for cell in (cell for cell in page.cells.values() if cell.backend in tried):
        case = cell.case
        sizes = case.dtype, case.direction, case.mean_lengths[1], case.batch, WORDS[cell.status]
        found[(cell.backend, *sizes)][1].append(cell)
    for of_rows, of_cells in found.values():
        of_rows.sort(key=lambda row: row["latency"] or 0)
        of_cells.sort(key=lambda cell: page.latency[cell.key].value if cell.key in page.latency else 0)
        yield from zip(of_rows, of_cells, strict=True)


def report_page(path: Path) -> str:
    """Return the page of a run file."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        run("report", path, "-f", f"html={page}")
        return page.read_text()


def embedded(text: str, name: str) -> dict[str, list[Any]]:
    """Return the fields of the rows that the charts of a page draw."""
    found = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found, f"the page of {name} has no charts"
    data = json.loads(found[1])
    alike = {name: [value] * data["number"] for name, value in data["alike"].items()}
    coded = {name: [found["of"][place] for place in found["at"]] for name, found in data["coded"].items()}
    return {**data["fields"], **coded, **alike}


def figures(page: Page, cell: Cell, rate: str | None) -> Row:
    """Return the figures of a row by their names on the page, with the rate of its panel."""
    case, known, exact = cell.case, page.latency.get(cell.key), page.is_exact(cell.key)
    seconds, half = (known.value, known.half) if known else (None, None)
    top, at_top = peak(page.file, case.dtype), clock_of_peak(case.dtype)
    rate = rate if exact else None
    flops, moved = work.flops(case) / case.ranks, work.ideal_bytes(case) / case.ranks
    tflops, gbps = (known.rate(flops / 1e12), known.rate(moved / 1e9)) if known else (None, None)
    at_clock = None  # share of the peak at the clock held
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
    memory = over_rounds(cell, memory_peak)
    watts = over_rounds(cell, lambda r: middle(r, "sustained_power"))
    spread_of_samples = _relative(page, cell)
    return {
        "exact": exact,
        "status": WORDS[cell.status],
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
        "samples": over_rounds(cell, lambda r: len(latency.calls(r, page.spans)) or None),
        "error": over_rounds(cell, _error),
        "approximation_error": over_rounds(cell, lambda r: (r.get("approximation") or {}).get("error")),
        "mass_kept": over_rounds(cell, lambda r: (r.get("approximation") or {}).get("mass_kept")),
        "clock": over_rounds(cell, _clock),
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


def _error(record: Record) -> float | None:
    """Return the largest error of a result over its tolerance."""
    errors = (record.get("accuracy") or {}).get("errors", {}).values()
    shares = [float(e["max_error"]) / e["tolerance"] if e["tolerance"] else 0.0 for e in errors]
    return max(shares, default=None)


def _per_watt(record: Record, flops: float) -> float | None:
    seconds, watts = samples(record, "sustained"), middle(record, "sustained_power")
    return flops / 1e12 / statistics.fmean(seconds) / watts if seconds and watts else None


def _relative(page: Page, cell: Cell) -> list[float]:
    """Return all samples over the median of their round, minus 1."""
    rounds = latency.rounds_of(cell, page.spans).values()
    return [seconds / statistics.median(found) - 1 for found in rounds for seconds in found]
