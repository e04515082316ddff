"""Cells as a table for other programs: one row for each cell and round; columns are case fields and all metrics.

Seconds, bytes, hertz, watts, joules and fractions are not scaled; tflops is in TFLOP/s and gbps in GB/s. Unknown values
are None.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from sys import intern
from typing import TYPE_CHECKING, Any

from attnbench.core.axes import AXES
from attnbench.core.case import Case, Shape
from attnbench.results.cells import Cell
from attnbench.results.metrics import METRICS
from attnbench.results.rows import Row

if TYPE_CHECKING:
    import pandas

_OF_CASE = {name: read for axis in AXES.values() for name, read in axis.columns.items()}
CASE_COLUMNS = (*(f.name for f in fields(Shape)), *_OF_CASE, "case")
COLUMNS = (
    *("device", "suite", "started", "backend", "version", "round", "status", "reason", "failing", *CASE_COLUMNS),
    *("timer", "l2", "limits", "disturbed", "kernels", "bound", "flops_convention", *METRICS),
)
_WHOLE_METRICS = tuple(name for name, metric in METRICS.items() if metric.whole)
_WHOLE = ("window_left", "window_right", *_WHOLE_METRICS)


def case_columns(case: Case) -> dict[str, Any]:
    """Return a case's fields by the names of CASE_COLUMNS.

    A window's open side is None, "lengths" is a list as for --lengths, "model_step" is `Case.step`, "case" is the key.
    """
    return {**vars(case.shape), **{name: read(case) for name, read in _OF_CASE.items()}, "case": case.key}


class MadeRows(Sequence[Mapping[str, Any]]):
    """Rows that each iteration makes again: few formats need them, and together they would fill the memory."""

    def __init__(self, made: Callable[[], Iterator[Mapping[str, Any]]]) -> None:
        self._made = made

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self._made()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]


class MadeData(Mapping[str, Any]):
    """A mapping that is made when it is first read, because few formats need it."""

    def __init__(self, made: Callable[[], Mapping[str, Any]]) -> None:
        self._made = made

    @cached_property
    def _data(self) -> Mapping[str, Any]:
        return self._made()

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


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
                "failing": record.failing,
                **shared,
                "timer": record.timer,
                "l2": record.l2,
                "limits": "; ".join(record.limits),
                "disturbed": row.disturbance,
                "kernels": intern("; ".join(record.kernels)),  # equal texts share one object
                "bound": cell.bound,
                "flops_convention": cell.source.convention,
                **(_figures(row) if row.ok else dict.fromkeys(METRICS)),
            }
            row.values.clear()  # otherwise the rows would hold every value a second time


def dataframe(cells: Iterable[Cell]) -> pandas.DataFrame:
    """Return `table_rows` as a DataFrame; `attrs["units"]` has the unit of every metric, "" for a ratio."""
    import numpy
    import pandas

    numbers = METRICS.keys() - {*_WHOLE}
    columns: dict[str, Any] = {name: array("d") if name in numbers else [] for name in COLUMNS}  # text in lists
    for told in table_rows(cells):
        for name, value in told.items():
            columns[name].append(math.nan if value is None and name in numbers else value)
    columns |= {name: numpy.asarray(columns[name]) for name in numbers}
    frame: pandas.DataFrame = pandas.DataFrame(columns).astype(dict.fromkeys(_WHOLE, "Int64"))
    frame.attrs["units"] = {name: metric.unit for name, metric in METRICS.items()}
    return frame


def _figures(row: Row) -> dict[str, float | int | None]:
    """Return all metrics of a row, counts as int; None for a number beyond 64 bits, which no table format holds."""
    found: dict[str, float | int | None] = {name: metric.formula(row) for name, metric in METRICS.items()}
    for name in _WHOLE_METRICS:
        if (value := found[name]) is not None:
            found[name] = int(value) if abs(value) < 2**63 else None
    return found
