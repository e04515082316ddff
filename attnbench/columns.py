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
from operator import attrgetter
from pathlib import Path
from typing import Any, overload

import msgspec

from attnbench import decode, derive, metrics
from attnbench.types import Case, Record, Status

Span = tuple[int, int, int]  # of a line: its start, its end, its number
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

    def append(self, place: int, values: Sequence[float]) -> None:
        if values:
            self.places.append(place)
            self.lengths.append(len(values))
            self.values.extend(values)

    def __iter__(self) -> Iterator[tuple[int, array[float]]]:
        start = 0
        for place, length in zip(self.places, self.lengths, strict=True):
            yield place, self.values[start : start + length]
            start += length


class Columns(Sequence[Record]):
    """A sequence of records, equal to a tuple of them. Lists have an entry a record; of what few have, the places."""

    backends: list[str]
    rounds: list[int]
    statuses: list[Status]
    timers: list[str | None]
    l2: list[str | None]
    reasons: dict[int, str]
    limits: dict[int, tuple[str, ...]]

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.cases: list[Case] = []  # equal ones are one object
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
        self._rows: list[tuple[Any, ...]] = []
        for record in records:
            self._append(record)
        self._turn()

    def read(self, path: Path, view: memoryview, spans: Iterable[Span], ahead: Sequence[str] = ()) -> list[str]:
        """Appends the records of some lines, with the samples of those measurements; gives what is wrong with them."""
        self._path, self._view = path, view
        self._samples = {name: Samples() for name in ahead if name != ERRORS}
        columns = [(c.places.append, c.lengths.append, c.values.fromlist) for c in self._samples.values()]
        take, measured, present = _reader(tuple(ahead)).decode, _getter(tuple(self._samples)), _getter(PRESENT)
        errors: list[Any] | None = self.kept.setdefault("error", []) if ERRORS in ahead else None
        cases: dict[bytes, Case] = {}  # a case is read once, however many records have it
        problems = []
        for span in spans:
            line = view[span[0] : span[1]]
            try:
                row = take(line)
                case = cases.get(text := bytes(row.case)) or decode.case(text)
            except (msgspec.MsgspecError, ValueError, TypeError):
                try:
                    record = decode.record(line, (path, span[2]))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    problems.append(f"{path}:{span[2]}: damaged line left out ({type(error).__name__}: {error})")
                else:
                    if record is not None:
                        self._append(record)
                continue
            if row.type != "record":
                continue
            if text not in cases:
                case = cases[text] = self._known.setdefault(case, case)
            place, taken = len(self._rows), row.measurements
            for (at, count, extend), found in zip(columns, measured(taken), strict=True):
                if found is not None and (values := found.values or list(decode.expanded(found.runs))):
                    at(place)
                    count(len(values))
                    extend(values)
            if present(taken) != _NONE:
                for name in PRESENT:
                    if getattr(taken, name) is not None:
                        self.present[name].add(place)
            if errors is not None:
                worst = derive.worst(row.accuracy.errors.values()) if row.accuracy and row.status == "ok" else None
                errors.append(worst if worst is not None and math.isfinite(worst) else None)
            self._spans.append(span)
            self._add(place, row, case)
        self._turn()
        return problems

    def _append(self, record: Record) -> None:
        place = len(self._rows)
        self._made[place] = record
        self._spans.append(None)
        for name, places in self.present.items():
            if name in record.measurements:
                places.add(place)
        for name, column in self._samples.items():
            column.append(place, derive.values(record, name))
        for name, kept in self.kept.items():
            kept.append(metrics.value(name, record))
        self._add(place, record, self._known.setdefault(record.case, record.case))

    def _add(self, place: int, row: Any, case: Case) -> None:
        """A record, or what has its plain fields."""
        self.cases.append(case)
        self._rows.append(_plain(row))
        if (odd := _odd(row)) != _USUAL:
            few = self.others, self.notes, self.ecc_errors, self.resumable, self.host_bound
            for value, places in zip(odd, few, strict=True):
                if value:
                    places[place] = value  # type: ignore[index]

    def _turn(self) -> None:
        """Rows into columns."""
        turned: list[list[Any]] = [list(column) for column in zip(*self._rows, strict=True)] or [[] for _ in range(7)]
        self.backends, self.rounds, self.statuses, self.timers, self.l2, reasons, limits = turned
        self.reasons = {place: reason for place, reason in enumerate(reasons) if reason}
        self.limits = {place: names for place, names in enumerate(limits) if names}

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
            take = _reader((name,)).decode
            get = _getter((name,))
            for place, span in enumerate(self._spans):
                try:
                    taken = take(self._view[span[0] : span[1]]).measurements if span else None
                except msgspec.MsgspecError:  # a number that JSON has no word for
                    taken = None
                if taken:
                    (found,) = get(taken)
                    column.append(place, (found.values or decode.expanded(found.runs)) if found else ())
                else:
                    column.append(place, derive.values(self[place], name))
        return self._samples[name]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, place: int | slice) -> Record | tuple[Record, ...]:
        if isinstance(place, slice):
            return tuple(self[i] for i in range(len(self))[place])
        place = range(len(self))[place]
        record = self._made.get(place)
        if record is None:
            span = self._spans[place]
            assert span
            record = decode.record(self._view[span[0] : span[1]], (self._path, span[2]))
            assert record
            self._made[place] = record
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

    type: str
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


_plain = attrgetter("backend", "round", "status", "timer", "l2", "reason", "limits")
_odd = attrgetter("others", "notes", "ecc_errors", "resumable", "host_bound")
_USUAL = ((), (), 0, False, False)
_NONE = (None,) * len(PRESENT)


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """attrgetter that gives a tuple of one name too, and of none."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda found: tuple(getattr(found, name) for name in names)


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
