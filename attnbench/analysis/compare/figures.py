"""The speed of all machines over the same cases: in bursts or without pauses, with the same backends or each its own.

All figures are geometric means over the cases, or those of the workload if there is one (workload.py); docs/compare.md
says what each is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from attnbench.analysis.compare.common_cells import FASTEST_ON_ANOTHER, common, kinds
from attnbench.analysis.compare.like_kernels import shared_cells, tried_by_all
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.groups import grouped
from attnbench.core.text import some
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.compare.requests import Requests
    from attnbench.analysis.compare.workload import MeasuredWorkload, Workload


@dataclass(frozen=True)
class Figures:
    """The figures of all machines of one kind. Mappings are by the machine's label."""

    sustained: bool
    shared: bool  # with backends that all machines have; False: each machine with its own fastest
    machines: Mapping[str, Machine]  # whose figures are in bursts or without pauses
    reference: Machine
    chosen: Mapping[str, Mapping[Case, Key]]  # the cell that counts for each case; the cases of all are the same
    undecided: tuple[tuple[str, Key], ...] = ()  # (machine, cell) that reads fastest in its case, and decides nothing
    workload: MeasuredWorkload | None = None

    @property
    def pace(self) -> str:
        return "without pauses" if self.sustained else "in bursts"

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        return tuple(self.chosen[self.reference.label])

    @cached_property
    def kinds(self) -> Mapping[str, Figures]:
        """The figures of the cases alone by head dimension, mask and pass: "d128 causal fwd"."""
        return {name: self.of(cases) for name, cases in kinds(self.cases).items()}

    def of(self, cases: Collection[Case]) -> Figures:
        """Return the figures over some of the cases, without a workload."""
        chosen = {label: {case: of[case] for case in cases} for label, of in self.chosen.items()}
        return replace(self, chosen=chosen, workload=None)

    def ratio(self, label: str) -> Ratio | None:
        """Return how many times as fast as the reference a machine is; None where it cannot run the workload."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.ratio(machine)
        ours, theirs = (equal_weights([*self.chosen[name].values()]) for name in (self.reference.label, label))
        return speed_ratio(self.reference, ours, machine, theirs)

    def ratio_of_device(self, label: str) -> Ratio | None:
        """Return how many times as much as the reference's a device of a machine does in its time.

        It is `ratio` but for a workload whose calls run on unlike numbers of devices.
        """
        if self.workload:
            return self.workload.ratio(self.machines[label], of_devices=True)
        return self.ratio(label)

    def tflops(self, label: str) -> float | None:
        """Return the TFLOP/s of a device; without a workload over the cases that are no decode, None if all are."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.tflops(machine)
        return _geomean([machine.tflops(key) for key in self._computing(label)])

    def gbps(self, label: str) -> float | None:
        """Return the GB/s of a machine over the cases that are decode; None if none is, or for a workload."""
        cells = () if self.workload else self.chosen[label].values()
        return _geomean([self.machines[label].gbps(key) for key in cells if key[0].is_decode])

    def tokens_of_decode(self, label: str) -> float | None:
        """Return the tokens a second of decode through one layer, as `gbps` is of; of all devices of a call."""
        machine, cells = self.machines[label], () if self.workload else self.chosen[label].values()
        decode = [key for key in cells if key[0].is_decode]
        return _geomean(
            [sum(of.number * of.seqlen_q for of in key[0].sequences) / machine.latency(key) for key in decode]
        )

    def utilization(self, label: str) -> float | None:
        """Return TFLOP/s over the datasheet's peak, a mean over the cases but decode; None if unknown or a workload."""
        cells = () if self.workload else self._computing(label)
        return _geomean([self.machines[label].utilization(key) for key in cells])

    def _computing(self, label: str) -> list[Key]:
        """Return the cells that count for the cases that are no decode."""
        return [key for key in self.chosen[label].values() if not key[0].is_decode]

    def watts(self, label: str) -> float | None:
        """Return the power in the work that `tflops` is of; None unless all of it has a reading."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.watts(machine)
        return _geomean([machine.watts(key) for key in self.chosen[label].values()])

    def tflops_per_watt(self, label: str) -> float | None:
        """Return TFLOP/s over watts; None where a case is decode, so that the two are of unlike work."""
        tflops, watts = self.tflops(label), self.watts(label)
        return tflops / watts if tflops and watts and not self.gbps(label) else None

    def per_watt(self, label: str) -> Ratio | None:
        """Return how many times as much work per joule a machine gives as the reference; None unless both have watts.

        It is the ratio of what their devices do over that of the watts. The interval is that of the energy of the
        calls: of latency and power together.
        """
        home = self.reference.label
        done, ours, theirs = self.ratio_of_device(label), self.watts(home), self.watts(label)
        if not done or not ours or not theirs:
            return None
        each = ((name, self.machines[name]) for name in (home, label))
        weights = [
            self.workload.energy_weights(m) if self.workload else equal_weights([*self.chosen[name].values()])
            for name, m in each
        ]
        value = done.value * ours / theirs
        return speed_ratio(self.reference.energy, weights[0], self.machines[label].energy, weights[1], value)


def _geomean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; None unless all are known."""
    known = [value for value in values if value]
    return stats.geomean(known) if known and len(known) == len(values) else None


def all_figures(
    machines: Sequence[Machine], reference: Machine, workload: Workload | Requests | None
) -> tuple[Figures, ...]:
    """Return the figures that there are, those first that answer a buyer: without pauses, with shared backends.

    Figures without pauses follow those in bursts where they do not cover the cases of these. They are left out where
    the machines have no such case in common, or the workload has cases without; those of own backends where they are
    shared ones. Raises UserError where there are none, as for a workload without a figure.
    """
    found: list[Figures] = []
    for sustained in (False, True):
        of = {machine.label: machine.sustained if sustained else machine for machine in machines}
        shared = _with_workload(_figures(of, reference.label, shared=True), workload, needed=False)
        own = _with_workload(_figures(of, reference.label, shared=False), workload, needed=not sustained and not shared)
        more = [*filter(None, (shared, None if own and shared and _adds_nothing(own, shared) else own))]
        if found and workload and more and _cells_of(more[0]).keys() != _cells_of(found[0]).keys():
            continue  # they are of other cases
        first, best = next(iter(more), None), next(iter(found), None)
        covers = first and best and first.shared == best.shared and {*best.cases} <= {*first.cases}
        found = [*more, *found] if not found or workload or covers else [*found, *more]
    if not found:
        raise UserError(_nothing_in_common(machines))
    return tuple(found)


def _nothing_in_common(machines: Sequence[Machine]) -> str:
    """Return that machines share no backend, which backends each has, and what to do."""
    alike = grouped(machines, lambda machine: some(dict.fromkeys(name for _, name in machine.log_rounds)))
    each = (
        f"{names} on {some(f'{of.label} ({some(file.path.name for file in of.files)})' for of in group)}"
        for names, group in alike.items()
    )
    apart = f"the machines have no backend in common: {'; '.join(each)}"
    return f"{apart}; and in no case did each try {FASTEST_ON_ANOTHER}"


def _adds_nothing(own: Figures, shared: Figures) -> bool:
    """Whether own backends are the shared ones, and no case lacks them but where not all machines tried them."""
    theirs = _cells_of(shared)
    undecided = {case for _, (case, _) in own.undecided} & {*shared.cases}
    return not undecided and all(theirs.get(case) == backends for case, backends in _cells_of(own).items())


def untried(machines: Sequence[Machine]) -> list[Case]:
    """Return the cases of all machines in which what is fastest on one was not tried by all (like_kernels.py)."""
    cases = common(machine.fastest for machine in machines)
    return [case for case in cases if not tried_by_all(machines, {machine.fastest[case] for machine in machines})]


def _figures(machines: Mapping[str, Machine], reference: str, shared: bool) -> Figures | None:
    """Return the figures of machines by label; None where no case counts."""
    cells = {*shared_cells([*machines.values()])}
    among = {label: [key for key in m.log_rounds if not shared or key in cells] for label, m in machines.items()}
    fastest = {label: machine.fastest_of(among[label]) for label, machine in machines.items()}
    undecided = tuple((label, key) for label, of in machines.items() for key in of.undecided_of(among[label]))
    left_out = () if shared else untried([*machines.values()])
    cases = [case for case in common(fastest.values()) if case not in left_out]
    chosen = {label: {case: of[case] for case in cases} for label, of in fastest.items()}
    home = machines[reference]
    return Figures(home.metric == "sustained_latency", shared, machines, home, chosen, undecided) if cases else None


def _with_workload(figures: Figures | None, workload: Workload | Requests | None, needed: bool) -> Figures | None:
    """Return the figures of a workload; None where it has none. Raises UserError where it is needed."""
    if not figures or not workload:
        return figures
    try:
        found = workload.measured([*figures.machines.values()], figures.reference, figures.shared)
    except UserError:
        if needed:
            raise
        return None
    return replace(figures, workload=found)


def _cells_of(figures: Figures) -> dict[tuple[str, Case], list[str]]:
    """Return (machine, case) -> the backend that runs it, or those in parts of a workload."""
    if figures.workload:
        pairs = [(m.label, key) for part in figures.workload.parts for m, keys in part.cells.items() for key in keys]
    else:
        pairs = [(label, key) for label, of in figures.chosen.items() for key in of.values()]
    found = grouped(pairs, lambda pair: (pair[0], pair[1][0]))
    return {key: [backend for _, (_, backend) in own] for key, own in found.items()}
