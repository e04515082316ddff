"""Decode the lines of a run file: msgspec for regular lines, core.json for all others.

msgspec is ten times as fast. A line that it refuses (a number that JSON cannot express, a field of another type) goes
to core.json, which reads it or says what is wrong.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from datetime import datetime, timezone
from functools import cache, lru_cache
from itertools import accumulate, chain, repeat
from operator import attrgetter, lt
from sys import intern
from typing import Annotated, Any, get_type_hints, overload

import msgspec

from attnbench.core.case import Case
from attnbench.core.json import from_json
from attnbench.core.record import Forecast, Job, Measurement, Record, Run
from attnbench.results import bounds


class Repeated(Sequence[float]):
    """A sequence of samples, stored as (value, times) pairs.

    Where neighbours are equal, as in NVML's readings, this takes a quarter of the memory.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: array[float]) -> None:
        """Take the (value, times) pairs in order, each with `times` of 1 or more."""
        self._runs = runs

    def __reduce__(self) -> tuple[type[Repeated], tuple[array[float]]]:
        """Support pickle, whose older protocols do not take slots."""
        return Repeated, (self._runs,)

    def __len__(self) -> int:
        return int(sum(self._runs[1::2]))

    def __iter__(self) -> Iterator[float]:
        return chain.from_iterable(map(repeat, self._runs[::2], map(int, self._runs[1::2])))

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return (*self,)[index]


Places = Mapping[str, tuple[int, str, bool]]  # name -> its index, its unit, whether it is (value, times) pairs


class Samples(Mapping[str, Measurement]):
    """The measurements of a record in one array, which takes a third of the memory of an object for each."""

    __slots__ = ("_numbers", "_places")

    def __init__(self, places: Places, numbers: array[float]) -> None:
        """Take one array: the count of samples, the beginning and end of each measurement, then the samples."""
        self._places, self._numbers = places, numbers

    def __reduce__(self) -> tuple[type[Samples], tuple[Places, array[float]]]:
        """Support pickle, as `Repeated` does."""
        return Samples, (self._places, self._numbers)

    @property
    def number(self) -> int:
        """The number of samples of all measurements."""
        return int(self._numbers[0])

    def __getitem__(self, name: str) -> Measurement:
        place, unit, has_pairs = self._places[name]
        found, first = self._numbers, len(self._places) + 2
        values = found[first + int(found[place + 1]) : first + int(found[place + 2])]
        return Measurement(unit, Repeated(values) if has_pairs else values)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._places else default

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


MOST_OF_PLAIN = 2**22  # most bytes of a line for json, whose objects may take 30 times as many; records have 2**16
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # raised by a value of a wrong format


def record(line: bytes) -> Record | None:
    """Return the record of a line, or None for a line of an unknown type.

    Raises one of DAMAGE for a damaged line, such as one of an unknown type with a record's fields.
    """
    _check_text(line)
    try:
        found = _RECORD.decode(line)
        found.case = case(bytes(found.case))
        found.measurements = _samples(found.measurements)
        found.kernels = _kernels(bytes(found.kernels))
        found.forecast = None if (text := bytes(found.forecast)) == b"null" else _forecast(text)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        if read := _record_by_core_json(line):
            bounds.check_record(read)
        return read
    if found.type != "record":
        raise _other_type(found.type)
    values = msgspec.structs.astuple(found)[:-1]
    read = Record(*[intern(value) if type(value) is str else value for value in values])  # type: ignore[arg-type]
    bounds.check_relations(read)
    return read


def _check_text(line: bytes) -> None:
    """Raise ValueError for bytes that are not UTF-8: msgspec skips them in unknown fields."""
    if not line.isascii():
        line.decode("utf-8", "surrogatepass")


def samples(record: Record) -> int:
    """Return the number of samples of a record."""
    if isinstance(record.measurements, Samples):
        return record.measurements.number
    return sum(len(found.values) for found in record.measurements.values())


def fields(line: bytes) -> dict[str, bytes]:
    """Return the fields of a JSON object by name, each as JSON. Raises one of DAMAGE where it is no object."""
    try:
        return {name: bytes(value) for name, value in _OBJECT.decode(line).items()}
    except msgspec.MsgspecError:
        return {name: json.dumps(value).encode() for name, value in _plain(line).items()}


def _plain(line: bytes) -> Any:
    """Return the plain values of a line that msgspec refuses. Raises one of DAMAGE, also for a huge line."""
    if len(line) > MOST_OF_PLAIN:
        raise ValueError(f"{len(line):,} bytes, more than an irregular line has")
    return json.loads(line.decode("utf-8-sig", "surrogatepass"))  # json.loads would also take bytes in UTF-16


def type_of(line: bytes) -> Any:
    """Return the type of a line that is a JSON object, such as "record"; None where it has none."""
    return json.loads(fields(line).get("type", b"null"))


def run(header: Mapping[str, bytes]) -> Run:
    """Return a run, without records, from the fields of its first line. Raises one of DAMAGE."""
    plain = {name: json.loads(value) for name, value in header.items() if name not in ("type", "schema", "plan")}
    found = from_json(Run, {"policy": {}, "plan": (), **plain})
    whole = replace(found, plan=_jobs(header["plan"])) if "plan" in header else found
    bounds.check_run(whole)
    return replace(whole, started=_in_utc(whole.started))


def _in_utc(started: str) -> str:
    """Return a time in UTC, as attnbench writes it; a time without an offset, or other text, is returned as it is."""
    try:
        moment = datetime.fromisoformat(started)
        return moment.astimezone(timezone.utc).isoformat() if moment.utcoffset() else started
    except (ValueError, OverflowError):
        return started


@cache
def case(text: bytes) -> Case:
    """Return the case in a JSON text. All records of the case share one object. Raises one of DAMAGE."""
    return from_json(Case, json.loads(text))


@lru_cache(maxsize=4096)
def _kernels(text: bytes) -> Mapping[str, int]:
    """Return the kernels in a JSON text. Equal texts share one mapping. Raises MsgspecError."""
    return {intern(name): calls for name, calls in _KERNELS.decode(text).items()}


@lru_cache(maxsize=4096)
def _forecast(text: bytes) -> Forecast:
    """Return the forecast in a JSON text. A job and its record share one object.

    Raises MsgspecError, or ValueError for an impossible number.
    """
    found: Forecast = _FORECAST.decode(text)
    bounds.check_forecast(found)
    return found


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's JSON with each series of equal samples as [value, times], where that is shorter.

    NVML's readings change more slowly than they are taken, so that half of a record would be repetition.
    """
    if "measurements" not in data:
        return dict(data)
    return {**data, "measurements": {name: _packed(found) for name, found in data["measurements"].items()}}


def expanded(runs: Any) -> list[float]:
    """Return the samples of [value, times] pairs, whose number `_check_room` has checked.

    Raises ValueError for other values.
    """
    found: list[float] = []
    if not isinstance(runs, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in runs
    ):
        raise ValueError("runs: not a list of [value, times]")
    for value, times in runs:
        if type(times) is not int or times < 1:
            raise ValueError(f"runs: {json.dumps(times)} is not a number of samples")
        found += [value] * times
    return found


def _times(found: Iterable[Any]) -> Iterator[int]:
    """Yield the number of samples of each [value, times] pair of some measurements, unchecked."""
    for runs in found:
        for pair in runs if isinstance(runs, list | tuple) else ():
            if isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[1]) is int:
                yield max(pair[1], 0)


def _check_room(times: Iterable[int]) -> None:
    """Raise ValueError where the [value, times] pairs of all measurements together represent too many samples."""
    if (number := sum(times)) > bounds.MOST_OF_RECORD:
        raise ValueError(f"runs: {json.dumps(number)} is not a number of samples")


_Sample = Annotated[float, msgspec.Meta(ge=-bounds.LARGEST, le=bounds.LARGEST)]


class _Taken(msgspec.Struct, gc=False):  # gc=False: it cannot be in a cycle
    unit: str
    values: list[_Sample] | None = None
    runs: list[tuple[_Sample, Annotated[int, msgspec.Meta(ge=1)]]] | None = None


_NONE = Samples({}, array("d", (0.0, 0.0)))  # of all records that measured nothing


def _samples(found: Mapping[str, _Taken]) -> Samples:
    """Return the measurements of a record. Raises ValueError for one without samples, and for impossible values."""
    if not found:
        return _NONE
    taken = [*found.values()]
    values = [*map(attrgetter("values"), taken)]
    pairs = tuple([i for i, of in enumerate(values) if of is None])
    for i in pairs:
        values[i] = [*chain.from_iterable(taken[i].runs or ())]
    times = int(sum(sum(values[i][1::2]) for i in pairs))
    _check_room((times,))
    numbers, ends = [*chain.from_iterable(values)], accumulate(map(len, values), initial=0)
    number = len(numbers) - sum(len(values[i]) for i in pairs) + times
    places, least, clocks = _places(tuple(found), tuple(map(attrgetter("unit"), taken)), pairs)
    hertz = chain.from_iterable(values[i][::2] if i in pairs else values[i] for i in clocks)
    if any(map(lt, map(min, values), least)) or any(0 < value < bounds.SLOWEST for value in hertz):
        raise ValueError("a value that cannot have been measured")
    return Samples(places, array("d", (number, *ends, *numbers)))


@lru_cache(maxsize=4096)
def _places(
    names: Sequence[str], units: Sequence[str], pairs: Sequence[int]
) -> tuple[Places, Sequence[float], Sequence[int]]:
    """Return the indices of measurements, the least value of each, and which are clocks, for all records of the names.

    `pairs` are the indices of measurements with (value, times) pairs. Raises ValueError where a name has a wrong unit.
    """
    each = enumerate(zip(names, units, strict=True))
    places = {intern(name): (place, intern(unit), place in pairs) for place, (name, unit) in each}
    clocks = [place for place, name in enumerate(names) if bounds.unit(name) == "Hz"]
    return places, [*map(bounds.least, names, units)], clocks


# Fields within the bounds of bounds.py; core.json reads a line with another value, and `check_record` names the field.
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # the range of integers in tables
_Count = Annotated[int, msgspec.Meta(ge=0, le=bounds.MOST)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=bounds.MOST)]
_Text = Annotated[str, msgspec.Meta(max_length=bounds.MOST_OF_TEXT)]
_BOUNDED: dict[Any, Any] = {
    int: _Count,
    float | None: _Number | None,
    str: _Text,
    str | None: _Text | None,
    tuple[str, ...]: tuple[_Text, ...],
    Mapping[str, float]: dict[_Text, _Number],
}


class _Job(msgspec.Struct):
    case: msgspec.Raw
    backend: str
    round: _Whole
    forecast: msgspec.Raw
    skip: str | None = None
    resumable: bool = False


_HINTS = get_type_hints(Record)
_REQUIRED = {"case", "backend", "round", "status"}  # a line with these fields is a record
_TYPES: dict[str, Any] = {
    **{name: _BOUNDED.get(hint, hint) for name, hint in _HINTS.items()},
    "case": msgspec.Raw,
    "measurements": dict[_Text, _Taken],
    "kernels": msgspec.Raw,
    "forecast": msgspec.Raw,
}
_DEFAULTS: dict[str, Any] = {
    **{name: getattr(Record, name) for name in _HINTS if hasattr(Record, name)},
    **{of.name: of.default_factory() for of in dataclasses.fields(Record) if of.default_factory is not MISSING},
    "kernels": msgspec.Raw(b"{}"),
    "forecast": msgspec.Raw(b"null"),
}
_LINE: list[Any] = [
    *((name, hint, _DEFAULTS.get(name, msgspec.NODEFAULT)) for name, hint in _TYPES.items()),
    ("type", str),  # last: the others are in the order of Record's fields
]
_RECORD: Any = msgspec.json.Decoder(msgspec.defstruct("RecordLine", _LINE, kw_only=True, gc=False))
_OBJECT: Any = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KERNELS: Any = msgspec.json.Decoder(dict[_Text, _Count])
_FORECAST: Any = msgspec.json.Decoder(Forecast)
_PLAN: Any = msgspec.json.Decoder(list[_Job])


def jobs(line: bytes) -> tuple[Job, ...]:
    """Return the jobs of a line that adds jobs to a plan. Raises one of DAMAGE."""
    return _jobs(fields(line)["plan"])


def _jobs(plan: bytes) -> tuple[Job, ...]:
    _check_text(plan)
    try:
        return tuple(
            Job(case(bytes(j.case)), intern(j.backend), j.round, _forecast(bytes(j.forecast)), j.skip, j.resumable)
            for j in _PLAN.decode(plan)
        )
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return tuple(from_json(Job, job) for job in json.loads(plan))


def _record_by_core_json(line: bytes) -> Record | None:
    given = fields(line)
    kind = json.loads(given["type"])
    if kind != "record":
        if isinstance(kind, str) and not given.keys() >= _REQUIRED:
            return None
        raise _other_type(kind)
    data = _plain(line)
    del data["type"]
    found = data.get("measurements")
    if isinstance(found, Mapping):
        _check_room(_times(one.get("runs") for one in found.values() if isinstance(one, Mapping)))
        data["measurements"] = {name: _unpacked(one) for name, one in found.items()}
    return from_json(Record, data)


def _other_type(kind: Any) -> ValueError:
    return ValueError(f"{json.dumps(kind)} is not the type of a line with these fields")


def _packed(found: Mapping[str, Any]) -> Mapping[str, Any]:
    runs: list[list[Any]] = []
    for value in found["values"]:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    if 2 * len(runs) >= len(found["values"]):
        return found
    return {**{k: v for k, v in found.items() if k != "values"}, "runs": runs}


def _unpacked(found: Any) -> Any:
    """Return a measurement's JSON with all its samples written out; another value is returned unchanged."""
    if not isinstance(found, Mapping) or "values" in found or "runs" not in found:
        return found
    return {**{k: v for k, v in found.items() if k != "runs"}, "values": expanded(found["runs"])}
