"""What every report asks of every record, computed for all of them at once: by numpy, in a tenth of the time.

The formulas are those of derive.py and stats.py, in the same order of operations, so the figures are the same to the
last bit (tests/unit/test_speed.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from attnbench.core import stats
from attnbench.core.policy import SHORT
from attnbench.core.record import Record
from attnbench.results import derive, metrics
from attnbench.results.columns import ERRORS, SPEED, Columns, Fields

if TYPE_CHECKING:
    from attnbench.results.arrays import Floats, Ints

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
    if name not in columns.values:
        if name in FORMULAS and len(columns) >= FEW:
            columns.values[name] = [v if v == v else None for v in array(name, columns).tolist()]
        else:
            columns.values[name] = [metrics.value(name, r) for r in columns]
    return columns.values[name]


def array(name: str, columns: Columns) -> Floats:
    """The same as an array, with NaN where there is none."""
    import numpy as np

    if name not in columns.arrays:
        if name in FORMULAS and len(columns) >= FEW:
            columns.arrays |= computed(FORMULAS[name][0], columns, columns.once)
        else:
            columns.arrays[name] = np.array(values(name, columns), float)
    return columns.arrays[name]


def clocks(columns: Columns, rows: Iterable[int]) -> list[float]:
    """derive.clock of some records, where it is known."""
    held = values("clock_held", columns)
    found = [derive.clock(columns[i]) if (hz := held[i]) is None else hz for i in rows]
    return [hz for hz in found if hz is not None]


def spreads(name: str, columns: Columns, each: Sequence[Sequence[int]]) -> list[float]:
    """How far a metric lies apart over each group of records, as a share of its median, where several have it."""
    if len(columns) < FEW:
        known = ([v for i in rows if (v := values(name, columns)[i]) is not None] for rows in each)
        several = (found for found in known if len(found) > 1)
        return [(max(found) - min(found)) / middle for found in several if (middle := stats.median(found))]
    spread: list[float] = []
    for _, matrix in _by_group(name, columns, grouped(each)):
        middles = _median(matrix, matrix)
        some = (middles > 0) & (matrix.shape[1] > 1)
        spread += ((matrix[some, -1] - matrix[some, 0]) / middles[some]).tolist()
    return spread


def spans(columns: Fields) -> Set[int]:
    """The places of the records of which derive.uses_span."""
    if columns.spans is None:
        own = {place: span for place, span in columns.samples("span") if columns.timers[place] == "events"}
        times = ((place, time) for place, time in columns.samples("time") if place in own) if own else ()
        columns.spans = {place for place, time in times if stats.median(time) < SHORT}
    return columns.spans


@dataclass(frozen=True)
class Grouped:
    """Rows of groups of records, one group behind the other."""

    rows: Ints  # places of records
    groups: Ints  # the group of each
    number: int  # of groups


def grouped(each: Sequence[Sequence[int]]) -> Grouped:
    import numpy as np

    rows = np.fromiter(chain.from_iterable(each), np.int64)
    return Grouped(rows, np.repeat(np.arange(len(each)), list(map(len, each))), len(each))


def medians(name: str, columns: Columns, of: Grouped) -> list[float | None]:
    """The median of a metric over the records of each group; None where none has it."""
    import numpy as np

    found = np.full(of.number, np.nan)
    for some, matrix in _by_group(name, columns, of):
        found[some] = _median(matrix, matrix)
    return [v if v == v else None for v in found.tolist()]


def _by_group(name: str, columns: Columns, of: Grouped) -> Iterator[tuple[Ints, Floats]]:
    """The groups in which equally many records have a metric, and these values as sorted rows of a matrix."""
    import numpy as np

    every = array(name, columns)[of.rows]
    known = ~np.isnan(every)
    for some, matrix in _by_length(every[known], np.bincount(of.groups[known], minlength=of.number)):
        yield some, np.sort(matrix)


def computed(source: str, columns: Fields, record: Callable[[int], Record]) -> dict[str, Floats]:
    """All metrics of a source. A record whose samples hold a NaN or an infinity is left to the formula itself."""
    import numpy as np

    ok = np.fromiter(map("ok".__eq__, columns.statuses), bool, len(columns))
    sources = {source}
    if source in (TIMED, "time") and not spans(columns):
        sources = {TIMED, "time"}  # which are the same
    made = {name: np.full(len(columns), np.nan) for name, (own, _) in FORMULAS.items() if own in sources}
    odd: list[int] = []
    for places, matrix in _rows(columns, source):
        finite = np.isfinite(matrix).all(axis=1)
        odd += places[~finite].tolist()
        places, matrix = places[finite], matrix[finite]
        ordered = np.sort(matrix)
        for name, column in made.items():
            column[places] = FORMULAS[name][1](matrix, ordered)
    for name, column in made.items():
        if name == "samples":
            column[np.isnan(column)] = 0.0  # the one metric that something can be said of without a sample
        column[~ok | ~np.isfinite(column)] = np.nan
        for i in odd:
            value = metrics.value(name, record(i))
            column[i] = np.nan if value is None else value
    return made


def _rows(columns: Fields, source: str) -> Iterator[tuple[Ints, Floats]]:
    """The places of records with equally many samples, and these as a matrix; of TIMED as derive.samples chooses."""
    import numpy as np

    used = spans(columns) if source == TIMED else set()
    chosen = np.zeros(len(columns), bool)
    chosen[list(used)] = True
    for name in ("time", "span") if used else ("time" if source == TIMED else source,):
        found = columns.samples(name)
        for places, matrix in _by_length(np.asarray(found.values), np.frombuffer(found.counts, np.int64)):
            own = chosen[places] == (name == "span") if used else slice(None)
            yield places[own], matrix[own]


def _by_length(values: Floats, lengths: Ints) -> Iterator[tuple[Ints, Floats]]:
    """Rows that lie one behind the other: the places of those of one length, and these as a matrix. No empty ones."""
    import numpy as np

    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[lengths > 0]).tolist():
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
