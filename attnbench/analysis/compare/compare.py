"""Run files -> a comparison: one value that holds all figures, as answer.py, tables.py and document.py show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.compare.common_cells import MissingCells, check_common_cases, common, kinds, missing_cells
from attnbench.analysis.compare.efficiency import Efficiency, UnitSpread, cases_with_power, efficiency, unit_spreads
from attnbench.analysis.compare.longest_sequence import LongestSequence, longest_sequences
from attnbench.analysis.compare.machines import Machine, machines, parse_names, reference
from attnbench.analysis.compare.prices import Price, parse_prices
from attnbench.analysis.compare.speed_ratio import EXACTLY_ONE, Ratio, equal_weights, speed_ratio
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.compare.workload import MeasuredWorkload


@dataclass(frozen=True)
class Group:
    """The ratios over some cases, by the machine's label."""

    name: str
    cases: tuple[Case, ...]
    cells: tuple[Key, ...]
    fastest: Mapping[str, Ratio]  # over the cases, each machine with its fastest backend
    same: Mapping[str, Ratio | None]  # over the cells, so with the same backend on both; None where there are none


@dataclass(frozen=True)
class Comparison:
    """All figures of a comparison. Mappings are by the machine's label; ratios are to the reference, above 1 faster."""

    machines: tuple[Machine, ...]
    reference: Machine
    cases: tuple[Case, ...]  # with a figure on all machines
    cells: tuple[Key, ...]  # with a figure on all machines
    efficiency: Mapping[str, Efficiency]
    cases_with_power: int  # how many, on every machine that has any
    prices: Mapping[str, Price]
    workload: MeasuredWorkload | None
    missing: tuple[MissingCells, ...]
    longest: tuple[LongestSequence, ...]
    spreads: tuple[UnitSpread, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(machine.label for machine in self.machines)

    @property
    def others(self) -> tuple[Machine, ...]:
        """All machines but the reference."""
        return tuple(machine for machine in self.machines if machine is not self.reference)

    @cached_property
    def whole(self) -> Group:
        """All cases and cells."""
        return self._group("all", self.cases, self.cells)

    @cached_property
    def groups(self) -> list[Group]:
        """The cases by head dimension, mask and pass."""
        found = []
        for name, cases in kinds(self.cases).items():
            members = {*cases}
            found.append(self._group(name, cases, [key for key in self.cells if key[0] in members]))
        return found

    def _group(self, name: str, cases: Sequence[Case], cells: Sequence[Key]) -> Group:
        fastest = {machine.label: self.fastest_ratio(machine, cases) for machine in self.machines}
        same = {machine.label: self.same_ratio(machine, cells) if cells else None for machine in self.machines}
        return Group(name, tuple(cases), tuple(cells), fastest, same)

    def fastest_ratio(self, machine: Machine, cases: Sequence[Case]) -> Ratio:
        """Return the ratio of a machine over some cases, both with their fastest backends."""
        ours, theirs = (equal_weights([m.fastest[case] for case in cases]) for m in (self.reference, machine))
        return speed_ratio(self.reference, ours, machine, theirs)

    def same_ratio(self, machine: Machine, cells: Sequence[Key]) -> Ratio:
        """Return the ratio of a machine over some cells, so with the same backends on both."""
        return speed_ratio(self.reference, equal_weights(cells), machine)

    @cached_property
    def sustained_cases(self) -> tuple[Case, ...]:
        """The cases that all machines have a figure of without pauses."""
        return tuple(common(machine.sustained.fastest for machine in self.machines))

    def sustained_ratio(self, machine: Machine) -> Ratio | None:
        """Return the ratio of a machine over `sustained_cases` without pauses, both with what is fastest so."""
        if not self.sustained_cases:
            return None
        home, other = self.reference.sustained, machine.sustained
        ours, theirs = (equal_weights([m.fastest[case] for case in self.sustained_cases]) for m in (home, other))
        return EXACTLY_ONE if machine is self.reference else speed_ratio(home, ours, other, theirs)

    def sustained_tflops(self, machine: Machine) -> float | None:
        """Return the geometric mean of TFLOP/s without pauses over `sustained_cases`."""
        found = [machine.sustained.tflops(machine.sustained.fastest[case]) for case in self.sustained_cases]
        return stats.geomean(found) if found else None

    @cached_property
    def overall(self) -> Mapping[str, Ratio | None]:
        """The ratios that answer the question: of the workload if one was given, else over all cases."""
        if self.workload:
            return {machine.label: self.workload.ratio(machine) for machine in self.machines}
        return self.whole.fastest

    @cached_property
    def tflops(self) -> Mapping[str, float | None]:
        """TFLOP/s of the workload if one was given, else the geometric mean over the cases."""
        if self.workload:
            return {machine.label: self.workload.tflops(machine) for machine in self.machines}
        return {label: found.tflops_geomean for label, found in self.efficiency.items()}

    def bought(self, label: str) -> float | None:
        """Return what the machine's price buys of `tflops`, in the price's unit; None without a price."""
        price, tflops = self.prices.get(label), self.tflops[label]
        return price.buys(tflops) if price and tflops else None


def compare(
    paths: Sequence[Path],
    runs: Sequence[Run],
    to: str | None = None,
    names: Sequence[str] = (),
    prices: Sequence[str] = (),
    workload: Path | None = None,
) -> Comparison:
    """Return the comparison of some run files; the rest are the options of the command, as they were given.

    Raises UserError where there is nothing to compare.
    """
    if len(paths) < 2:
        raise UserError("give at least two run files to compare; attnbench report shows a single one")
    for path in paths:
        if [p.resolve() for p in paths].count(path.resolve()) > 1:
            raise UserError(f"{path} is given twice")
    found = machines(paths, runs, parse_names(names, paths))
    if len(found) < 2:
        raise UserError("--name makes one machine of all files: nothing to compare")
    home = reference(found, to)
    costs = parse_prices(prices, found)
    check_common_cases(found)
    cases = common(machine.fastest for machine in found)
    with_power = cases_with_power(found, cases)
    return Comparison(
        machines=tuple(found),
        reference=home,
        cases=tuple(cases),
        cells=tuple(common(machine.log_latencies for machine in found)),
        efficiency={machine.label: efficiency(machine, cases, with_power) for machine in found},
        cases_with_power=len(with_power),
        prices=costs,
        workload=_workload(workload, found, home) if workload else None,
        missing=tuple(missing_cells(found)),
        longest=tuple(longest_sequences(found)),
        spreads=tuple(unit_spreads(found)),
    )


def _workload(file: Path, found: Sequence[Machine], home: Machine) -> MeasuredWorkload:
    from attnbench.analysis.compare import workload  # it loads pydantic, which takes longer than most comparisons

    return workload.measured_workload(workload.load(file), found, home)
