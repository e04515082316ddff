"""The speed ratio of a weighted workload and of its parts. workload_file.py defines weights, times and ratios.

With q, how often each part is called (its share over its time on the reference, or over its FLOPs), a machine takes
T = sum of q t, and is T_ref / T times as fast. The logarithm of T changes with those of its cells' latencies in
proportion to their shares of T, which gives the interval (speed_ratio.py). By time, q contains the reference's own
times: T_ref is 1, and the reference's cells have the weights that the parts have on the other machine.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.compare.common_cells import common_cases
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import EXACTLY_ONE, LogSum, Ratio, log_sum, ratio_of
from attnbench.analysis.compare.workload_file import Part, Workload
from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import flops
from attnbench.core.sizes import format_size
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.run.axes import Axes, matches


@dataclass(frozen=True)
class PartResult:
    """A part of a workload; mappings are by the machine's label."""

    name: str
    share: float  # of the whole: its weight
    cases: tuple[Case, ...]
    left_out: int  # cases that not every machine has a figure of
    ratios: Mapping[str, Ratio | None]
    backends: Mapping[str, tuple[str, ...]]  # those that ran its cases


@dataclass(frozen=True)
class WorkloadResult:
    """A workload on all machines, by their label; None for a machine that cannot run every part."""

    workload: Workload
    ratios: Mapping[str, Ratio | None]
    tflops: Mapping[str, float | None]
    parts: tuple[PartResult, ...]
    notes: tuple[str, ...]  # which machine has no figure for which part

    @property
    def name(self) -> str:
        return self.workload.name


def weigh(workload: Workload, machines: Sequence[Machine], reference: Machine) -> WorkloadResult:
    """Return the ratios of a workload and its parts to the reference.

    Raises UserError where a part has no figure on the reference, or none that the machines share.
    """
    labels = [machine.label for machine in machines]
    fastest = [_fastest_backends(part, machines) for part in workload.parts]
    notes = _without_a_figure(workload, fastest, reference)
    able = [machine for machine in machines if all(by_machine[machine.label] for by_machine in fastest)]
    shared = []
    for part, by_machine in zip(workload.parts, fastest, strict=True):
        cases = common_cases(by_machine[machine.label] for machine in able)
        if not cases:
            raise UserError(f"workload: no case of {part.name!r} has a figure on all machines; widen its axes")
        shared.append(cases)
    runs = {}
    for machine in able:
        backends = [by_machine[machine.label] for by_machine in fastest]
        keys = [[(case, own[case]) for case in cases] for own, cases in zip(backends, shared, strict=True)]
        runs[machine.label] = _WorkloadRun(machine, keys)
    base = runs[reference.label]
    by_time = workload.weights == "time"
    work = [float(sum(map(flops, cases))) for cases in shared]
    calls = [share / (base.seconds(p) if by_time else work[p]) for p, share in enumerate(workload.shares)]

    def ratios(calls: Sequence[float]) -> dict[str, Ratio | None]:
        return {label: _ratio(base, runs[label], calls, by_time) if label in runs else None for label in labels}

    parts = []
    for p, part in enumerate(workload.parts):
        measured = {case for machine in able for case in fastest[p][machine.label]}
        parts.append(
            PartResult(
                name=part.name,
                share=workload.shares[p],
                cases=tuple(shared[p]),
                left_out=len(measured) - len(shared[p]),
                ratios=ratios([n if i == p else 0.0 for i, n in enumerate(calls)]),
                backends={label: runs[label].backends(p) if label in runs else () for label in labels},
            )
        )
    total_work = math.fsum(n * flop for n, flop in zip(calls, work, strict=True))
    tflops = {label: total_work / runs[label].total(calls) / 1e12 if label in runs else None for label in labels}
    return WorkloadResult(workload, ratios(calls), tflops, tuple(parts), tuple(notes))


@dataclass(frozen=True)
class _WorkloadRun:
    """A machine, and for each part of a workload its cells there. `calls` is how often each part is called."""

    machine: Machine
    parts: Sequence[Sequence[Key]]

    @cached_property
    def _latencies(self) -> list[dict[Key, float]]:
        return [{key: self.machine.latency(key) for key in part} for part in self.parts]

    def seconds(self, part: int) -> float:
        """Return the time of one call of a part."""
        return math.fsum(self._latencies[part].values())

    def backends(self, part: int) -> tuple[str, ...]:
        return tuple(sorted({backend for _, backend in self.parts[part]}, key=case_names.backend_rank))

    def total(self, calls: Sequence[float]) -> float:
        """Return the time of the workload."""
        return math.fsum(n * self.seconds(p) for p, n in enumerate(calls))

    def time_shares(self, calls: Sequence[float]) -> list[float]:
        """Return the share that each part has in the time of the workload."""
        total = self.total(calls)
        return [n * self.seconds(p) / total for p, n in enumerate(calls)]

    def log_sum(self, shares: Sequence[float]) -> LogSum:
        """Return the sum of the cells' log latencies, weighted by each cell's share in the time of the workload."""
        weights: dict[Key, float] = {}
        for p, share in enumerate(shares):
            for key, latency in self._latencies[p].items():
                if share:
                    weights[key] = weights.get(key, 0.0) + share * latency / self.seconds(p)
        return log_sum(self.machine, weights)


def _ratio(base: _WorkloadRun, other: _WorkloadRun, calls: Sequence[float], by_time: bool) -> Ratio:
    if other is base:
        return EXACTLY_ONE
    theirs = other.time_shares(calls)
    ours = theirs if by_time else base.time_shares(calls)
    value = math.log(base.total(calls) / other.total(calls))
    return ratio_of(replace(base.log_sum(ours), value=value), replace(other.log_sum(theirs), value=0.0))


def _without_a_figure(
    workload: Workload, fastest: Sequence[Mapping[str, Mapping[Case, str]]], reference: Machine
) -> list[str]:
    """Return which machine has no figure for which part. Raises UserError where the reference has none."""
    found = []
    for part, by_machine in zip(workload.parts, fastest, strict=True):
        if not by_machine[reference.label]:
            raise UserError(
                f"workload: {reference.label}, to which the others are compared, has no figure for {part.name!r}; "
                "name another machine with --to"
            )
        without = [label for label, backends in by_machine.items() if not backends]
        found += [f"{label} has no figure for {part.name!r}, so none for the workload." for label in without]
    return found


def _fastest_backends(part: Part, machines: Sequence[Machine]) -> dict[str, dict[Case, str]]:
    """Return by label the part's cases and the fastest backend of each.

    Raises UserError where no case or no backend fits, with the axis that is to blame.
    """
    cases = {case for machine in machines for case, _ in machine.log_latencies}
    wanted = {case for case in cases if matches(part, case)}
    if not wanted:
        raise UserError(f"workload: {part.name!r} fits no case that was measured{_unmeasured_axis(part, cases)}")
    names = sorted({backend for machine in machines for _, backend in machine.log_latencies})
    allowed = {*names} if part.backend is None else {n for glob in part.backend for n in fnmatch.filter(names, glob)}
    if not allowed:
        word = ",".join(part.backend or ())
        raise UserError(f"workload: {part.name!r}: no backend {word!r} was measured{did_you_mean(word, names)}")
    return {
        machine.label: machine.fastest_of(
            (case, backend) for case, backend in machine.log_latencies if case in wanted and backend in allowed
        )
        for machine in machines
    }


def _unmeasured_axis(part: Part, cases: Iterable[Case]) -> str:
    """Return the first axis of a part none of whose values was measured, and the values that were."""
    known: dict[str, Callable[[Case], str]] = {
        "seqlen": lambda c: format_size(c.shape.seqlen_k),
        "seqlen_q": lambda c: format_size(c.shape.seqlen_q),
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
