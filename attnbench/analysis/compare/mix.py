"""A workload weighed: what a machine makes of it, as one figure with its parts. workload.py says what the figure is.

With q, how often each part is called (its share over its time on the reference, or over its FLOPs), a machine takes
T = sum of q t, and is T_ref / T times as fast. The logarithm of T moves with those of its cells' latencies as these
have shares in it, which gives the interval (ratios.py). By time q holds the reference's own times: T_ref is 1, and the
reference's cells count as the parts do on the other machine.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.compare import join, ratios
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.workload import Part, Workload
from attnbench.core import flops
from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.sizes import short
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.run.axes import Axes, matches


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
    mixes: list[_Mix | None] = []
    for i, machine in enumerate(found):
        chosen = [{c: of[i][c] for c in cases if able[i]} for of, cases in zip(picks, shared, strict=True)]
        mixes.append(_Mix(machine, chosen) if able[i] else None)
    base = mixes[home]
    assert base
    by_time = workload.weights == "time"
    loads = [share / (base.seconds(p) if by_time else base.flops(p)) for p, share in enumerate(workload.shares)]
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
                tuple(_ratio(base, mix, only, by_time) if mix else None for mix in mixes),
                tuple(mix.backends(p) if mix else () for mix in mixes),
            )
        )
    whole = tuple(_ratio(base, mix, loads, by_time) if mix else None for mix in mixes)
    tflops = tuple(mix.total_flops(loads) / mix.total(loads) / 1e12 if mix else None for mix in mixes)
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
        return float(sum(flops.flops(case) for case in self.parts[part]))

    def backends(self, part: int) -> tuple[str, ...]:
        return tuple(sorted({*self.parts[part].values()}, key=case_names.backend_rank))

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
    value = base.total(loads) / mix.total(loads)
    if mix is base:
        return ratios.Ratio(1.0, 1.0, 1.0, (), sum(len(part) for part in mix.parts))
    theirs = mix.shares(loads)
    ours = theirs if by_time else base.shares(loads)
    a, b = ratios.side(base.machine, base.weights(ours)), ratios.side(mix.machine, mix.weights(theirs))
    n = sum(len(part) for part, load in zip(mix.parts, loads, strict=True) if load)
    return ratios.joined(replace(a, log=math.log(value)), replace(b, log=0.0), n)


def _picks(part: Part, found: Sequence[Machine]) -> list[dict[Case, str]]:
    """By machine, the part's cases and the fastest backend of each. UserError, with the axis at fault, if none."""
    cases = {case for m in found for case, _ in m.logs}
    wanted = {case for case in cases if matches(part, case)}
    if not wanted:
        raise UserError(f"workload: {part.name!r} fits no case that was measured{_fault(part, cases)}")
    names = sorted({backend for m in found for _, backend in m.logs})
    allowed = {*names} if part.backend is None else {n for glob in part.backend for n in fnmatch.filter(names, glob)}
    if not allowed:
        word = ",".join(part.backend or ())
        raise UserError(f"workload: {part.name!r}: no backend {word!r} was measured{did_you_mean(word, names)}")
    return [join.best(m, (key for key in m.logs if key[0] in wanted and key[1] in allowed)) for m in found]


def _fault(part: Part, cases: Iterable[Case]) -> str:
    """The first axis none of whose values was measured, and those that were."""
    known: dict[str, Callable[[Case], str]] = {
        "seqlen": lambda c: short(c.shape.seqlen_k),
        "seqlen_q": lambda c: short(c.shape.seqlen_q),
        "headdim": case_names.headdim,
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
