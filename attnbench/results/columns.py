"""The records of a run by column: what is asked of all of them, without an object for each.

To make a Record of each of 100,000 lines and to go through those for every question takes ten seconds. So lines.py
makes columns of the lines, and a Record is made of a line when somebody wants that one. For the parent only.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import attrgetter, iconcat
from struct import pack
from typing import TYPE_CHECKING, Any

from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Record, Status
from attnbench.results import decode, derive
from attnbench.results.made import Made

if TYPE_CHECKING:
    from attnbench.results.arrays import Floats
    from attnbench.results.lines import Lines, Part

PRESENT = (*derive.TURNS, "sustained_power")  # measurements of which it is kept who has them
ERRORS = "accuracy"  # no measurement, but may be read ahead with them
SPEED = ("time", "span", "clock_held")  # what a gate asks of every record
COMPARE = (*SPEED, *derive.CEILINGS)  # what comparisons do
REPORT = (*COMPARE, "enqueue", "memory_peak", "memory_driver")  # what reports do


class Samples:
    """Of one measurement: how many each record has, and all in a row."""

    def __init__(self) -> None:
        self.counts = array("q")
        self._packed: list[bytes] = []  # pieces of them: one array that grew by each would be copied a dozen times

    @property
    def values(self) -> memoryview[float]:
        """Not a copy; the pieces are joined for good."""
        self._packed = [b"".join(self._packed)]
        return memoryview(self._packed[0]).cast("d")

    def extend(self, taken: Sequence[list[float]]) -> None:
        """By those of the next records; an empty list where there are none."""
        every: list[float] = reduce(iconcat, taken, [])
        self.counts.extend(map(len, taken))
        self._packed.append(pack(f"{len(every)}d", *every))

    def join(self, other: Samples) -> None:
        """By those of another's records behind these."""
        self.counts.extend(other.counts)
        self._packed += other._packed

    def __iter__(self) -> Iterator[tuple[int, memoryview[float]]]:
        start, values = 0, self.values
        for place, length in enumerate(self.counts):
            if length:
                yield place, values[start : start + length]
                start += length


class Fields:
    """The plain fields by column. Lists have an entry a record; of what few records have, the places."""

    def __init__(self) -> None:
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
        self.values: dict[str, list[float | None]] = {}  # metric -> of every record; this and what follows: batch.py
        self.arrays: dict[str, Floats] = {}  # the same, with NaN for None
        self.spans: set[int] | None = None  # the records of which derive.uses_span, once that is known
        self._same: dict[str, dict[Any, Any]] = defaultdict(dict)  # of a column: what stands for all equal values

    def __len__(self) -> int:
        return len(self.backends)

    def add(self, fields: Mapping[str, Sequence[Any]]) -> None:
        """More records: the plain fields, each of all of them."""
        place = len(self)
        for field, name in _EVERY.items():
            getattr(self, name).extend(map(self._same[name].setdefault, fields[field], fields[field]))
        for field, name in _FEW.items():
            if any(fields[field]):
                one = self._same[name].setdefault
                each = enumerate(fields[field], place)
                getattr(self, name).update((i, one(value, value)) for i, value in each if value)

    def join(self, other: Fields) -> None:
        """Those of other records, behind these."""
        place = len(self)
        for name in _EVERY.values():
            getattr(self, name).extend(getattr(other, name))
        for name in _FEW.values():
            getattr(self, name).update((place + i, value) for i, value in getattr(other, name).items())
        for name, places in self.present.items():
            places.update(map(place.__add__, other.present[name]))
        for name, values in other.values.items():
            self.values.setdefault(name, []).extend(values)
        if other.spans is not None:
            self.spans = (self.spans or set()).union(map(place.__add__, other.spans))
        if other.arrays:
            import numpy as np

            self.arrays |= {name: np.append(self.arrays.get(name, []), own) for name, own in other.arrays.items()}

    def samples(self, name: str) -> Samples:
        """Of one measurement."""
        raise NotImplementedError


# A field of a record -> the column that has it: of every record, and of those few where it says something.
_EVERY = {"backend": "backends", "round": "rounds", "status": "statuses", "timer": "timers", "l2": "l2"}
_FEW = {"reason": "reasons"} | {
    name: name for name in ("limits", "others", "notes", "ecc_errors", "resumable", "host_bound")
}


def plain(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Their plain fields, each of all of them."""
    return {field: [*map(attrgetter(field), records)] for field in (*_EVERY, *_FEW)}


class Columns(Fields, Made[Record]):
    """The records."""

    def __init__(self, records: Iterable[Record] = (), lines: Lines | None = None) -> None:
        """Of records that are there, or empty, for those of a file."""
        super().__init__()
        self._made = dict(enumerate(records))
        self._known: dict[Case, Case] = {}
        self._samples: dict[str, Samples] = {}
        self._lines = lines
        self._starts = array("q")  # of the lines
        every = list(self._made.values())
        self.cases = [self._known.setdefault(record.case, record.case) for record in every]  # equal ones are one
        self.add(plain(every))
        for name, places in self.present.items():
            places.update(i for i, record in enumerate(every) if name in record.measurements)

    def read(self, parts: Iterable[Part]) -> tuple[int, list[str]]:
        """Appends the records of the parts of a file.

        Gives the number of its last line and what is wrong with lines, one phrase each.
        """
        assert self._lines
        cases, problems, number = _Cases(self._known), [], 1
        for part in parts:
            problems += [f"{self._lines.path}:{number + n}: {why}" for n, why in part.problems]
            if part.refused:
                raise UserError(f"{self._lines.path}:{number + part.refused[0]}: {part.refused[1]}")
            for name, own in part.taken.items():
                self._samples.setdefault(name, Samples()).join(own)
            self.join(part)
            self.cases += map(cases.__getitem__, part.cases)
            self._starts += part.starts
            number += part.lines
        return number, problems

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
            column, starts = Samples(), array("q")
            if self._lines:
                with self._lines.parts((name,)) as parts:
                    for part in parts:
                        column.join(part.samples(name))
                        starts += part.starts
            if len(column.counts) != len(self) or starts != self._starts:  # not of a file, or other lines are damaged
                column = Samples()
                column.extend([[*derive.values(self.once(place), name)] for place in range(len(self))])
            self._samples[name] = column
        return self._samples[name]

    def make(self, place: int) -> Record:
        if place not in self._made:
            self._made[place] = self.once(place)
        return self._made[place]

    def once(self, place: int) -> Record:
        """A record that is not kept, for what goes through all of them and needs each once."""
        if place in self._made or self._lines is None:
            return self._made[place]
        return self._lines.record(self._starts[place])


def of(records: Sequence[Record]) -> Columns:
    """Those of a file have them; of others they are made."""
    return records if isinstance(records, Columns) else Columns(records)


class _Cases(dict[bytes, Case]):
    """A case is read once, however many records have it."""

    def __init__(self, known: dict[Case, Case]) -> None:
        self._known = known

    def __missing__(self, text: bytes) -> Case:
        case = decode.case(text)
        found = self[text] = self._known.setdefault(case, case)
        return found
