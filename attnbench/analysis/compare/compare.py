"""Run files -> a comparison: one value that holds all figures, as answer.py, tables.py and json_and_csv.py show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.compare.common_cells import check_common_cases, common_cases, common_keys, kinds
from attnbench.analysis.compare.efficiency import Power, mean_tflops, mean_utilization, power
from attnbench.analysis.compare.longest_sequence import LongestSequence, longest_sequences
from attnbench.analysis.compare.machines import Machine, machines, parse_names, reference
from attnbench.analysis.compare.missing_cells import MissingCells, missing_cells
from attnbench.analysis.compare.prices import Price, prices
from attnbench.analysis.compare.setup_differences import setup_differences
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.analysis.compare.unit_spread import UnitSpread, unit_spreads
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.report.document import Caution
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.compare.weighted_workload import WorkloadResult


@dataclass(frozen=True)
class Request:
    """What the options of the command ask for, as they were given."""

    to: str | None = None
    names: tuple[str, ...] = ()  # FILE=LABEL
    prices: tuple[str, ...] = ()  # NAME=3.40/h
    workload: Path | None = None


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
    whole: Group
    mean_tflops: Mapping[str, float]  # geometric mean over the cases
    utilization: Mapping[str, float | None]
    power: Power | None
    prices: Mapping[str, Price]
    workload: WorkloadResult | None
    missing: tuple[MissingCells, ...]
    longest: tuple[LongestSequence, ...]
    spreads: tuple[UnitSpread, ...]
    differences: tuple[Caution, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(machine.label for machine in self.machines)

    @property
    def others(self) -> tuple[Machine, ...]:
        """All machines but the reference."""
        return tuple(machine for machine in self.machines if machine is not self.reference)

    @cached_property
    def groups(self) -> list[Group]:
        """The cases by head dimension, mask and pass."""
        keys: dict[Case, list[Key]] = {}
        for key in self.cells:
            keys.setdefault(key[0], []).append(key)
        return [
            _group(name, cases, [key for case in cases for key in keys.get(case, ())], self.machines, self.reference)
            for name, cases in kinds(self.cases).items()
        ]

    @property
    def overall(self) -> Mapping[str, Ratio | None]:
        """The ratios that answer the question: of the workload if one was given, else over all cases."""
        return self.workload.ratios if self.workload else self.whole.fastest

    @property
    def tflops(self) -> Mapping[str, float | None]:
        """TFLOP/s of the workload if one was given, else the geometric mean over the cases."""
        return self.workload.tflops if self.workload else self.mean_tflops

    def bought(self, label: str) -> float | None:
        """Return what the machine's price buys of `tflops`, in the price's unit; None without a price."""
        price, tflops = self.prices.get(label), self.tflops[label]
        return price.buys(tflops) if price and tflops else None

    def cell_ratio(self, key: Key, machine: Machine) -> Ratio:
        """Return the ratio of a machine over one cell."""
        return speed_ratio(self.reference, {key: 1.0}, machine)

    def case_ratio(self, case: Case, machine: Machine) -> Ratio:
        """Return the ratio of a machine over one case, both with their fastest backend."""
        return _fastest_ratio(self.reference, machine, [case])


def compare(paths: Sequence[Path], runs: Sequence[Run], request: Request) -> Comparison:
    """Return the comparison of some run files. Raises UserError where there is nothing to compare."""
    if len(paths) < 2:
        raise UserError("give at least two run files to compare; attnbench report shows a single one")
    for path in paths:
        if [p.resolve() for p in paths].count(path.resolve()) > 1:
            raise UserError(f"{path} is given twice")
    found = machines(paths, runs, parse_names(request.names, paths))
    if len(found) < 2:
        raise UserError("--name makes one machine of all files: nothing to compare")
    home = reference(found, request.to)
    costs = prices(request.prices, found)
    check_common_cases(found)
    cells, cases = common_keys(found), common_cases(machine.fastest for machine in found)
    return Comparison(
        machines=tuple(found),
        reference=home,
        cases=tuple(cases),
        cells=tuple(cells),
        whole=_group("all", cases, cells, found, home),
        mean_tflops={machine.label: mean_tflops(machine, cases) for machine in found},
        utilization={machine.label: mean_utilization(machine, cases) for machine in found},
        power=power(found, cases),
        prices=costs,
        workload=_workload(request.workload, found, home) if request.workload else None,
        missing=tuple(missing_cells(found)),
        longest=tuple(longest_sequences(found)),
        spreads=tuple(unit_spreads(found)),
        differences=tuple(setup_differences(found, cases)),
    )


def _workload(file: Path, found: Sequence[Machine], home: Machine) -> WorkloadResult:
    # They load pydantic, which takes longer than most comparisons.
    from attnbench.analysis.compare import weighted_workload, workload_file

    return weighted_workload.weigh(workload_file.load(file), found, home)


def _group(name: str, cases: Sequence[Case], cells: Sequence[Key], found: Sequence[Machine], home: Machine) -> Group:
    same = equal_weights(cells)
    return Group(
        name,
        tuple(cases),
        tuple(cells),
        fastest={machine.label: _fastest_ratio(home, machine, cases) for machine in found},
        same={machine.label: speed_ratio(home, same, machine) if same else None for machine in found},
    )


def _fastest_ratio(home: Machine, machine: Machine, cases: Sequence[Case]) -> Ratio:
    ours, theirs = (equal_weights([(case, m.fastest[case]) for case in cases]) for m in (home, machine))
    return speed_ratio(home, ours, machine, theirs)
