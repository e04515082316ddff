"""Lines of a run file as values, fast: what jsonable.from_json makes of them, in a tenth of the time.

For the parent only, as msgspec is not in the standard library. What msgspec does not take as it stands (a number that
JSON has no word for, a field of another type) is left to jsonable, whose answer counts. Three things save most of the
time: a case is read once, however many records have it; samples are read when they are asked for, and so are the jobs
of a plan; and a dataclass gets its fields all at once, as msgspec gives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, TypedDict

import msgspec
from msgspec.structs import astuple

from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.json import from_json
from attnbench.core.record import Accuracy, Forecast, Job, Measurement, Record, Status
from attnbench.results.made import Made

Line = bytes | memoryview
DAMAGE = (ValueError, KeyError, TypeError, AttributeError)  # what reading raises of what is no value of ours


def record(line: Line, place: object = None) -> Record | None:
    """None for a line of another type. ValueError, TypeError, KeyError or AttributeError where it is damaged.

    What is read later and damaged raises UserError, which says the place: anything that str() makes words of.
    """
    try:
        found = _RECORD.decode(line)
        if found.pop("type") != "record":
            return None
        found["case"] = case(bytes(found["case"]))
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return _slowly(line)
    found["measurements"] = Measurements(found.get("measurements", {}), place)
    found.setdefault("kernels", {})
    made = object.__new__(Record)
    object.__setattr__(made, "__dict__", found)  # a field that is not in it has its default
    return made


def jobs(plan: Line) -> Sequence[Job]:
    """The plan of a run. ValueError, TypeError, KeyError or AttributeError where it is damaged."""
    try:
        return _Jobs(_PLAN.decode(plan))
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return tuple(from_json(Job, job) for job in json.loads(bytes(plan)))


def keys(plan: Sequence[Job]) -> tuple[Sequence[Case], Sequence[str], Sequence[int]]:
    """Cases, backends and rounds of the jobs; those of a file are not made for it."""
    if isinstance(plan, _Jobs):
        return plan.cases, plan.backends, plan.rounds
    return [job.case for job in plan], [job.backend for job in plan], [job.round for job in plan]


def fields(line: Line) -> dict[str, msgspec.Raw]:
    """The fields of an object, unread. ValueError where it is none."""
    try:
        return _OBJECT.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(error) from None


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """A record as JSON with its samples in fewer words: [value, times] for each run of equal ones, where that is less.

    What NVML says changes more slowly than it is asked: half of a record was repetition.
    """
    if "measurements" not in data:
        return dict(data)
    return {**data, "measurements": {name: _packed(found) for name, found in data["measurements"].items()}}


class Measurements(Mapping[str, Measurement]):
    """Those of a record by name, each read when it is asked for."""

    __slots__ = ("_found", "_place")

    def __init__(self, found: dict[str, Any], place: object) -> None:
        self._found = found
        self._place = place

    def get(self, name: str, default: Any = None) -> Any:
        found = self._found.get(name, default)
        if type(found) is msgspec.Raw:
            found = self._found[name] = _measurement(name, found, self._place)
        return found

    def __getitem__(self, name: str) -> Measurement:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        assert isinstance(found, Measurement)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return repr(dict(self))


class _Jobs(Made[Job]):
    """Who reads a run seldom asks for more of its plan than the keys."""

    def __init__(self, found: list[_Job]) -> None:
        self.cases = [case(bytes(job.case)) for job in found]  # raises where it is damaged
        self.backends = [job.backend for job in found]
        self.rounds = [job.round for job in found]
        self._found = found

    @cached_property
    def _jobs(self) -> tuple[Job, ...]:
        return tuple(
            Job(own, job.backend, job.round, Forecast(*astuple(job.forecast)), job.skip, job.resumable)
            for own, job in zip(self.cases, self._found, strict=True)
        )

    def __len__(self) -> int:
        return len(self.cases)

    def make(self, place: int) -> Job:
        return self._jobs[place]


class _Samples(msgspec.Struct, gc=False):
    unit: str
    values: tuple[float, ...] = ()
    runs: tuple[tuple[float, int], ...] = ()


class _Forecast(msgspec.Struct, gc=False):
    seconds: float
    call: float
    nbytes: int


class _Job(msgspec.Struct, gc=False):
    case: msgspec.Raw
    backend: str
    round: int
    forecast: _Forecast
    skip: str | None = None
    resumable: bool = False


class _RecordLine(TypedDict):
    """The fields of types.Record without a default, but the case: msgspec takes no Raw that must be there."""

    type: str
    backend: str
    round: int
    status: Status


class _RecordFields(_RecordLine, total=False):
    """The case, and those that have one."""

    case: msgspec.Raw
    reason: str | None
    measurements: dict[str, msgspec.Raw]
    accuracy: Accuracy | None
    timer: str | None
    l2: str | None
    forecast: Forecast | None
    version: str | None
    seconds: float | None
    resumable: bool
    limits: tuple[str, ...]
    host_bound: bool
    kernels: dict[str, int]
    others: tuple[str, ...]
    ecc_errors: int
    notes: tuple[str, ...]
    stderr: str | None


_RECORD: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_RecordFields)
_CASE = msgspec.json.Decoder(Case)
_PLAN = msgspec.json.Decoder(list[_Job])
_SAMPLES, _OBJECT = msgspec.json.Decoder(_Samples), msgspec.json.Decoder(dict[str, msgspec.Raw])


def _slowly(line: Line) -> Record | None:
    data = json.loads(bytes(line))
    if data.pop("type") != "record":
        return None
    found = data.get("measurements")
    if found:
        data["measurements"] = {name: _unpacked(one) for name, one in found.items()}
    return from_json(Record, data)


@cache
def case(text: bytes) -> Case:
    """Read once, however many records have it."""
    with suppress(msgspec.MsgspecError):
        found, said = _CASE.decode(text), _OBJECT.decode(text)
        if said.keys() <= vars(found).keys() and _OBJECT.decode(said["shape"]).keys() <= vars(found.shape).keys():
            return found
    return from_json(Case, json.loads(text))  # which refuses fields that are not known, too, and says what is wrong


def _measurement(name: str, raw: msgspec.Raw, place: object) -> Measurement:
    try:
        found = _SAMPLES.decode(raw)
        return Measurement(found.unit, found.values or expanded(found.runs))
    except msgspec.MsgspecError:
        pass
    try:  # "nan" and "inf" are words
        return from_json(Measurement, _unpacked(json.loads(bytes(raw))))
    except DAMAGE as error:
        raise unreadable(f"measurement {name!r}", error, place) from None


def unreadable(what: str, error: Exception, place: object) -> UserError:
    where = f"{place}: " if place else ""
    return UserError(
        f"{where}{what} cannot be read ({error}); delete that line, and attnbench run --resume measures its job anew"
    )


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


def _unpacked(found: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or "runs" not in found:
        return found
    return {**{k: v for k, v in found.items() if k != "runs"}, "values": expanded(found["runs"])}


def expanded(runs: Any) -> tuple[float, ...]:
    found: list[float] = []
    for value, times in runs:
        found += [value] * times
    return tuple(found)
