"""For other programs: one row per cell and round, case fields flattened, every metric in its unit. CSV, JSON, pandas.

Seconds, bytes, hertz, watts, joules and fractions are not scaled; tflops is TFLOP/s and gbps GB/s. What is not known is
empty in CSV, null in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench import batch, derive, metrics
from attnbench.report.cells import cells as cells_of
from attnbench.report.files import CASE_FIELDS, as_csv, case_fields
from attnbench.types import Run
from attnbench.work import Convention

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    *("device", "suite", "started", "backend", "version", "round", "status", "reason", *CASE_FIELDS),
    *("timer", "l2", "limits", "kernels", "bound", "flops_convention", *metrics.METRICS),
)
_WHOLE = ("window_left", "window_right", "samples", "memory_peak", "memory_driver", "memory_saved")


def rows(runs: Sequence[Run], convention: Convention = "exact") -> Iterator[dict[str, Any]]:
    """One mapping per cell and round, each with the keys of COLUMNS, in their order. Holds no record longer than its
    own row: those of 100,000 fill gigabytes."""
    nothing = dict.fromkeys(metrics.METRICS)
    for cell in cells_of(runs):
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
    lines = [json.dumps(row, allow_nan=False) for row in rows(runs, convention)]
    return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"


def dataframe(runs: Sequence[Run], convention: Convention = "exact") -> pandas.DataFrame:
    import pandas

    frame: pandas.DataFrame = pandas.DataFrame(list(rows(runs, convention)), columns=COLUMNS)
    whole = dict.fromkeys(_WHOLE, "Int64")
    numbers = {name: "float64" for name in metrics.METRICS if name not in whole}
    typed: pandas.DataFrame = frame.astype({**whole, **numbers})
    return typed


def csv(runs: Sequence[Run], convention: Convention = "exact") -> str:
    return as_csv(rows(runs, convention), COLUMNS)
