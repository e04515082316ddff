"""The speed of all machines over the same cases: in bursts or without pauses, with the same backends or each its own.

A buyer gets four answers to how fast a machine is, and each figure says which it is:

- **without pauses** is what a machine sustains, at the clock that its power and cooling allow; **in bursts** is what it
  does for milliseconds, and is higher.
- with **shared** backends each machine runs each case with the fastest of those that have a figure of it on all
  machines, so that like is compared with like; with its **own**, with the fastest that it has.

All figures are geometric means over the cases, or those of the workload if there is one (workload.py). Power and
TFLOP/s are of the same readings: TFLOP/s per watt is the quotient of the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from attnbench.analysis.compare.common_cells import common, kinds
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.compare.workload import MeasuredWorkload, Workload


@dataclass(frozen=True)
class Figures:
    """The figures of all machines of one kind. Mappings are by the machine's label."""

    sustained: bool
    shared: bool  # with backends that all machines have; False: each machine with its own fastest
    machines: Mapping[str, Machine]  # whose figures are in bursts or without pauses
    reference: Machine
    chosen: Mapping[str, Mapping[Case, Key]]  # the cell that counts for each case; the cases of all are the same
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

    def tflops(self, label: str) -> float | None:
        machine = self.machines[label]
        if self.workload:
            return self.workload.tflops(machine)
        return stats.geomean([machine.tflops(key) for key in self.chosen[label].values()])

    def utilization(self, label: str) -> float | None:
        """Return TFLOP/s over the datasheet's peak, the geometric mean over the cases; None where that is not known."""
        return _geomean([self.machines[label].utilization(key) for key in self.chosen[label].values()])

    def watts(self, label: str) -> float | None:
        """Return the power in the work that `tflops` is of; None unless all of it has a reading."""
        machine = self.machines[label]
        if self.workload:
            return self.workload.watts(machine)
        return _geomean([machine.watts(key) for key in self.chosen[label].values()])

    def tflops_per_watt(self, label: str) -> float | None:
        tflops, watts = self.tflops(label), self.watts(label)
        return tflops / watts if tflops and watts else None

    def per_watt(self, label: str) -> Ratio | None:
        """Return how many times the reference's TFLOP/s per watt a machine gives; None unless both have them.

        The interval is that of the energy of the calls: of latency and power together.
        """
        home = self.reference.label
        ours, theirs = self.tflops_per_watt(home), self.tflops_per_watt(label)
        if not ours or not theirs:
            return None
        each = ((name, self.machines[name]) for name in (home, label))
        weights = [
            self.workload.energy_weights(m) if self.workload else equal_weights([*self.chosen[name].values()])
            for name, m in each
        ]
        return speed_ratio(self.reference.energy, weights[0], self.machines[label].energy, weights[1], theirs / ours)


def _geomean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; None unless all are known."""
    known = [value for value in values if value]
    return stats.geomean(known) if known and len(known) == len(values) else None


def all_figures(machines: Sequence[Machine], reference: Machine, workload: Workload | None) -> tuple[Figures, ...]:
    """Return the figures that there are, those first that answer a buyer: without pauses, with shared backends.

    Figures without pauses are left out where the machines have no such case in common, or the workload has cases
    without; those of own backends where they are the shared ones. Raises UserError where a workload has no figure.
    """
    found: list[Figures] = []
    for sustained in (False, True):
        of = {machine.label: machine.sustained if sustained else machine for machine in machines}
        own = _with_workload(_figures(of, reference.label, shared=False), workload, needed=not sustained)
        shared = _with_workload(_figures(of, reference.label, shared=True), workload, needed=False)
        if sustained and own and workload and _cells_of(own).keys() != _cells_of(found[-1]).keys():
            continue  # they are of other cases
        same = own and shared and _cells_of(own) == _cells_of(shared)
        found = [*filter(None, (shared, None if same else own)), *found]
    return tuple(found)


def _figures(machines: Mapping[str, Machine], reference: str, shared: bool) -> Figures | None:
    """Return the figures of machines by label; None where they have no cell in common."""
    cells = {*common(machine.log_rounds for machine in machines.values())}
    fastest = {
        label: machine.fastest_of(key for key in machine.log_rounds if not shared or key in cells)
        for label, machine in machines.items()
    }
    cases = common(fastest.values())
    chosen = {label: {case: of[case] for case in cases} for label, of in fastest.items()}
    home = machines[reference]
    return Figures(home.metric == "sustained_latency", shared, machines, home, chosen) if cases else None


def _with_workload(figures: Figures | None, workload: Workload | None, needed: bool) -> Figures | None:
    """Return the figures of a workload; None where it has none. Raises UserError where it is needed."""
    if not figures or not workload:
        return figures
    from attnbench.analysis.compare.workload import measured_workload

    try:
        found = measured_workload(workload, [*figures.machines.values()], figures.reference, figures.shared)
    except UserError:
        if needed:
            raise
        return None
    return replace(figures, workload=found)


def _cells_of(figures: Figures) -> dict[tuple[str, Case], list[str]]:
    """Return (machine, case) -> the backend that runs it, or those in parts of a workload."""
    found: dict[tuple[str, Case], list[str]] = {}
    if figures.workload:
        pairs = [(m.label, key) for part in figures.workload.parts for m, keys in part.cells.items() for key in keys]
    else:
        pairs = [(label, key) for label, of in figures.chosen.items() for key in of.values()]
    for label, (case, backend) in pairs:
        found.setdefault((label, case), []).append(backend)
    return found
