"""Files for the tools that others track benchmarks with: Parquet, pytest-benchmark, Bencher, github-action-benchmark.

Cells without a value are left out, because none of the three JSON formats can express them. The name of a cell has
everything that distinguishes its case and nothing that changes from run to run, so that a tool can follow it over runs.

- Parquet has the rows of results/export_rows.py. The two tables of aiconfigurator (aiconfigurator.py) are Parquet too.
- pytest-benchmark's JSON (its storage format, `pytest-benchmark compare FILE`): seconds; all rounds' samples together.
- Bencher's Metric Format (bencher.dev/docs/reference/bencher-metric-format): latency in nanoseconds, as its built-in
  measure wants, tflops, and peak-memory in bytes; the bounds are the 95 % interval of the median.
- github-action-benchmark's JSON for `tool: customSmallerIsBetter`: latency in us and peak memory in MiB.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from attnbench import __version__
from attnbench.core import stats
from attnbench.core.errors import UserError
from attnbench.core.formats import digits, percent
from attnbench.render.export import aiconfigurator
from attnbench.results import case_names
from attnbench.results.cells import STARTS, Cell
from attnbench.results.export_rows import dataframe


def content(format: str, cells: Sequence[Cell]) -> str | bytes:
    """Return a file of one of this module's formats. Raises UserError for no cells: there is nothing to track."""
    if not cells:
        raise UserError("no cell has a record, so there is nothing to export; see attnbench report")
    if format == "parquet":
        return parquet(cells)
    if format in aiconfigurator.TABLES:
        return aiconfigurator.content(format, cells)
    return json.dumps(JSON_FORMATS[format](cells), indent=1, allow_nan=False) + "\n"


def doubts(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield warnings, a line each, that the JSON formats cannot express, so that tracking tools would not show them."""
    measured = [cell for _, cell in _named(cells)]
    if not measured:
        yield "no cell has a figure, so there is nothing in it; attnbench report without --format says why"
    if any(start in c.device for c in measured for start in STARTS):
        yield "the runs measured the same cells on one device, so names hold their start; export one file at a time"


def parquet(cells: Sequence[Cell]) -> bytes:
    """Return the table as Parquet. Raises UserError where no library writes it."""
    buffer = io.BytesIO()
    try:
        dataframe(cells).to_parquet(buffer, index=False)
    except ImportError:
        raise UserError("--format parquet needs pyarrow: pip install pyarrow; csv has the same") from None
    return buffer.getvalue()


def pytest_benchmark(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the data that pytest-benchmark would store; at least one cell is needed."""
    run = cells[0].run
    env = run.environment
    return {
        "machine_info": {
            "node": env.device.name,
            "machine": env.platform,
            "system": env.platform,
            "python_version": env.python,
            "cpu": {"brand_raw": env.cpu},
            "driver": env.driver,
            "torch": env.torch,
            "power_limit_w": env.power_limit_w,
        },
        "commit_info": {
            "id": (env.git or "unknown").removesuffix("+dirty"),
            "dirty": (env.git or "").endswith("+dirty"),
            "time": run.started,
        },
        "benchmarks": [_benchmark(name, cell) for name, cell in _named(cells)],
        "datetime": run.started,
        "version": f"attnbench {__version__}",
    }


def _benchmark(name: str, cell: Cell) -> dict[str, Any]:
    """Return the entry of a cell in pytest-benchmark's list."""
    return {
        "group": case_names.case_name("", cell.case, dtype=True, batch=True).strip(),
        "name": name,
        "fullname": f"attnbench::{name}",
        "params": None,
        "param": None,
        "extra_info": {
            "device": cell.device,
            "backend": cell.backend,
            "version": cell.run.versions.get(cell.backend),
            "case": cell.case.key,
            "flops": cell.flops,
            "tflops": cell.value("tflops"),
            "memory_peak": cell.value("memory_peak"),
            "clock_held_down": cell.held_down,
        },
        "options": {"timer": cell.run.policy.timer, "warmup": True},
        "stats": _stats([v for row in cell.ok for v in row.samples if isfinite(v)]),
    }


def _stats(samples: Sequence[float]) -> dict[str, Any]:
    """Return the statistics that pytest-benchmark computes of its rounds, by its own names."""
    ordered = sorted(samples)
    mean = sum(ordered) / len(ordered)
    deviation = (stats.coefficient_of_variation(ordered) or 0.0) * mean
    q1, median, q3 = (stats.percentile(ordered, p) for p in (25, 50, 75))
    inside = [v for v in ordered if q1 - 1.5 * (q3 - q1) <= v <= q3 + 1.5 * (q3 - q1)]
    outside, far = len(ordered) - len(inside), sum(abs(v - mean) > deviation for v in ordered)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(ordered),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": inside[0],
        "hd15iqr": inside[-1],
        "ops": 1 / mean if mean else None,
        "total": sum(ordered),
        "data": list(samples),
        "iterations": 1,
    }


def bencher(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return Bencher's Metric Format: name -> measure -> value and bounds."""
    found = {}
    for name, cell in _named(cells):
        low, high = cell.latency_interval or (None, None)
        measures = {
            "latency": _measure(cell, "latency", 1e9, low, high),
            "tflops": _measure(cell, "tflops", 1.0, high and 1 / high, low and 1 / low),
            "peak-memory": _measure(cell, "memory_peak"),
        }
        found[name] = {slug: measure for slug, measure in measures.items() if measure}
    return found


def _measure(
    cell: Cell, metric: str, factor: float = 1.0, low: float | None = None, high: float | None = None
) -> dict[str, float]:
    """Return the value of a metric times a factor, and its bounds, which are given as shares of it."""
    value = cell.value(metric)
    if value is None or not math.isfinite(factor * value):
        return {}
    bounds = {} if low is None or high is None else {"lower_value": value * low, "upper_value": value * high}
    return {name: factor * of for name, of in {"value": value, **bounds}.items() if math.isfinite(factor * of)}


def github_action_benchmark(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the list of github-action-benchmark: an entry for the latency of each cell, one for its memory."""
    found: list[dict[str, Any]] = []
    for name, cell in _named(cells):
        low, high = cell.latency_interval or (None, None)
        tflops = cell.value("tflops")
        facts = (cell.device, tflops and f"{digits(tflops)} TFLOP/s", cell.held_down and "clock held down")
        ends = {"range": f"{percent(low - 1)} to +{percent(high - 1)}"} if low and high else {}
        for metric, unit, factor, spread in (("latency", "us", 1e6, ends), ("memory_peak", "MiB", 2.0**-20, {})):
            value = cell.value(metric)
            if value is not None:
                entry = {"name": f"{name} {metric}", "unit": unit, "value": value * factor, **spread}
                found.append({**entry, "extra": "\n".join(fact for fact in facts if fact)})
    return found


JSON_FORMATS: Mapping[str, Callable[[Sequence[Cell]], Any]] = {
    "pytest-benchmark": pytest_benchmark,
    "bmf": bencher,
    "github-action-benchmark": github_action_benchmark,
}


def name(cell: Cell) -> str:
    """Return a name that is equal in all runs of the case: triton/bf16-d128-causal-fwd-16k-b1-h16."""
    case = cell.case
    parts = [case.dtype, f"d{case_names.headdim(case)}", case_names.mask(case), case.direction]
    parts += [case_names.lengths(case), f"b{case.shape.batch}", f"h{case_names.heads(case)}"]
    return f"{cell.backend}/{'-'.join(filter(None, [*parts, ', '.join(case_names.extras(case))]))}"


def _named(cells: Iterable[Cell]) -> list[tuple[str, Cell]]:
    """Return the measured cells by name; names contain the device where there are several."""
    measured = [c for c in cells if c.value("latency") is not None]
    several = len({c.device for c in measured}) > 1
    return [(f"{c.device}: {name(c)}" if several else name(c), c) for c in measured]
