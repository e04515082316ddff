"""A workload file: what a machine is for, as parts with weights; one figure with its parts.

    name: chat
    weights: time             # shares of the time on the reference machine (default), or of the work (FLOPs)
    parts:
      - {name: prefill 8k, weight: 70%, seqlen: 8k, causal: true, pass: fwd, headdim: 128}
      - {name: training 4k, weight: 30%, seqlen: 4k, pass: [fwd, bwd], backend: "sdpa-*"}

A part has the axes of a suite, and is one call of each of the cases that they leave: its time t is the sum of theirs,
its work W the sum of their FLOPs. Each machine runs each case with its fastest backend, or with the fastest of those
that the part's `backend` names.

- **time**: the weight is the part's share s of the time that the workload takes on the reference machine. The same work
  takes T = sum of s t / t_ref of that time on another, which so is 1 / T times as fast: the harmonic mean of the parts'
  ratios, weighted by s.
- **work**: the weight is the part's share f of all FLOPs. A machine takes T = sum of f t / W seconds a FLOP, and the
  ratio is that of two such times. It does not depend on the reference.

Either is a ratio of total times for one mix of work, which is what is waited and paid for; a geometric mean of ratios
is no ratio of times. Smith, "Characterizing Computer Performance with a Single Number", CACM 31(10), 1988.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from attnbench import work
from attnbench.compare import join, ratios
from attnbench.compare.machines import Key, Machine
from attnbench.errors import UserError, did_you_mean
from attnbench.report import words
from attnbench.sizes import short
from attnbench.suite import Axes, Names, matches
from attnbench.types import Case, Shape

EXAMPLE = "parts: [{name: prefill 8k, weight: 70%, seqlen: 8k, causal: true, pass: fwd}, ...]"
_ANY = Case(Shape(1, 1, 1, 1, 1, 1, 1), "bf16", "fwd")


class Part(Axes):
    name: str = ""
    weight: float | str
    backend: Names | None = None

    @field_validator("weight")
    @classmethod
    def _positive(cls, weight: float | str) -> float | str:
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*%?", str(weight).strip())
        if not match or not 0 < float(match[1]) < math.inf:
            raise ValueError(f"{weight!r} is not a weight above 0; write 70% or 0.7")
        return weight

    @property
    def amount(self) -> float:
        return float(str(self.weight).strip().rstrip("% "))

    @property
    def percent(self) -> bool:
        return str(self.weight).strip().endswith("%")


class Workload(BaseModel):
    """A workload file, validated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    description: str = ""
    weights: Literal["time", "work"] = "time"
    parts: list[Part]

    @property
    def shares(self) -> list[float]:
        """Of the parts; they add up to 1."""
        total = math.fsum(part.amount for part in self.parts)
        return [part.amount / total for part in self.parts]


@dataclass(frozen=True)
class PartFigure:
    name: str
    share: float
    cases: tuple[Case, ...]
    left_out: int  # cases that not every machine has a figure of
    ratios: tuple[ratios.Ratio | None, ...]  # by machine
    backends: tuple[tuple[str, ...], ...]  # by machine, those that were its fastest


@dataclass(frozen=True)
class Answer:
    """By machine; None where it cannot run every part."""

    workload: Workload
    ratios: tuple[ratios.Ratio | None, ...]
    tflops: tuple[float | None, ...]
    parts: tuple[PartFigure, ...]
    notes: tuple[str, ...]


def load(path: Path) -> Workload:
    """Raises UserError that says where it is wrong."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML: {words.one_line(str(error))}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a workload is a mapping with parts, as in {EXAMPLE}")
    return parse({"name": path.stem, **data}, str(path))


def parse(data: Mapping[str, Any], where: str) -> Workload:
    try:
        found = Workload.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error)}") from None
    if not found.parts:
        raise UserError(f"{where}: parts is empty; write {EXAMPLE}")
    some = [part.percent for part in found.parts]
    total = math.fsum(part.amount for part in found.parts)
    if any(some) and not all(some):
        raise UserError(f"{where}: some weights are in % and some are not; write all the same way")
    if all(some) and abs(total - 100) > 0.1:
        raise UserError(f"{where}: the weights add up to {total:g}%, not 100%")
    named = [
        part if part.name else part.model_copy(update={"name": f"part {i}"}) for i, part in enumerate(found.parts, 1)
    ]
    for part in named:
        try:
            matches(part, _ANY)
        except UserError as error:
            raise UserError(f"{where}: {part.name}: {error}") from None
    if len({part.name for part in named}) < len(named):
        raise UserError(f"{where}: two parts have one name")
    return found.model_copy(update={"parts": named})


def _explain(error: ValidationError) -> str:
    """The first thing wrong, with its place."""
    first = error.errors()[0]
    place = ".".join(str(p) for p in first["loc"])
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = Part if "parts" in first["loc"] else Workload
        known = {f.alias or n for n, f in model.model_fields.items()}
        return f"{place}: unknown key{did_you_mean(str(first['loc'][-1]), sorted(known))}"
    if first["type"] == "missing":
        return f"{place} is missing; write {EXAMPLE}"
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"


def weigh(workload: Workload, found: Sequence[Machine], reference: Machine) -> Answer:
    """Raises UserError where a part has no figure on the reference, or none that is common to the others."""
    home = next(i for i, machine in enumerate(found) if machine is reference)
    picks = [_picks(part, found) for part in workload.parts]
    notes = []
    for part, by_machine in zip(workload.parts, picks, strict=True):
        if not by_machine[home]:
            raise UserError(
                f"workload: {reference.label}, to which the others are compared, has no figure for {part.name!r}; "
                "name another machine with --to"
            )
        without = [m.label for m, pick in zip(found, by_machine, strict=True) if not pick]
        notes += [f"{label} has no figure for {part.name!r}, so none for the workload." for label in without]
    able = [all(by_machine[i] for by_machine in picks) for i in range(len(found))]
    shared = []
    for part, by_machine in zip(workload.parts, picks, strict=True):
        cases = join.common_cases([pick for pick, can in zip(by_machine, able, strict=True) if can])
        if not cases:
            raise UserError(f"workload: no case of {part.name!r} has a figure on all machines; widen its axes")
        shared.append(cases)
    mixes = [
        _Mix(m, [{case: of[i][case] for case in cases} for of, cases in zip(picks, shared, strict=True)]) if can else None
        for i, (m, can) in enumerate(zip(found, able, strict=True))
    ]
    base = mixes[home]
    assert base
    loads = [
        share / (base.seconds(p) if workload.weights == "time" else base.flops(p))
        for p, share in enumerate(workload.shares)
    ]
    by_time = workload.weights == "time"
    parts = []
    for p, part in enumerate(workload.parts):
        some = {case for pick, can in zip(picks[p], able, strict=True) if can for case in pick}
        only = [load if i == p else 0.0 for i, load in enumerate(loads)]
        parts.append(
            PartFigure(
                part.name,
                workload.shares[p],
                tuple(shared[p]),
                len(some) - len(shared[p]),
                tuple(mix and _ratio(base, mix, only, by_time) for mix in mixes),
                tuple(mix.backends(p) if mix else () for mix in mixes),
            )
        )
    whole = tuple(mix and _ratio(base, mix, loads, by_time) for mix in mixes)
    tflops = tuple(mix and mix.total_flops(loads) / mix.total(loads) / 1e12 for mix in mixes)
    return Answer(workload, whole, tflops, tuple(parts), tuple(notes))


@dataclass(frozen=True)
class _Mix:
    """A machine and, for each part, the backend that runs each of its cases. `loads` is how often each part is run."""

    machine: Machine
    parts: Sequence[join.Best]

    @cached_property
    def _times(self) -> list[dict[Key, float]]:
        return [{key: ratios.latency(self.machine, key) for key in part.items()} for part in self.parts]

    def seconds(self, part: int) -> float:
        return math.fsum(self._times[part].values())

    def flops(self, part: int) -> float:
        return float(sum(work.flops(case) for case in self.parts[part]))

    def backends(self, part: int) -> tuple[str, ...]:
        return tuple(sorted({*self.parts[part].values()}, key=words.backend_rank))

    def total(self, loads: Sequence[float]) -> float:
        return math.fsum(load * self.seconds(p) for p, load in enumerate(loads))

    def total_flops(self, loads: Sequence[float]) -> float:
        return math.fsum(load * self.flops(p) for p, load in enumerate(loads))

    def weights(self, shares: Sequence[float]) -> dict[Key, float]:
        """Of the logarithms of the latencies in that of the total, where each part has such a share in it."""
        found: dict[Key, float] = {}
        for p, share in enumerate(shares):
            for key, seconds in self._times[p].items():
                if share:
                    found[key] = found.get(key, 0.0) + share * seconds / self.seconds(p)
        return found

    def shares(self, loads: Sequence[float]) -> list[float]:
        total = self.total(loads)
        return [load * self.seconds(p) / total for p, load in enumerate(loads)]


def _ratio(base: _Mix, mix: _Mix, loads: Sequence[float], by_time: bool) -> ratios.Ratio:
    """By time the loads hold the reference's own times, so these count as the parts do on the other machine."""
    value = base.total(loads) / mix.total(loads)
    if mix is base:
        return ratios.Ratio(1.0, 1.0, 1.0, (), sum(len(part) for part in mix.parts))
    theirs = mix.shares(loads)
    ours = theirs if by_time else base.shares(loads)
    a, b = ratios.side(base.machine, base.weights(ours)), ratios.side(mix.machine, mix.weights(theirs))
    n = sum(len(part) for part, load in zip(mix.parts, loads, strict=True) if load)
    return ratios.joined(replace(a, log=math.log(value)), replace(b, log=0.0), n)


def _picks(part: Part, found: Sequence[Machine]) -> list[dict[Case, str]]:
    """By machine, the part's cases and the fastest backend of each. UserError if none has any, with the axis at fault."""
    cases = {case for m in found for case, _ in m.latencies}
    wanted = {case for case in cases if matches(part, case)}
    if not wanted:
        raise UserError(f"workload: {part.name!r} fits no case that was measured{_fault(part, cases)}")
    names = sorted({backend for m in found for _, backend in m.latencies})
    allowed = {*names} if part.backend is None else {n for glob in part.backend for n in fnmatch.filter(names, glob)}
    if not allowed:
        word = ",".join(part.backend or ())
        raise UserError(f"workload: {part.name!r}: no backend {word!r} was measured{did_you_mean(word, names)}")
    return [join.best(m, (key for key in m.latencies if key[0] in wanted and key[1] in allowed)) for m in found]


def _fault(part: Part, cases: Iterable[Case]) -> str:
    """The first axis none of whose values was measured, and those that were."""
    known: dict[str, Callable[[Case], str]] = {
        "seqlen": lambda c: short(c.shape.seqlen_k),
        "seqlen_q": lambda c: short(c.shape.seqlen_q),
        "headdim": words.headdim,
        "dtype": lambda c: c.dtype,
        "causal": lambda c: str(c.causal).lower(),
        "direction": lambda c: c.direction,
        "batch": lambda c: str(c.shape.batch),
        "nheads": lambda c: str(c.shape.nheads),
        "nheads_k": lambda c: str(c.shape.nheads_k),
    }
    for axis, word in known.items():
        value = getattr(part, axis)
        if value is not None and not any(matches(Axes().model_copy(update={axis: value}), case) for case in cases):
            values = sorted({word(case) for case in cases}, key=lambda v: (len(v), v))
            name = "pass" if axis == "direction" else axis
            return f": {name} {value} was not; {name} {', '.join(values)} were"
    return ": each of its axes was, but not together"
