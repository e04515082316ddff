"""Cells as a table for other programs: one row for each cell and round; columns are the case's fields and all metrics.

Seconds, bytes, hertz, watts, joules and fractions are not scaled; tflops is TFLOP/s and gbps GB/s. What is not known is
None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attnbench.core.case import Case
from attnbench.core.lengths import spell
from attnbench.results import metrics
from attnbench.results.cells import Cell
from attnbench.results.metrics import METRICS

if TYPE_CHECKING:
    import pandas

CASE_COLUMNS = (
    *("batch", "seqlen_q", "seqlen_k", "nheads", "nheads_k", "headdim", "headdim_v"),
    *("dtype", "direction", "causal", "window_left", "window_right", "softcap", "dropout_p", "layout", "data"),
    *("sink", "alibi", "mask", "page_size", "cache_dtype", "append", "latent", "softmax_scale", "lengths"),
    *("ranks", "model_step", "case"),
)
COLUMNS = (
    *("device", "suite", "started", "backend", "version", "round", "status", "reason", *CASE_COLUMNS),
    *("timer", "l2", "limits", "disturbed", "kernels", "bound", "flops_convention", *METRICS),
)
_WHOLE = ("window_left", "window_right", *(name for name, metric in METRICS.items() if metric.whole))


def case_columns(case: Case) -> dict[str, Any]:
    """Return a case's fields by the names of CASE_COLUMNS.

    A window's open side is None, "lengths" is a list as --lengths takes it, "model_step" is
    `Case.step`, "case" is the key.
    """
    left, right = case.window_size
    told: dict[str, Any] = {"window_left": left, "window_right": right, "softmax_scale": case.softmax_scale}
    told |= {"lengths": spell(case.lengths), "model_step": case.step, "case": case.key}
    fields = {**vars(case.shape), **vars(case), **told}
    return {name: fields[name] for name in CASE_COLUMNS}


def table_rows(cells: Iterable[Cell]) -> Iterator[dict[str, Any]]:
    """Yield one mapping for each cell and round, each with the keys of COLUMNS, in their order."""
    for cell in cells:
        shared = case_columns(cell.case)
        for row in cell.rows:
            record = row.record
            yield {
                "device": cell.device,
                "suite": cell.run.suite,
                "started": cell.run.started,
                "backend": cell.backend,
                "version": record.version or cell.run.versions.get(cell.backend),
                "round": record.round,
                "status": record.status,
                "reason": record.reason,
                **shared,
                "timer": record.timer,
                "l2": record.l2,
                "limits": "; ".join(record.limits),
                "disturbed": row.disturbance,
                "kernels": "; ".join(record.kernels),
                "bound": cell.bound,
                "flops_convention": cell.source.convention,
                **{name: _whole_number(name, metrics.value(name, row)) for name in METRICS},
            }
            row.values.clear()  # else the rows would keep every figure a second time


def dataframe(cells: Iterable[Cell]) -> pandas.DataFrame:
    """Return `table_rows` as a DataFrame; `attrs["units"]` has the unit of every metric, "" for a ratio."""
    import pandas

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for told in table_rows(cells):
        for name, value in told.items():
            columns[name].append(value)
    frame = pandas.DataFrame(columns)
    types = {name: "Int64" if name in _WHOLE else "float64" for name in (*_WHOLE, *METRICS)}
    typed: pandas.DataFrame = frame.astype(types)
    typed.attrs["units"] = {name: metric.unit for name, metric in METRICS.items()}
    return typed


def _whole_number(name: str, value: float | None) -> float | int | None:
    """Return the value of a metric, as an int where it is whole; None beyond 64 bits, which no table holds."""
    if value is None or not METRICS[name].whole:
        return value
    return int(value) if abs(value) < 2**63 else None
