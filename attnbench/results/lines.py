"""The lines of a run file as columns: of a large file in parts, each in a process of its own.

Of a line only what its columns hold is made into Python's values, and what a column wants of a hundred lines is taken
at once. Parsing is most of what is left, and that several processes share. For the parent only.
"""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import compress, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import astuple

from attnbench.core.errors import UserError
from attnbench.core.json import to_json
from attnbench.core.record import Record, Status
from attnbench.results import batch, columns, decode, derive, metrics
from attnbench.results.columns import ERRORS, PRESENT, Fields, Samples

Chunk = Sequence[int]  # lines: where each begins, and where that behind the last one would
CHUNK = 100  # lines taken at once: what they hold fits into a core's cache
LEAST = 16 << 20  # bytes, for which a process is worth its start
MEANWHILE = 16 << 20  # bytes that others read while this process imports what follows
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
        self.starts = array("q")  # of the lines that are records, in the file
        self.lines = 0
        self.problems: list[tuple[int, str]] = []  # the number of a line, and what is wrong with it
        self.refused: tuple[int, str] | None = None  # the same of one that stops the reading

    def samples(self, name: str) -> Samples:
        return self.taken[name]

    def read(self, view: memoryview, chunks: Iterable[Chunk]) -> None:
        """Appends lines of a file."""
        for chunk in chunks:
            if not self._take(view, chunk):
                for number, line in enumerate(pairwise(chunk), self.lines + 1):
                    if not self._take(view, line):
                        self._take_odd(view, line, number)
            self.lines += len(chunk) - 1
            if self.refused:
                break

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

    def _take(self, view: memoryview, chunk: Chunk) -> bool:
        """Whether all of these lines were records as msgspec takes them; else nothing was done."""
        starts, same, place = chunk[:-1], self._same["case"].setdefault, len(self)
        try:
            rows = _reader(self.names).decode_lines(view[starts[0] : chunk[-1]])
            if len(rows) != len(starts) or not _whole(view, chunk):
                return False  # what it takes for lines are not those of the file
            fields = _by_field(rows)
            cases = [*map(bytes, fields["case"])]
            for text in set(cases):
                decode.case(text)
        except (msgspec.MsgspecError, ValueError, TypeError):
            return False
        measured = _by_field(fields["measurements"])
        for name, column in self.taken.items():
            column.extend(_samples(measured[name]))
        for name, places in self.present.items():
            places.update(compress(range(place, place + len(rows)), measured[name]))
        if "error" in self.values:
            self.values["error"] += map(_error, rows)
        self.cases += map(same, cases, cases)
        self.add(fields)
        self.starts.extend(starts)
        return True

    def _take_odd(self, view: memoryview, line: Chunk, number: int) -> None:
        """A record whose line has what msgspec does not take; or what is wrong with it."""
        start, end = line
        try:
            record = decode.record(view[start : end - 1])
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
        self.add(columns.plain([record]))
        self.starts.append(start)


@dataclass(frozen=True)
class Lines:
    """Those of a file behind its first."""

    path: Path
    content: bytes | mmap.mmap
    start: int  # of the second line
    stop: int  # behind the last newline

    @contextmanager
    def parts(
        self, ahead: Sequence[str] = (), *, reduced: bool = False, meanwhile: Callable[[], object] | None = None
    ) -> Iterator[Iterator[Part]]:
        """Their columns, with the samples of those measurements. Other processes, if any, begin at once.

        This one reads the first part when that is asked for. `meanwhile` is called here once the others have begun, and
        not at all where there are none; it makes the first part smaller. Of parts that are `reduced` and several,
        figures come in place of samples: to hand those over takes as long as to read them.
        """
        number = _processes(self.stop)
        size = max(1, (self.stop + (MEANWHILE if meanwhile else 0)) // number)
        begins = range(max(0, self.stop - size * (number - 1)), self.stop, size)
        ends = [self.content.find(b"\n", max(at, self.start - 1)) + 1 for at in begins]
        cuts = list(zip([self.start, *ends], [*ends, self.stop], strict=True))
        if len(cuts) < 2:
            yield map(partial(self._part, ahead, False), cuts)
            return
        import numpy as np  # noqa: F401  (before the processes begin, which need it too)

        from attnbench.results.apart import apart

        with apart(partial(self._part, ahead, reduced), cuts) as parts:
            if meanwhile:
                meanwhile()
            yield parts

    def _part(self, ahead: Sequence[str], reduced: bool, cut: tuple[int, int]) -> Part:
        """Of the lines from one place in the file to another."""
        part = Part(ahead)
        part.read(memoryview(self.content), self._chunks(*cut))
        if reduced:
            part.reduce(lambda i: self.record(part.starts[i]))
        return part

    def _chunks(self, start: int, stop: int) -> Iterator[Chunk]:
        find, chunk = self.content.find, [start]
        while start < stop:
            start = find(b"\n", start) + 1
            chunk.append(start)
            if len(chunk) > CHUNK or start == stop:
                yield chunk
                chunk = [start]

    def record(self, start: int) -> Record:
        """Of the line that begins there, that was found to be one."""
        place = Place(self, start)
        try:
            found = decode.record(memoryview(self.content)[start : self.content.find(b"\n", start)], place)
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
    from attnbench.results.apart import processes

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


def _whole(view: memoryview, chunk: Chunk) -> bool:
    """Whether each line begins with a brace and ends with one, so that no object goes on in the next: between two
    braces within it a comma or a colon stands."""
    opening, closing = {*map(view.__getitem__, chunk[:-1])}, {view[end - 2] for end in chunk[1:]}
    return (opening, closing) == ({ord("{")}, {ord("}")})


def _by_field(rows: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """The fields of some structs of one type, each of all of them."""
    return dict(zip(rows[0].__struct_fields__, zip(*map(astuple, rows), strict=True), strict=True))


def _samples(measured: Sequence[_Taken]) -> list[list[float]]:
    """Of a measurement of each record; empty where it has none."""
    found, packed = ([*map(attrgetter(name), measured)] for name in ("values", "runs"))
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
