"""The speed of all machines over the same cases: in bursts or without pauses, with shared or own backends.

All figures are geometric means over the cases, or the workload's figures if there is one (workload.py); docs/compare.md
defines each.
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
    """One kind of figures for all machines. Mappings are by the machine's label."""

    sustained: bool
    shared: bool  # with backends that all machines have; False: each machine with its own fastest
    machines: Mapping[str, Machine]  # all with figures in bursts, or all without pauses
    reference: Machine
    chosen: Mapping[str, Mapping[Case, Key]]  # the cell that counts for each case; all have the same cases
    undecided: tuple[tuple[str, Key], ...] = ()  # (machine, fastest cell of a case), if it is too uncertain to count
    workload: MeasuredWorkload | None = None

    @property
    def pace(self) -> str:
        return "without pauses" if self.sustained else "in bursts"

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        return tuple(self.chosen[self.reference.label])

    @cached_property
    def kinds(self) -> Mapping[str, Figures]:
        """The figures without the workload, by head dimension, mask and pass: "d128 causal fwd"."""
        return {name: self.of(cases) for name, cases in kinds(self.cases).items()}

    def of(self, cases: Collection[Case]) -> Figures:
        """Return the figures over some of the cases, without a workload."""
        chosen = {label: {case: of[case] for case in cases} for label, of in self.chosen.items()}
        return replace(self, chosen=chosen, workload=None)

    def ratio(self, label: str) -> Ratio | None:
        """Return the speed ratio of a machine to the reference; None if it cannot run the workload."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.ratio(machine)
        ours, theirs = (equal_weights([*self.chosen[name].values()]) for name in (self.reference.label, label))
        return speed_ratio(self.reference, ours, machine, theirs)

    def ratio_of_device(self, label: str) -> Ratio | None:
        """Return the work of a machine's device over the work of a reference device in the same time.

        It equals `ratio` except for a workload whose calls run on unlike numbers of devices.
        """
        if self.workload:
            return self.workload.ratio(self.machines[label], of_devices=True)
        return self.ratio(label)

    @cached_property
    def limits(self) -> Mapping[Case, str]:
        """Case -> what limits its speed on the reference (metrics.limit), which says its unit."""
        return {case: self.reference.limit(key) for case, key in self.chosen[self.reference.label].items()}

    def _limited(self, label: str, by: str) -> list[Key]:
        """Return the cells that count on a machine, of the cases with a limit; none for a workload."""
        cells = () if self.workload else self.chosen[label].values()
        return [key for key in cells if self.limits[key[0]] == by]

    def tflops(self, label: str) -> float | None:
        """Return the TFLOP/s of a device: of the workload, else over the cases that compute limits; None without."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.tflops(machine)
        return _geomean([machine.tflops(key) for key in self._limited(label, "compute")])

    def gbps(self, label: str) -> float | None:
        """Return the GB/s of a machine over the cases that memory limits; None without any, or for a workload."""
        return _geomean([self.machines[label].gbps(key) for key in self._limited(label, "memory")])

    def seconds(self, label: str) -> float | None:
        """Return the latency over the cases that launching limits; None without any, or for a workload."""
        return _geomean([self.machines[label].latency(key) for key in self._limited(label, "launch")])

    def tokens_of_decode(self, label: str) -> float | None:
        """Return the tokens a second through one layer over the cases of decode, on all devices of a call together."""
        machine, cells = self.machines[label], () if self.workload else self.chosen[label].values()
        decode = [key for key in cells if key[0].is_decode]
        return _geomean(
            [sum(of.number * of.seqlen_q for of in key[0].sequences) / machine.latency(key) for key in decode]
        )

    def utilization(self, label: str) -> float | None:
        """Return TFLOP/s over the datasheet's peak, over the cases of `tflops`; None if unknown, or for a workload."""
        return _geomean([self.machines[label].utilization(key) for key in self._limited(label, "compute")])

    def watts(self, label: str) -> float | None:
        """Return the power in watts over all cases; None unless all of them have a reading."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.watts(machine)
        return _geomean([machine.watts(key) for key in self.chosen[label].values()])

    def tflops_per_watt(self, label: str) -> float | None:
        """Return TFLOP/s per watt; None unless compute limits all cases."""
        tflops, watts = self.tflops(label), self.watts(label)
        alike = self.workload or {*self.limits.values()} == {"compute"}
        return tflops / watts if tflops and watts and alike else None

    def per_watt(self, label: str) -> Ratio | None:
        """Return the ratio of the work per joule of a machine to the reference; None unless both have watts.

        It is `ratio_of_device` over the ratio of the watts. The interval is from the energy of the calls: latency and
        power together.
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
    """Return all kinds of figures, the main ones first: without pauses, with shared backends.

    Figures without pauses follow the ones in bursts if they cover fewer cases, and are left out if the machines have no
    such case in common, or the workload has cases without. Figures with own backends are left out if these are the
    shared ones. Raises UserError if there are no figures, as for a workload without a figure.
    """
    found: list[Figures] = []
    for sustained in (False, True):
        of = {machine.label: machine.sustained if sustained else machine for machine in machines}
        shared = _with_workload(_figures(of, reference.label, shared=True), workload, needed=False)
        own = _with_workload(_figures(of, reference.label, shared=False), workload, needed=not sustained and not shared)
        more = [*filter(None, (shared, None if own and shared and _adds_nothing(own, shared) else own))]
        if found and workload and more and _cells_of(more[0]).keys() != _cells_of(found[0]).keys():
            continue  # they have other cases
        first, best = next(iter(more), None), next(iter(found), None)
        covers = first and best and first.shared == best.shared and {*best.cases} <= {*first.cases}
        found = [*more, *found] if not found or workload or covers else [*found, *more]
    if not found:
        raise UserError(_nothing_in_common(machines))
    return tuple(found)


def _nothing_in_common(machines: Sequence[Machine]) -> str:
    """Return a message that machines share no backend, with the backends of each."""
    alike = grouped(machines, lambda machine: some(dict.fromkeys(name for _, name in machine.log_rounds)))
    each = (
        f"{names} on {some(f'{of.label} ({some(file.path.name for file in of.files)})' for of in group)}"
        for names, group in alike.items()
    )
    apart = f"the machines have no backend in common: {'; '.join(each)}"
    return f"{apart}; and in no case did each try {FASTEST_ON_ANOTHER}"


def _adds_nothing(own: Figures, shared: Figures) -> bool:
    """Whether own backends equal the shared ones, and lack only cases that not all machines tried."""
    theirs = _cells_of(shared)
    undecided = {case for _, (case, _) in own.undecided} & {*shared.cases}
    return not undecided and all(theirs.get(case) == backends for case, backends in _cells_of(own).items())


def untried(machines: Sequence[Machine]) -> list[Case]:
    """Return the common cases in which not all machines tried the fastest backend of each (like_kernels.py)."""
    cases = common(machine.fastest for machine in machines)
    return [case for case in cases if not tried_by_all(machines, {machine.fastest[case] for machine in machines})]


def _figures(machines: Mapping[str, Machine], reference: str, shared: bool) -> Figures | None:
    """Return the figures of machines, which are by label; None if no case counts."""
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
    """Return the figures with a workload; None if it has none, or UserError if it is `needed`."""
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
    """Return (machine, case) -> the backend that runs it, or the backends in the parts of a workload."""
    if figures.workload:
        pairs = [(m.label, key) for part in figures.workload.parts for m, keys in part.cells.items() for key in keys]
    else:
        pairs = [(label, key) for label, of in figures.chosen.items() for key in of.values()]
    found = grouped(pairs, lambda pair: (pair[0], pair[1][0]))
    return {key: [backend for _, (_, backend) in own] for key, own in found.items()}
