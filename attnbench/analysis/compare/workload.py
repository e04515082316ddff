"""A weighted workload: the intended use of a machine, as parts with weights.

    name: chat
    weights: time             # shares of the time on the reference machine (default), of the work (FLOPs), or calls
    parts:
      - {name: prefill 8k, weight: 70%, seqlen: 8k, causal: true, pass: fwd, headdim: 128}
      - {name: training 4k, weight: 30%, seqlen: 4k, pass: [fwd, bwd], backend: "sdpa-*"}

docs/compare.md defines part, weight, token and device. A machine takes T = sum of n t for the workload; n is the number
of calls of a part (its share over its time on the reference, or over its FLOPs), t the sum of its cases' times.

**The interval of a ratio**: log T changes with the logarithms of its cells' latencies in proportion to their shares of
T, which are their weights in speed_ratio.py. With weights by time, n contains the reference's own times: T_ref is 1,
and the reference's cells get the weights that the parts have on the other machine.

**Devices**: a call of several ranks, or of a layer with its heads divided among several devices (`tp` of requests in
words), keeps all of them busy for its time. Speed and tokens a second are by T, for all these devices together.
FLOP/s, watts, work per joule and money are per device, by device-seconds: the sum of n t times the devices.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, field_validator

from attnbench.analysis.compare.common_cells import FASTEST_ON_ANOTHER, common
from attnbench.analysis.compare.like_kernels import shared_cells, tried_by_all
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import Ratio, Weights, speed_ratio
from attnbench.core.axes import AXES
from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import flops
from attnbench.core.text import shortened
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.run import yaml_file
from attnbench.run.axes import Axes, matches, parsed
from attnbench.run.suite import Names

MOST_LAYERS = 10_000
MOST_WEIGHT = 1e12
EXAMPLE = "parts: [{name: prefill 8k, weight: 70%, seqlen: 8k, causal: true, pass: fwd}, ...]"


class Part(Axes):
    """A part of a workload: a name, a weight, the axes of its cases and the backends that may run them."""

    name: str = ""
    weight: str  # "70%" or "0.7"
    backend: Names | None = None

    @field_validator("weight", mode="before")
    @classmethod
    def _positive(cls, weight: object) -> str:
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*%?", str(weight).strip())
        if not match or not 0 < float(match[1]) <= MOST_WEIGHT:
            raise ValueError(f"{shortened(repr(weight))} is not a weight above 0; write 70% or 0.7")
        return match[0]

    @property
    def amount(self) -> float:
        """The weight as a number, without a per cent sign."""
        return float(self.weight.rstrip("% "))


class Workload(BaseModel):
    """A workload file, validated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    description: str = ""
    weights: Literal["time", "work", "calls"] = "time"
    tokens: PositiveInt | None = None  # output of all calls, unless all tokens that go through attention count
    layers: int = 1  # layers of the model: how often a token passes through attention
    parts: list[Part]

    @field_validator("layers")
    @classmethod
    def _some(cls, layers: int) -> int:
        if not 1 <= layers <= MOST_LAYERS:
            raise ValueError(f"{layers} is not a number of layers from 1 to {MOST_LAYERS}")
        return layers

    @property
    def shares(self) -> list[float]:
        """The weights of the parts, as shares that add up to 1."""
        total = math.fsum(part.amount for part in self.parts)
        return [part.amount / total for part in self.parts]

    def measured(self, machines: Sequence[Machine], reference: Machine, shared: bool) -> MeasuredWorkload:
        """Return the workload with its figures. `shared`: only with backends that all able machines have.

        Raises UserError if a part has no figure on the reference, or none that the machines share.
        """
        fastest = [_fastest_cells(part, machines, reference) for part in self.parts]
        able = [machine for machine in machines if all(of_part[machine] for of_part in fastest)]
        measured = [{case for machine in able for case in of_part[machine]} for of_part in fastest]
        if shared:
            cells = {*shared_cells(able)}
            fastest = [_fastest_cells(part, machines, reference, cells) for part in self.parts]
        parts, notes = [], []
        for part, share, of_part, every in zip(self.parts, self.shares, fastest, measured, strict=True):
            cases = common(of_part[machine] for machine in able)
            if not cases:
                raise UserError(f"workload: no case of {part.name!r} has a figure on all machines; widen its axes")
            if not shared:
                cases = [case for case in cases if tried_by_all(able, [of_part[machine][case] for machine in able])]
            if not cases:
                raise UserError(f"workload: in no case of {part.name!r} did each machine try {FASTEST_ON_ANOTHER}")
            of_part_cells = {machine: {of_part[machine][case]: 1.0 for case in cases} for machine in able}
            calls = part.amount
            if self.weights != "calls":
                keys = of_part_cells[reference]
                calls = share / sum(map(reference.latency, keys) if self.weights == "time" else map(flops, cases))
            parts.append(MeasuredPart(part.name, share, calls, tuple(cases), len(every) - len(cases), of_part_cells))
            without = [machine.label for machine, found in of_part.items() if not found]
            notes += [f"{label} has no figure for {part.name!r}, so none for the workload." for label in without]
        if self.weights == "calls":
            parts = shares_of_time(parts, reference)
        tokens = self.tokens or math.fsum(part.tokens for part in parts)
        return MeasuredWorkload(self.name, self.weights, self.layers, tokens, reference, tuple(parts), tuple(notes))


def load(path: Path) -> Workload:
    """Return the workload in a file; without names, it is named after the file and a part by its number.

    Raises UserError that begins with the file and says what is wrong.
    """
    data = yaml_file.read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: a workload is a mapping with parts, as in {EXAMPLE}")
    try:
        found = Workload.model_validate({"name": path.stem, **data})
    except ValidationError as error:
        advice = f"; write {EXAMPLE}" if error.errors()[0]["type"] == "missing" else ""
        mistake = yaml_file.first_mistake(error, {"": Workload, "parts": Part})
        raise UserError(f"{path}: {mistake}{advice}") from None
    parts = [part.model_copy(update={"name": part.name or f"part {i}"}) for i, part in enumerate(found.parts, 1)]
    if problem := _problem(parts):
        raise UserError(f"{path}: {problem}")
    return found.model_copy(update={"parts": parts})


def _problem(parts: Sequence[Part]) -> str:
    """Return the error in a list of valid parts, or in their weights together; "" if there is none."""
    percents = {part.weight.endswith("%") for part in parts}
    total = math.fsum(part.amount for part in parts)
    if not parts:
        return f"parts is empty; write {EXAMPLE}"
    if len(percents) > 1:
        return "some weights are in % and some are not; write all the same way"
    if percents == {True} and abs(total - 100) > 0.1:
        return f"the weights add up to {total:g}%, not 100%"
    for part in parts:
        try:
            parsed(part)
        except UserError as error:
            return f"{part.name}: {error}"
    return "two parts have one name" if len({part.name for part in parts}) < len(parts) else ""


@dataclass(frozen=True)
class MeasuredPart:
    """A part of a workload, with its figures on the machines that can run all parts."""

    name: str
    share: float  # of the workload: its weight; with weights by calls, its share of the time on the reference
    calls: float  # how often it is called
    cases: tuple[Case, ...]
    left_out: int  # number of cases without a figure on some machine
    cells: Mapping[Machine, Mapping[Key, float]]  # machine -> cell of each case -> times per call
    interpolation: float = 0.0  # half the 95 % interval that is added to its time, relative
    stands_in: str = ""  # the measured cases of an interpolated time, as a part of a sentence; "" if none
    tp: int = 1  # devices that share a layer's heads; each runs every call

    def devices(self, key: Key) -> int:
        """Return the number of devices that run a call of a cell."""
        return self.tp * key[0].ranks

    def seconds(self, machine: Machine, of_devices: bool = False) -> float:
        """Return the part's time in the workload; `of_devices`: summed over the devices that run it."""
        cells = self.cells[machine].items()
        each = (n * machine.latency(key) * (self.devices(key) if of_devices else 1) for key, n in cells)
        return self.calls * math.fsum(each)

    @property
    def tokens(self) -> float:
        """The tokens that go through attention in all its calls."""
        forward = [case for case in self.cases if case.has_forward]
        return self.calls * sum(case.extent.batch * case.extent.seqlen_q for case in forward or self.cases)

    def backends(self, machine: Machine) -> list[str]:
        """Return the backends that run its cases; empty on a machine that cannot run all parts."""
        return sorted({backend for _, backend in self.cells.get(machine, ())}, key=case_names.backend_rank)


@dataclass(frozen=True)
class MeasuredWorkload:
    """A workload on all machines. The figures of a machine that cannot run all parts are None."""

    name: str
    weights: str  # "time", "work" or "calls"
    layers: int
    tokens: float  # in all calls
    reference: Machine
    parts: tuple[MeasuredPart, ...]
    notes: tuple[str, ...]  # machines without a figure, with the reason
    tokens_are: str = "tokens"  # what `tokens` counts

    @property
    def cases(self) -> frozenset[Case]:
        """The measured cases of its parts."""
        return frozenset(case for part in self.parts for cells in part.cells.values() for case, _ in cells)

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of devices that run its calls, in rising order: (1,), or (1, 2) if parts differ."""
        keys = ((part, key) for part in self.parts for key in part.cells[self.reference])
        return tuple(sorted({part.devices(key) for part, key in keys}))

    def ratio(self, machine: Machine, part: MeasuredPart | None = None, of_devices: bool = False) -> Ratio | None:
        """Return the speed ratio of a machine to the reference, in a part or in the whole workload.

        `of_devices`: by device-seconds, which gives the ratio of the work per device.
        """
        parts = [part] if part else self.parts
        if machine not in parts[0].cells:
            return None
        home = self.reference
        value = _seconds(parts, home, of_devices) / _seconds(parts, machine, of_devices)
        our_weights = _cell_weights(parts, home, machine if self.weights == "time" else home, of_devices)
        their_weights = _cell_weights(parts, machine, machine, of_devices)
        interpolation = math.hypot(*(_interpolation(parts, of, of_devices) for of in (home, machine)))
        return speed_ratio(home, our_weights, machine, their_weights, value, interpolation)

    def tflops(self, machine: Machine) -> float | None:
        """Return the TFLOP/s per device."""
        if machine not in self.parts[0].cells:
            return None
        # The FLOPs of a case count all its ranks, but only one device's share of the heads.
        work = math.fsum(part.calls * part.tp * sum(map(flops, part.cases)) for part in self.parts)
        return work / _seconds(self.parts, machine, of_devices=True) / 1e12

    def seconds_a_token(self, machine: Machine, of_devices: bool = False) -> float | None:
        """Return the seconds of a token in the attention of all layers; `of_devices`: summed over the devices."""
        if machine not in self.parts[0].cells:
            return None
        return _seconds(self.parts, machine, of_devices) * self.layers / self.tokens

    def energy_weights(self, machine: Machine) -> Weights:
        """Return the shares of a machine's cells in the workload's energy, with the number of calls taken as exact."""
        joules = defaultdict[Key, float](float)
        for key, times in self._runs(machine):
            joules[key] += times * machine.energy.latency(key)
        total = math.fsum(joules.values())
        return {key: of / total for key, of in joules.items()}

    def watts(self, machine: Machine) -> float | None:
        """Return the mean power of one device in watts over the workload; None unless all cells have a reading."""
        seconds = [times * machine.latency(key) for key, times in self._runs(machine)]
        watts = [machine.watts(key) for key, _ in self._runs(machine)]
        known = [one for one in watts if one]
        if not known or len(known) < len(watts):
            return None
        return math.fsum(t * w for t, w in zip(seconds, known, strict=True)) / math.fsum(seconds)

    def _runs(self, machine: Machine) -> list[tuple[Key, float]]:
        """Return (cell, its runs on all devices) for each part; empty on a machine that cannot run all parts."""
        of_parts = ((part, part.cells.get(machine, {})) for part in self.parts)
        return [(key, part.calls * n * part.devices(key)) for part, cells in of_parts for key, n in cells.items()]


def _seconds(parts: Sequence[MeasuredPart], machine: Machine, of_devices: bool = False) -> float:
    return math.fsum(part.seconds(machine, of_devices) for part in parts)


def _interpolation(parts: Sequence[MeasuredPart], machine: Machine, of_devices: bool) -> float:
    """Return half the interval that interpolation adds to the time of parts, each in proportion to its time."""
    total = _seconds(parts, machine, of_devices)
    return math.hypot(*(part.interpolation * part.seconds(machine, of_devices) / total for part in parts))


def _cell_weights(parts: Sequence[MeasuredPart], machine: Machine, weighing: Machine, of_devices: bool) -> Weights:
    """Return the weights of a machine's cells: their shares in their part's time, times the part's on `weighing`."""
    weights = defaultdict[Key, float](float)
    total = _seconds(parts, weighing, of_devices)
    for part in parts:
        weight = part.calls / part.seconds(machine, of_devices) * part.seconds(weighing, of_devices) / total
        for key, times in part.cells[machine].items():
            weights[key] += weight * times * machine.latency(key) * (part.devices(key) if of_devices else 1)
    return weights


def shares_of_time(parts: Sequence[MeasuredPart], reference: Machine) -> list[MeasuredPart]:
    """Return parts weighted by calls, with their shares of the time on the reference."""
    total = _seconds(parts, reference)
    return [replace(part, share=part.seconds(reference) / total) for part in parts]


def _fastest_cells(
    part: Part, machines: Sequence[Machine], reference: Machine, among: Collection[Key] | None = None
) -> dict[Machine, dict[Case, Key]]:
    """Return the part's cases on each machine, each with its fastest cell.

    `among`: the cells to choose from; None for all.
    Raises UserError if no case or no backend fits, with the axis that causes it, and if the reference has none.
    """
    cases = {case for machine in machines for case, _ in machine.log_rounds if not case.step}
    if not cases:
        raise UserError(f"workload: {part.name!r} fits no case that was measured: all cases are steps of whole models")
    wanted = {case for case in cases if matches(part, case)}
    if not wanted:
        raise UserError(f"workload: {part.name!r} fits no case that was measured{_unmeasured_axis(part, cases)}")
    names = sorted({backend for machine in machines for _, backend in machine.log_rounds})
    allowed = {*names} if part.backend is None else {n for glob in part.backend for n in fnmatch.filter(names, glob)}
    if not allowed:
        word = ",".join(part.backend or ())
        raise UserError(f"workload: {part.name!r}: no backend {word!r} was measured{did_you_mean(word, names)}")
    found = {}
    for machine in machines:
        keys = machine.log_rounds if among is None else [key for key in machine.log_rounds if key in among]
        able = machine if part.backend is None else replace(machine, own_code=frozenset())  # named, it may be own code
        found[machine] = able.fastest_of(key for key in keys if key[0] in wanted and key[1] in allowed)
    if not found[reference]:
        raise UserError(
            f"workload: {reference.label}, to which the others are compared, has no figure for {part.name!r}; "
            "name another machine with --to"
        )
    return found


def _unmeasured_axis(part: Part, cases: Iterable[Case]) -> str:
    """Return a clause that names the first axis of a part without any measured value, and the measured values."""
    for name, axis in AXES.items():
        value = getattr(part, name)
        if value is not None and not any(matches(Axes().model_copy(update={name: value}), case) for case in cases):
            values = sorted({axis.text(axis.of(case)) for case in cases}, key=lambda v: (len(v), v))
            said = axis.said or name
            return f": no file has {said} {value}, only {said} {', '.join(values)}"
    return ": its values were measured, but not together in one case"
