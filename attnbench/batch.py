"""What every report asks of every record, computed for many records at once: by numpy, a tenth of the time.

The formulas are those of stats.py, in the same order of operations, so the figures are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench import derive, metrics, stats
from attnbench.types import Record

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

Samples = Callable[[Record], Sequence[float]]

FEW = 2000  # records, under which it is not worth the import of numpy


def prime(names: Iterable[str], records: Iterable[Record]) -> None:
    """Has each measured record keep its values of those metrics, which must be of _METRICS."""
    measured = [r for r in records if r.status == "ok"]
    if len(measured) < FEW:
        return
    for name in names:
        formula, (samples, compute) = metrics.METRICS[name].derive, _METRICS[name]
        assert isinstance(formula, derive.Once)
        for some, matrix in _alike(measured, samples):
            for record, value in zip(some, compute(matrix).tolist(), strict=True):
                vars(record)[formula.name] = value


def _alike(records: Sequence[Record], samples: Samples) -> Iterator[tuple[list[Record], Floats]]:
    """The records that have as many samples, and those samples, a row each. Not those with so few that all is said."""
    import numpy as np

    groups: dict[int, tuple[list[Record], list[Sequence[float]]]] = {}
    for record in records:
        found = samples(record)
        if len(found) >= derive.MIN_SAMPLES_INTERVAL:
            some, rows = groups.setdefault(len(found), ([], []))
            some.append(record)
            rows.append(found)
    for some, rows in groups.values():
        yield some, np.array(rows, float)


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

    ordered = _ordered(matrix)
    low, high = _interval(ordered)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(low == high, 0.0, (high - low) / 2 / _median(ordered))
    return found


def _drift(matrix: Floats) -> Floats:
    """stats.drift of each row."""
    import numpy as np

    third = matrix.shape[1] // 3
    first, last = _ordered(matrix[:, :third]), _ordered(matrix[:, -third:])
    (low_a, high_a), (low_b, high_b) = _interval(first), _interval(last)
    start = _median(first)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where((high_a < low_b) | (high_b < low_a), _median(last) / start - 1, 0.0)
    return np.where(start == 0, 0.0, found)


def _of(name: str) -> Samples:
    return lambda record: derive.values(record, name)


_METRICS: Mapping[str, tuple[Samples, Callable[[Floats], Floats]]] = {
    "latency": (derive.samples, _median),
    "ci": (derive.samples, _halfwidth),
    "drift": (_of("time"), _drift),
    "enqueue": (_of("enqueue"), _median),
    "clock_held": (_of("clock_held"), _median),
}
