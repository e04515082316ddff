"""What every report asks of every record, computed for all of them at once: by numpy, in a tenth of the time.

The formulas are those of derive.py and stats.py, in the same order of operations, so the figures are the same to the
last bit (tests/unit/test_speed.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench import derive, metrics, stats
from attnbench.columns import ERRORS, SPEED, Columns
from attnbench.types import SHORT

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from attnbench.report.cells import Cell

    Floats = NDArray[numpy.float64]
    Ints = NDArray[numpy.int64]

Formula = Callable[["Floats", "Floats"], "Floats"]  # of rows of samples, and the same rows sorted
FEW = 2000  # records, under which it is not worth the import of numpy


def ahead_of(names: Iterable[str]) -> tuple[str, ...]:
    """What is to be read ahead for these metrics, and for what is told of every cell."""
    found = {**dict.fromkeys(SPEED)}
    for name in names:
        if name == "error":
            found[ERRORS] = None
        elif name in FORMULAS and FORMULAS[name][0] != TIMED:
            found[FORMULAS[name][0]] = None
    return tuple(found)


def values(name: str, columns: Columns) -> Sequence[float | None]:
    """A metric that needs no context, of every record; None where there is none."""
    if name not in columns.kept:
        if name in FORMULAS and len(columns) >= FEW:
            columns.kept[name] = _values(name, columns)
        else:
            columns.kept[name] = [metrics.value(name, r) for r in columns]
    return columns.kept[name]


def clocks(columns: Columns, rows: Iterable[int]) -> Iterator[float]:
    """derive.clock of some records, where it is known."""
    held = values("clock_held", columns)
    for i in rows:
        hz = held[i] if held[i] is not None else derive.clock(columns[i])
        if hz is not None:
            yield hz


def spans(columns: Columns) -> Sequence[bool]:
    """derive.uses_span of every record."""
    if "uses_span" not in columns.kept:
        if len(columns) >= FEW:
            columns.kept["uses_span"] = _spans(columns)
        else:
            columns.kept["uses_span"] = [derive.uses_span(r) for r in columns]
    return columns.kept["uses_span"]


def of_cells(name: str, cells: Sequence[Cell]) -> list[float | None]:
    """A metric of measured cells of one run: the median over the rounds."""
    import numpy as np

    columns = cells[0].columns
    rows = [i for c in cells for i in c.rows]
    places = np.repeat(np.arange(len(cells)), [len(c.rows) for c in cells])
    every = np.array(values(name, columns), float)[rows]
    known = np.isfinite(every)
    found: list[float | None] = [None] * len(cells)
    for some, matrix in _by_length(every[known], np.bincount(places[known], minlength=len(cells))):
        for i, value in zip(some.tolist(), _median(matrix, np.sort(matrix)).tolist(), strict=True):
            found[i] = value
    return found


def _values(name: str, columns: Columns) -> list[float | None]:
    """A row without samples, or with a NaN or an infinity, is left to the formula itself."""
    import numpy as np

    source, compute = FORMULAS[name]
    ok = np.array([status == "ok" for status in columns.statuses])
    found = np.full(len(columns), np.nan)
    odd = []
    for places, matrix in _rows(columns, source):
        finite = np.isfinite(matrix).all(axis=1)
        odd += places[~finite].tolist()
        matrix = matrix[finite]
        made = compute(matrix, np.sort(matrix))
        found[places[finite]] = np.where(np.isfinite(made), made, np.nan)
    if name == "samples":
        found[np.isnan(found)] = 0.0  # the one metric that something can be said of without a sample
    found[~ok] = np.nan
    listed = [value if value == value else None for value in found.tolist()]
    for i in odd:
        listed[i] = metrics.value(name, columns[i])
    return listed


def _rows(columns: Columns, source: str) -> Iterator[tuple[Ints, Floats]]:
    """The places of records with equally many samples, and these as a matrix; of TIMED as derive.samples chooses."""
    if source != TIMED:
        yield from _by_length(*_arrays(columns, source))
        return
    import numpy as np

    span = np.array(spans(columns))
    for name, chosen in (("time", ~span), ("span", span)):
        for places, matrix in _by_length(*_arrays(columns, name)):
            some = chosen[places]
            yield places[some], matrix[some]


def _spans(columns: Columns) -> list[bool]:
    """Medians of those times alone that have a span."""
    import numpy as np

    found = [False] * len(columns)
    lengths = np.array(columns.samples("span").lengths)
    times, counts = _arrays(columns, "time")
    starts = np.cumsum(counts) - counts
    for i in np.flatnonzero((lengths > 0) & (counts > 0)).tolist():
        if columns.timers[i] == "events":
            found[i] = stats.median(times[starts[i] : starts[i] + counts[i]].tolist()) < SHORT
    return found


def _arrays(columns: Columns, name: str) -> tuple[Floats, Ints]:
    import numpy as np

    found = columns.samples(name)
    return np.frombuffer(found.values), np.frombuffer(found.lengths, np.int64)


def _by_length(values: Floats, lengths: Ints) -> Iterator[tuple[Ints, Floats]]:
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
