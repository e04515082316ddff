"""What every report asks of every record, computed for many records at once: by numpy, in a tenth of the time.

The formulas are those of derive.py and stats.py, in the same order of operations, so the figures are the same to the
last bit (tests/unit/test_speed.py), and they are kept where derive keeps its own: who asks for a figure need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from attnbench import decode, derive, metrics, stats
from attnbench.types import Record

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from attnbench.report.cells import Cell

    Floats = NDArray[numpy.float64]
    Samples = Sequence[Sequence[float]]

Formula = Callable[["Floats", "Floats"], "Floats"]  # of rows of samples, and the same rows sorted
FEW = 2000  # records, under which it is not worth the import of numpy


def prime(names: Iterable[str], records: Iterable[Record]) -> None:
    """Has each measured record keep its values of those metrics, of FORMULAS, that it has not yet."""
    names = list(names)
    formulas = [_formula(name) for name in names]
    measured = [r for r in records if r.status == "ok" and not all(f.name in vars(r) for f in formulas)]
    if len(measured) < FEW:
        return
    for source in dict.fromkeys(FORMULAS[name][0] for name in names):
        own = [(f, FORMULAS[n][1]) for n, f in zip(names, formulas, strict=True) if FORMULAS[n][0] == source]
        _prime(measured, _timed(measured) if source == TIMED else decode.samples(measured, source), own)


def prime_cells(names: Iterable[str], cells: Sequence[Cell]) -> None:
    """Has each measured cell keep its values of those metrics too."""
    names = list(names)
    measured = [c for c in cells if c.status == "ok"]
    records = [r for c in measured for r in c.records if r.status == "ok"]
    if len(records) < FEW:
        return
    import numpy as np

    prime(names, records)
    places = np.array([i for i, c in enumerate(measured) for r in c.records if r.status == "ok"])
    for name in names:
        kept = _formula(name)
        values = np.array([kept(r) for r in records], float)
        known = np.isfinite(values)
        counts = np.bincount(places[known], minlength=len(measured))
        found: list[float | None] = [None] * len(measured)
        for some, matrix in _by_length(values[known], counts):
            for i, value in zip(some.tolist(), _median(matrix, np.sort(matrix)).tolist(), strict=True):
                found[i] = value
        for cell, value in zip(measured, found, strict=True):
            cell.keep(name, value)


def _formula(name: str) -> derive.Once[Any]:
    found = metrics.METRICS[name].derive
    assert isinstance(found, derive.Once)
    return found


def _prime(
    records: Sequence[Record], samples: Samples, formulas: Sequence[tuple[derive.Once[Any], Formula]]
) -> None:
    """A row without samples, or with a NaN or an infinity, is left to the formula itself."""
    import numpy as np

    for places, matrix in _alike(samples):
        finite = np.isfinite(matrix).all(axis=1)
        matrix = matrix[finite]
        ordered = np.sort(matrix)
        rows = [vars(records[i]) for i in places[finite].tolist()]
        for formula, compute in formulas:
            kept = formula.name
            for known, value in zip(rows, compute(matrix, ordered).tolist(), strict=True):
                known[kept] = None if value != value else value


def _timed(records: Sequence[Record]) -> Samples:
    """derive.samples of each; derive.uses_span is kept."""
    found = decode.samples(records, "time")
    for i, (record, span) in enumerate(zip(records, decode.samples(records, "span"), strict=True)):
        used = vars(record)[derive.uses_span.name] = derive.span_counts(record, found[i], span)
        if used:
            found[i] = span
    return found


def _alike(samples: Samples) -> Iterator[tuple[Any, Floats]]:
    import numpy as np

    lengths = np.fromiter(map(len, samples), int, len(samples))
    return _by_length(np.fromiter(chain.from_iterable(samples), float, int(lengths.sum())), lengths)


def _by_length(values: Floats, lengths: Any) -> Iterator[tuple[Any, Floats]]:
    """Rows that lie one behind the other: the places of those of one length, and these as a matrix. No empty ones."""
    import numpy as np

    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[lengths > 0]):
        places = np.flatnonzero(lengths == length)
        yield places, values[starts[places][:, None] + np.arange(length)]


def _median(_: Floats, ordered: Floats) -> Floats:
    """stats.median of each row."""
    middle = ordered.shape[1] // 2
    if ordered.shape[1] % 2:
        return ordered[:, middle]
    found: Floats = (ordered[:, middle - 1] + ordered[:, middle]) / 2
    return found


def _interval(ordered: Floats) -> tuple[Floats, Floats]:
    k = max(stats.rank(ordered.shape[1], 0.95), 1)
    return ordered[:, k - 1], ordered[:, -k]


def _halfwidth(_: Floats, ordered: Floats) -> Floats:
    """stats.relative_halfwidth of each row."""
    import numpy as np

    if ordered.shape[1] < derive.MIN_SAMPLES_INTERVAL:
        return np.full(len(ordered), np.nan)
    low, high = _interval(ordered)
    middle = _median(ordered, ordered)
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = np.where(middle == 0, np.inf, (high - low) / 2 / middle)
    return np.where(low == high, 0.0, wide)


def _drift(matrix: Floats, _: Floats) -> Floats:
    """stats.drift of each row."""
    import numpy as np

    if matrix.shape[1] < 6:
        return np.zeros(len(matrix))
    third = matrix.shape[1] // 3
    first, last = np.sort(matrix[:, :third]), np.sort(matrix[:, -third:])
    (low_a, high_a), (low_b, high_b) = _interval(first), _interval(last)
    start = _median(first, first)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where((high_a < low_b) | (high_b < low_a), _median(last, last) / start - 1, 0.0)
    return np.where(start == 0, 0.0, found)


def _largest(_: Floats, ordered: Floats) -> Floats:
    return ordered[:, -1]


def _count(matrix: Floats, _: Floats) -> Floats:
    import numpy as np

    return np.full(len(matrix), float(matrix.shape[1]))


TIMED = "time or span"  # as derive.samples chooses
FORMULAS: Mapping[str, tuple[str, Formula]] = {  # name -> the measurement that it is made of, and how
    "latency": (TIMED, _median),
    "ci": (TIMED, _halfwidth),
    "samples": (TIMED, _count),
    "drift": ("time", _drift),
    **{name: (name, _median) for name in ("enqueue", "first_call", "clock_held")},
    **{name: (name, _largest) for name in ("memory_peak", "memory_driver", "memory_saved")},
}
