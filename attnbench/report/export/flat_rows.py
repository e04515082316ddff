"""For other programs: one row per cell and round, case fields flattened, every metric in its unit. CSV, JSON, pandas.

Seconds, bytes, hertz, watts, joules and fractions are not scaled; tflops is TFLOP/s and gbps GB/s. What is not known is
empty in CSV, null in JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.report.files import CASE_FIELDS, case_fields, csv_lines
from attnbench.results import batch, derive, metrics
from attnbench.results.cells import Cell
from attnbench.results.cells import cells as cells_of

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    *("device", "suite", "started", "backend", "version", "round", "status", "reason", *CASE_FIELDS),
    *("timer", "l2", "limits", "kernels", "bound", "flops_convention", *metrics.METRICS),
)
LEAST, MOST = 1000, 8  # cells, for which a process is worth its start; processes
_WHOLE = ("window_left", "window_right", "samples", "memory_peak", "memory_driver", "memory_saved")


def rows(runs: Sequence[Run], convention: Convention = "exact") -> Iterator[dict[str, Any]]:
    """One mapping per cell and round, each with the keys of COLUMNS, in their order. Holds no record longer than its
    own row: those of 100,000 fill gigabytes."""
    return _rows(cells_of(runs), convention)


def _rows(cells: Iterable[Cell], convention: Convention) -> Iterator[dict[str, Any]]:
    nothing = dict.fromkeys(metrics.METRICS)
    for cell in cells:
        case, run = cell.case, cell.run
        known = {name: batch.values(name, cell.columns) for name in batch.FORMULAS}
        for i in cell.rows:
            record = cell.columns.once(i)
            context = cell.context(record.round, convention)
            row: dict[str, Any] = {
                "device": cell.device,
                "suite": run.suite,
                "started": run.started,
                "backend": cell.backend,
                "version": record.version or run.versions.get(cell.backend),
                "round": record.round,
                "status": record.status,
                "reason": record.reason,
                **case_fields(case),
                "timer": record.timer,
                "l2": record.l2,
                "limits": "; ".join(record.limits),
                "kernels": "; ".join(record.kernels),
                "bound": derive.bound(case, context),
                "flops_convention": convention,
            }
            if record.status != "ok":
                yield row | nothing
                continue
            for name in metrics.METRICS:
                value = known[name][i] if name in known else metrics.value(name, record, context)
                row[name] = int(value) if value is not None and name in _WHOLE else value
            yield row


def json_text(runs: Sequence[Run], convention: Convention = "exact") -> str:
    """A JSON array, one object a line."""
    lines = ",\n".join(_written(runs, convention, _objects))
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def csv(runs: Sequence[Run], convention: Convention = "exact") -> str:
    return csv_lines([COLUMNS]) + "".join(_written(runs, convention, _lines))


def _objects(rows: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(row, allow_nan=False) for row in rows)


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return csv_lines(row.values() for row in rows)


def _written(
    runs: Sequence[Run], convention: Convention, write: Callable[[Iterable[dict[str, Any]]], str]
) -> list[str]:
    """All rows, of many cells in parts, each made in a process of its own."""

    def written(part: Sequence[Cell]) -> str:
        return write(_rows(part, convention))

    cells = cells_of(runs)
    if len(cells) < 2 * LEAST:
        return [written(cells)] if cells else []
    from attnbench.results.apart import apart, processes

    size = max(LEAST, math.ceil(len(cells) / min(processes(), MOST)))
    with apart(written, [cells[i : i + size] for i in range(0, len(cells), size)]) as texts:
        return list(texts)


def dataframe(runs: Sequence[Run], convention: Convention = "exact") -> pandas.DataFrame:
    import pandas

    frame: pandas.DataFrame = pandas.DataFrame(list(rows(runs, convention)), columns=COLUMNS)
    whole = dict.fromkeys(_WHOLE, "Int64")
    numbers = {name: "float64" for name in metrics.METRICS if name not in whole}
    typed: pandas.DataFrame = frame.astype({**whole, **numbers})
    return typed
