"""What every report asks of every cell, computed for many cells at once: by numpy, in a tenth of the time.

The formulas are those of stats.py, in the same order of operations, so the figures are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING

from attnbench import derive, stats
from attnbench.types import Record

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from attnbench.report.cells import Cell

    Floats = NDArray[numpy.float64]

Samples = Callable[[Record], Sequence[float]]

FEW = 2000  # records, under which it is not worth the import of numpy


def prime(names: Iterable[str], cells: Sequence[Cell]) -> None:
    """Has each measured cell keep its values of those metrics, which must be of METRICS."""
    measured = [c for c in cells if c.status == "ok"]
    places = [i for i, c in enumerate(measured) for r in c.records if r.status == "ok"]
    if len(places) < FEW:
        return
    records = [r for c in measured for r in c.records if r.status == "ok"]
    for name in names:
        samples, compute = METRICS[name]
        values = _rows(zip(places, _of_records(records, samples, compute), strict=True))
        found: list[float | None] = [None] * len(measured)
        for some, matrix in _alike(values):
            for i, value in zip(some, _median(matrix).tolist(), strict=True):
                found[i] = value
        for cell, value in zip(measured, found, strict=True):
            cell.keep(name, value)


def _of_records(records: Sequence[Record], samples: Samples, compute: Callable[[Floats], Floats]) -> list[float | None]:
    """The metric of each record, as its formula has it."""
    found: list[float | None] = [None] * len(records)
    for some, matrix in _alike(enumerate(map(samples, records))):
        for i, value in zip(some, compute(matrix).tolist(), strict=True):
            found[i] = value if isfinite(value) else None
    return found


def _rows(values: Iterable[tuple[int, float | None]]) -> Iterator[tuple[int, list[float]]]:
    """Of values that follow each other by place, those of one place together; without those that are None."""
    for place, group in groupby(values, key=itemgetter(0)):
        yield place, [value for _, value in group if value is not None]


def _alike(rows: Iterable[tuple[int, Sequence[float]]]) -> Iterator[tuple[list[int], Floats]]:
    """The places of rows of one length, and those rows as a matrix. Not those that are empty."""
    import numpy as np

    groups: dict[int, tuple[list[int], list[Sequence[float]]]] = {}
    for place, row in rows:
        if row:
            places, alike = groups.setdefault(len(row), ([], []))
            places.append(place)
            alike.append(row)
    for places, alike in groups.values():
        yield places, np.array(alike, float)


def _ordered(matrix: Floats) -> Floats:
    import numpy as np

    return np.sort(matrix, axis=1)


def _median(matrix: Floats) -> Floats:
    """stats.median of each row."""
    ordered = _ordered(matrix)
    middle = ordered.shape[1] // 2
    if ordered.shape[1] % 2:
        return ordered[:, middle]
    found: Floats = (ordered[:, middle - 1] + ordered[:, middle]) / 2
    return found


def _interval(ordered: Floats) -> tuple[Floats, Floats]:
    k = max(stats.rank(ordered.shape[1], 0.95), 1)
    return ordered[:, k - 1], ordered[:, -k]


def _halfwidth(matrix: Floats) -> Floats:
    """stats.relative_halfwidth of each row."""
    import numpy as np

    if matrix.shape[1] < derive.MIN_SAMPLES_INTERVAL:
        return np.full(len(matrix), np.nan)
    low, high = _interval(_ordered(matrix))
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(low == high, 0.0, (high - low) / 2 / _median(matrix))
    return found


def _drift(matrix: Floats) -> Floats:
    """stats.drift of each row."""
    import numpy as np

    if matrix.shape[1] < 6:
        return np.zeros(len(matrix))
    third = matrix.shape[1] // 3
    first, last = _ordered(matrix[:, :third]), _ordered(matrix[:, -third:])
    (low_a, high_a), (low_b, high_b) = _interval(first), _interval(last)
    start = _median(first)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where((high_a < low_b) | (high_b < low_a), _median(last) / start - 1, 0.0)
    return np.where(start == 0, 0.0, found)


def _largest(matrix: Floats) -> Floats:
    found: Floats = matrix.max(axis=1)
    return found


def _of(name: str) -> Samples:
    return lambda record: derive.values(record, name)


METRICS: Mapping[str, tuple[Samples, Callable[[Floats], Floats]]] = {
    "latency": (derive.samples, _median),
    "ci": (derive.samples, _halfwidth),
    "drift": (_of("time"), _drift),
    "enqueue": (_of("enqueue"), _median),
    "memory_peak": (_of("memory_peak"), _largest),
    "memory_driver": (_of("memory_driver"), _largest),
}
