"""The lines of a run file as columns: of a large file in parts, each in a process of its own.

Of a line only what its columns hold is made into Python's values, and what a column wants of a hundred lines is taken
at once. Parsing is most of what is left, and that several processes share. For the parent only.
"""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import compress, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from attnbench import batch, decode, derive, metrics
from attnbench.columns import ERRORS, PRESENT, Fields, Samples
from attnbench.errors import UserError
from attnbench.jsonable import to_json
from attnbench.types import Record, Status

Span = tuple[int, int, int]  # of a line: its start, its end, its number
CHUNK = 100  # lines taken at once: what they hold fits into a core's cache
LEAST = 16 << 20  # bytes, for which a process is worth its start
MOST = 8  # processes


class Part(Fields):
    """The columns of lines that follow each other. Picklable, so it knows no file, and its lines count from 1."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.names = tuple(names)
        self.cases: list[bytes] = []  # as JSON, known to be right
        self.taken = {name: Samples() for name in names if name != ERRORS}
        if ERRORS in names:
            self.values["error"] = []
        self.starts, self.stops = array("q"), array("q")  # of the lines that are records, in the file
        self.lines = 0
        self.problems: list[tuple[int, str]] = []  # the number of a line, and what is wrong with it
        self.refused: tuple[int, str] | None = None  # the same of one that stops the reading

    def samples(self, name: str) -> Samples:
        return self.taken[name]

    def read(self, view: memoryview, spans: Iterator[Span]) -> None:
        """Appends lines of a file."""
        while (chunk := list(islice(spans, CHUNK))) and not self.refused:
            if not self._take(view, chunk):
                for span in chunk:
                    if not self._take(view, [span]):
                        self._take_odd(view, span)
            self.lines = chunk[-1][2]

    def reduce(self, record: Callable[[int], Record]) -> None:
        """Figures in place of the samples that they are made of, of those measurements that were read ahead."""
        done: set[str] = set()
        for name, (source, _) in batch.FORMULAS.items():
            of = {"time", "span"} if source == batch.TIMED else {source}
            if of <= self.taken.keys():
                done |= of
                if name not in self.arrays:
                    self.arrays |= batch.computed(source, self, record)
        for name in done:
            del self.taken[name]

    def _take(self, view: memoryview, spans: list[Span]) -> bool:
        """Whether all of these lines were records as msgspec takes them; else nothing was done."""
        take, same, place = _reader(self.names).decode, self._same["case"].setdefault, len(self)
        try:
            rows = [take(view[start:stop]) for start, stop, _ in spans]
            cases = [bytes(row.case) for row in rows]
            for text in set(cases):
                decode.case(text)
        except (msgspec.MsgspecError, ValueError, TypeError):
            return False
        measured = [row.measurements for row in rows]
        for name, column in self.taken.items():
            column.extend(_taken(name, measured))
        for name, places in self.present.items():
            places.update(compress(range(place, place + len(rows)), map(attrgetter(name), measured)))
        if "error" in self.values:
            self.values["error"] += map(_error, rows)
        self.cases += map(same, cases, cases)
        self.add(rows)
        self._add_spans(spans)
        return True

    def _take_odd(self, view: memoryview, span: Span) -> None:
        """A record whose line has what msgspec does not take; or what is wrong with it."""
        start, stop, number = span
        try:
            record = decode.record(view[start:stop])
        except decode.DAMAGE as error:
            self.problems.append((number, f"damaged line left out ({type(error).__name__}: {error})"))
            return
        if record is None:
            return
        try:
            samples = {name: [*derive.values(record, name)] for name in self.taken}
            kept = {name: metrics.value(name, record) for name in self.values}
        except UserError as error:
            self.refused = self.refused or (number, str(error))
            return
        for name, places in self.present.items():
            places.update([len(self)] if name in record.measurements else ())
        for name, values in samples.items():
            self.taken[name].extend([values])
        for name, value in kept.items():
            self.values[name].append(value)
        self.cases.append(msgspec.json.encode(to_json(record.case)))
        self.add([record])
        self._add_spans([span])

    def _add_spans(self, spans: list[Span]) -> None:
        starts, stops, _ = zip(*spans, strict=True)
        self.starts.extend(starts)
        self.stops.extend(stops)


@dataclass(frozen=True)
class Lines:
    """Those of a file behind its first."""

    path: Path
    content: bytes | mmap.mmap
    start: int  # of the second line
    stop: int  # behind the last newline

    @contextmanager
    def parts(self, ahead: Sequence[str] = (), *, reduced: bool = False) -> Iterator[Iterator[Part]]:
        """Their columns, with the samples of those measurements. Other processes, if any, begin at once.

        This one reads the first part when that is asked for, and meanwhile the first line. Of parts that are
        `reduced` and several, figures come in place of samples: to hand those over takes as long as to read them.
        """
        number = _processes(self.stop)
        size = max(1, self.stop // number)
        begins = range(self.stop - size * (number - 1), self.stop, size)
        ends = [self.content.find(b"\n", max(at, self.start - 1)) + 1 for at in begins]
        cuts = list(zip([self.start, *ends], [*ends, self.stop], strict=True))
        if len(cuts) < 2:
            yield map(partial(self._part, ahead, False), cuts)
            return
        import numpy as np  # noqa: F401  (before the processes begin, which need it too)

        from attnbench.apart import apart

        with apart(partial(self._part, ahead, reduced), cuts) as parts:
            yield parts

    def _part(self, ahead: Sequence[str], reduced: bool, cut: tuple[int, int]) -> Part:
        """Of the lines from one place in the file to another."""
        part = Part(ahead)
        part.read(memoryview(self.content), self._spans(*cut))
        if reduced:
            part.reduce(lambda i: self.record(part.starts[i], part.stops[i]))
        return part

    def _spans(self, start: int, stop: int) -> Iterator[Span]:
        number, find = 0, self.content.find
        while start < stop:
            end = find(b"\n", start)
            number += 1
            yield start, end, number
            start = end + 1

    def record(self, start: int, stop: int) -> Record:
        """Of one line, that was found to be one."""
        place = Place(self, start)
        try:
            found = decode.record(memoryview(self.content)[start:stop], place)
        except decode.DAMAGE as error:
            raise decode.unreadable("its record", error, place) from None
        assert found
        return found


@dataclass(frozen=True)
class Place:
    """Of a line, to be said to a person."""

    lines: Lines
    start: int

    def __str__(self) -> str:
        before = self.lines.content[: self.start].count(b"\n")
        return f"{self.lines.path}:{before + 1}"


def _processes(size: int) -> int:
    """How many read so many bytes."""
    if size < 2 * LEAST:
        return 1
    from attnbench.apart import processes

    return min(processes(), size // LEAST, MOST)


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


class _Taken(msgspec.Struct, gc=False, frozen=True):
    """The samples of one measurement."""

    values: list[float] = []
    runs: list[tuple[float, int]] = []


_NONE = _Taken()


class _Error(msgspec.Struct, gc=False):
    max_error: float
    tolerance: float


class _Errors(msgspec.Struct, gc=False):
    errors: dict[str, _Error]


class _Seen(msgspec.Struct, gc=False):
    """A measurement whose samples are not wanted."""


def _taken(name: str, measured: Sequence[Any]) -> list[list[float]]:
    """The samples of a measurement of each record; empty where it has none."""
    found: list[list[float]] = list(map(attrgetter(f"{name}.values"), measured))
    if not all(found):
        packed = list(map(attrgetter(f"{name}.runs"), measured))
        for i in compress(range(len(packed)), packed):
            found[i] = found[i] or [*decode.expanded(packed[i])]
    return found


def _error(row: Any) -> float | None:
    """metrics.value("error") of a record."""
    worst = derive.worst(row.accuracy.errors.values()) if row.accuracy and row.status == "ok" else None
    return worst if worst is not None and math.isfinite(worst) else None


@cache
def _reader(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Of lines, with the samples of those measurements alone."""
    fields: list[Any] = [(name, _Taken, _NONE) for name in names if name != ERRORS]
    fields += [(name, _Seen | None, None) for name in PRESENT if name not in names]
    taken: Any = msgspec.defstruct("Measurements", fields, gc=False, frozen=True)
    whole: list[Any] = [("measurements", taken, taken())]
    whole += [(ERRORS, _Errors | None, None)] if ERRORS in names else []
    row: Any = msgspec.defstruct("Row", whole, bases=(_Row,), gc=False)
    return msgspec.json.Decoder(row)
