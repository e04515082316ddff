"""The records of a run by column: what is asked of all of them, without an object for each.

A file of 100,000 records is read in under two seconds; to make a Record of each and to go through those for every
question takes ten. So a line gives its columns, and a Record is made of it when somebody wants that one. For the parent
only.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import compress, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, overload

import msgspec

from attnbench import decode, derive, metrics
from attnbench.types import Case, Record, Status

Span = tuple[int, int, int]  # of a line: its start, its end, its number
CHUNK = 100  # lines taken at once: what they hold fits into a core's cache
PRESENT = (*derive.TURNS, *derive.CEILINGS, "sustained_power")  # measurements of which it is kept who has them
ERRORS = "accuracy"  # no measurement, but may be read ahead with them
SPEED = ("time", "span", "clock_held")  # what a gate asks of every record
COMPARE = (*SPEED, *derive.CEILINGS)  # what comparisons do
REPORT = (*COMPARE, "enqueue", "memory_peak", "memory_driver")  # what reports do


class Samples:
    """Of one measurement: the places of the records that have it, how many are each one's, and all in a row."""

    def __init__(self) -> None:
        self.places = array("q")
        self.lengths = array("q")
        self.values = array("d")

    def extend(self, place: int, taken: Sequence[list[float]]) -> None:
        """By those of records that follow each other, from that place on; an empty list where there are none."""
        lengths = list(map(len, taken))
        self.places.extend(compress(range(place, place + len(lengths)), lengths))
        self.lengths.extend(filter(None, lengths))
        for values in taken:
            self.values.fromlist(values)

    def __iter__(self) -> Iterator[tuple[int, array[float]]]:
        start = 0
        for place, length in zip(self.places, self.lengths, strict=True):
            yield place, self.values[start : start + length]
            start += length


class Columns(Sequence[Record]):
    """A sequence of records, equal to a tuple of them. Lists have an entry a record; of what few have, the places."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.cases: list[Case] = []  # equal ones are one object
        self.backends: list[str] = []
        self.rounds: list[int] = []
        self.statuses: list[Status] = []
        self.timers: list[str | None] = []
        self.l2: list[str | None] = []
        self.reasons: dict[int, str] = {}
        self.limits: dict[int, tuple[str, ...]] = {}
        self.others: dict[int, tuple[str, ...]] = {}
        self.notes: dict[int, tuple[str, ...]] = {}
        self.ecc_errors: dict[int, int] = {}
        self.resumable: dict[int, bool] = {}
        self.host_bound: dict[int, bool] = {}
        self.present: dict[str, set[int]] = {name: set() for name in PRESENT}
        self.kept: dict[str, Any] = {}  # figures of all records, by name: report/batch.py
        self._samples: dict[str, Samples] = {}
        self._spans: list[Span | None] = []  # of a record that is in a file
        self._made: dict[int, Record] = {}
        self._known: dict[Case, Case] = {}
        self._append(list(records))

    def read(self, path: Path, view: memoryview, spans: Iterable[Span], ahead: Sequence[str] = ()) -> list[str]:
        """Appends the records of some lines, with the samples of those measurements; gives what is wrong with them."""
        self._path, self._view = path, view
        self._samples = {name: Samples() for name in ahead if name != ERRORS}
        if ERRORS in ahead:
            self.kept["error"] = []
        take, cases, spans, problems = _reader(tuple(ahead)).decode, _Cases(self._known), iter(spans), []
        while chunk := list(islice(spans, CHUNK)):
            if not self._take(chunk, take, cases):
                for span in chunk:
                    if not self._take([span], take, cases):
                        problems += self._take_odd(span)
        return problems

    def _take(self, spans: list[Span], take: Callable[[memoryview], Any], cases: _Cases) -> bool:
        """Whether all of these lines were records as msgspec takes them; else nothing was done."""
        view, place = self._view, len(self)
        try:
            rows = [take(view[start:stop]) for start, stop, _ in spans]
            of_rows = [cases[bytes(row.case)] for row in rows]
        except (msgspec.MsgspecError, ValueError, TypeError):
            return False
        measured = [row.measurements for row in rows]
        for name, column in self._samples.items():
            found = list(map(attrgetter(name), measured))
            if any(found):
                column.extend(place, list(map(_taken, found)))
        for name, places in self.present.items():
            places.update(compress(range(place, place + len(rows)), map(attrgetter(name), measured)))
        if "error" in self.kept:
            self.kept["error"] += map(_error, rows)
        self._spans += spans
        self._add(rows, of_rows)
        return True

    def _take_odd(self, span: Span) -> list[str]:
        """A record whose line has what msgspec does not take; or what is wrong with it."""
        try:
            record = decode.record(self._view[span[0] : span[1]], (self._path, span[2]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return [f"{self._path}:{span[2]}: damaged line left out ({type(error).__name__}: {error})"]
        self._append([record] if record is not None else [])
        return []

    def _append(self, records: list[Record]) -> None:
        place = len(self)
        self._made.update(enumerate(records, place))
        self._spans += [None] * len(records)
        for name, places in self.present.items():
            places.update(i for i, record in enumerate(records, place) if name in record.measurements)
        for name, column in self._samples.items():
            column.extend(place, [[*derive.values(record, name)] for record in records])
        for name, kept in self.kept.items():
            kept += [metrics.value(name, record) for record in records]
        self._add(records, [self._known.setdefault(record.case, record.case) for record in records])

    def _add(self, rows: Sequence[Any], cases: list[Case]) -> None:
        """The plain fields of records, or of what has them."""
        place = len(self)
        self.cases += cases
        for field, name in _EVERY.items():
            getattr(self, name).extend(map(attrgetter(field), rows))
        for field, name in _FEW.items():
            found = list(map(attrgetter(field), rows))
            if any(found):
                getattr(self, name).update((i, value) for i, value in enumerate(found, place) if value)

    def same(self, case: Case) -> Case:
        """The object that stands for all cases equal to it."""
        return self._known.get(case, case)

    @cached_property
    def last(self) -> dict[tuple[int, str, int], int]:
        """The place of the last record of each job, by the identity of its case, its backend and round."""
        every = zip(map(id, self.cases), self.backends, self.rounds, strict=True)
        return {job: place for place, job in enumerate(every)}

    def samples(self, name: str) -> Samples:
        """Of one measurement; where they were not read ahead, all lines are read again."""
        if name not in self._samples:
            column = self._samples[name] = Samples()
            take, get = _reader((name,)).decode, attrgetter(f"measurements.{name}")
            for place, span in enumerate(self._spans):
                try:
                    taken = _taken(get(take(self._view[span[0] : span[1]]))) if span else None
                except msgspec.MsgspecError:  # a number that JSON has no word for
                    taken = None
                column.extend(place, [[*derive.values(self[place], name)] if taken is None else taken])
        return self._samples[name]

    def __len__(self) -> int:
        return len(self.cases)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, place: int | slice) -> Record | tuple[Record, ...]:
        if isinstance(place, slice):
            return tuple(self[i] for i in range(len(self))[place])
        place = range(len(self))[place]
        if place not in self._made:
            self._made[place] = self.once(place)
        return self._made[place]

    def once(self, place: int) -> Record:
        """A record that is not kept, for what goes through all of them and needs each once."""
        span = self._spans[place]
        if place in self._made or span is None:
            return self._made[place]
        record = decode.record(self._view[span[0] : span[1]], (self._path, span[2]))
        assert record
        return record

    def __iter__(self) -> Iterator[Record]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))


def of(records: Sequence[Record]) -> Columns:
    """Those of a file have them; of others they are made."""
    return records if isinstance(records, Columns) else Columns(records)


class _Row(msgspec.Struct, gc=False):
    """The plain fields of types.Record."""

    type: Literal["record"]
    case: msgspec.Raw
    backend: str
    round: int
    status: Status
    reason: str | None = None
    timer: str | None = None
    l2: str | None = None
    resumable: bool = False
    limits: tuple[str, ...] = ()
    host_bound: bool = False
    others: tuple[str, ...] = ()
    ecc_errors: int = 0
    notes: tuple[str, ...] = ()


class _Taken(msgspec.Struct, gc=False):
    """The samples of one measurement."""

    values: list[float] = []
    runs: list[tuple[float, int]] = []


class _Error(msgspec.Struct, gc=False):
    max_error: float
    tolerance: float


class _Errors(msgspec.Struct, gc=False):
    errors: dict[str, _Error]


class _Seen(msgspec.Struct, gc=False):
    """A measurement whose samples are not wanted."""


# A field of a record -> the column that has it: of every record, and of those few where it says something.
_EVERY = {"backend": "backends", "round": "rounds", "status": "statuses", "timer": "timers", "l2": "l2"}
_FEW = {"reason": "reasons"} | {
    name: name for name in ("limits", "others", "notes", "ecc_errors", "resumable", "host_bound")
}


class _Cases(dict[bytes, Case]):
    """A case is read once, however many records have it."""

    def __init__(self, known: dict[Case, Case]) -> None:
        self._known = known

    def __missing__(self, text: bytes) -> Case:
        case = decode.case(text)
        found = self[text] = self._known.setdefault(case, case)
        return found


def _taken(found: Any) -> list[float]:
    """The samples of a measurement."""
    return (found.values or [*decode.expanded(found.runs)]) if found else []


def _error(row: Any) -> float | None:
    """metrics.value("error") of a record."""
    worst = derive.worst(row.accuracy.errors.values()) if row.accuracy and row.status == "ok" else None
    return worst if worst is not None and math.isfinite(worst) else None


@cache
def _reader(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Of lines, with the samples of those measurements alone."""
    fields: list[Any] = [(name, _Taken | None, None) for name in names if name != ERRORS]
    fields += [(name, _Seen | None, None) for name in PRESENT if name not in names]
    taken: Any = msgspec.defstruct("Measurements", fields, gc=False, frozen=True)
    whole: list[Any] = [("measurements", taken, taken())]
    whole += [(ERRORS, _Errors | None, None)] if ERRORS in names else []
    row: Any = msgspec.defstruct("Row", whole, bases=(_Row,), gc=False)
    return msgspec.json.Decoder(row)
