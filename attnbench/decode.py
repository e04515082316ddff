"""Lines of a run file as values, fast: what jsonable.from_json makes of them, in a fifth of the time.

For the parent only, as msgspec is not in the standard library. What msgspec does not take as it stands (a number that
JSON has no word for, a field of another type) is left to jsonable, whose answer counts. Two things save most of the
time: a case is read once, however many records have it, and samples are read when a metric asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec

from attnbench.errors import UserError
from attnbench.jsonable import from_json
from attnbench.types import Accuracy, Case, Forecast, Job, Measurement, Record, Status

Line = bytes | memoryview
Place = tuple[Path, int]  # a file and the number of a line


def record(line: Line, place: Place | None = None) -> Record | None:
    """None for a line of another type. ValueError, TypeError, KeyError or AttributeError where it is damaged.

    Damaged samples are a UserError when a metric asks for them, which names the place.
    """
    try:
        found = _RECORD.decode(line)
        if found.type != "record":
            return None
        case = _case(bytes(found.case))
    except (msgspec.MsgspecError, ValueError, TypeError):
        return _slowly(line)
    return Record(
        case=case,
        backend=found.backend,
        round=found.round,
        status=found.status,
        reason=found.reason,
        measurements=Measurements(found.measurements, place),
        accuracy=found.accuracy,
        timer=found.timer,
        l2=found.l2,
        forecast=found.forecast,
        version=found.version,
        seconds=found.seconds,
        resumable=found.resumable,
        limits=found.limits,
        host_bound=found.host_bound,
        kernels=found.kernels,
        others=found.others,
        ecc_errors=found.ecc_errors,
        notes=found.notes,
        stderr=found.stderr,
    )


def jobs(plan: Line) -> tuple[Job, ...]:
    """The plan of a run. ValueError, TypeError, KeyError or AttributeError where it is damaged."""
    try:
        return tuple(
            Job(_case(bytes(j.case)), j.backend, j.round, j.forecast, j.skip, j.resumable) for j in _PLAN.decode(plan)
        )
    except (msgspec.MsgspecError, ValueError, TypeError):
        return tuple(from_json(Job, job) for job in json.loads(bytes(plan)))


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

    def __init__(self, found: dict[str, msgspec.Raw], place: Place | None = None) -> None:
        self._found: dict[str, Any] = found
        self._place = place

    def get(self, name: str, default: Any = None) -> Any:
        found = self._found.get(name, default)
        if type(found) is msgspec.Raw:
            try:
                found = self._found[name] = _measurement(found)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._damaged(name, error) from None
        return found

    def _damaged(self, name: str, error: Exception) -> UserError:
        where = f"{self._place[0]}:{self._place[1]}: " if self._place else ""
        return UserError(
            f"{where}measurement {name!r} cannot be read ({error}); delete that line, and attnbench run --resume "
            "measures its job anew"
        )

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


class _Samples(msgspec.Struct, gc=False):
    unit: str
    values: tuple[float, ...] = ()
    runs: tuple[tuple[float, int], ...] = ()


class _Record(msgspec.Struct, gc=False):
    """The fields of types.Record, with its defaults."""

    type: str
    case: msgspec.Raw
    backend: str
    round: int
    status: Status
    reason: str | None = None
    measurements: dict[str, msgspec.Raw] = {}
    accuracy: Accuracy | None = None
    timer: str | None = None
    l2: str | None = None
    forecast: Forecast | None = None
    version: str | None = None
    seconds: float | None = None
    resumable: bool = False
    limits: tuple[str, ...] = ()
    host_bound: bool = False
    kernels: dict[str, int] = {}
    others: tuple[str, ...] = ()
    ecc_errors: int = 0
    notes: tuple[str, ...] = ()
    stderr: str | None = None


class _Job(msgspec.Struct, gc=False):
    """The fields of types.Job."""

    case: msgspec.Raw
    backend: str
    round: int
    forecast: Forecast
    skip: str | None = None
    resumable: bool = False


_RECORD, _PLAN = msgspec.json.Decoder(_Record), msgspec.json.Decoder(list[_Job])
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
def _case(text: bytes) -> Case:
    return from_json(Case, json.loads(text))


def _measurement(raw: msgspec.Raw) -> Measurement:
    try:
        found = _SAMPLES.decode(raw)
        return Measurement(found.unit, found.values or _expanded(found.runs))
    except msgspec.MsgspecError:  # "nan" and "inf" are words
        return from_json(Measurement, _unpacked(json.loads(bytes(raw))))


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
    return {**{k: v for k, v in found.items() if k != "runs"}, "values": _expanded(found["runs"])}


def _expanded(runs: Any) -> tuple[float, ...]:
    return tuple(chain.from_iterable(repeat(value, times) for value, times in runs))
