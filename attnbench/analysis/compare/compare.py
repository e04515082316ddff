"""Run files -> a comparison: one value that every writer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.compare import differences, figures, join, longest, prices, ratios
from attnbench.analysis.compare.join import Best, Lack
from attnbench.analysis.compare.machines import Machine, machines, parse_names, reference
from attnbench.analysis.compare.prices import Price
from attnbench.analysis.compare.ratios import Ratio
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.compare import mix


@dataclass(frozen=True)
class Request:
    to: str | None = None
    names: tuple[str, ...] = ()  # FILE=LABEL
    prices: tuple[str, ...] = ()  # NAME=3.40/h
    workload: Path | None = None


@dataclass(frozen=True)
class Group:
    """Ratios by machine: with the fastest backend of each, and with the same backend on both (None without cells)."""

    name: str
    cases: tuple[Case, ...]
    cells: tuple[Key, ...]
    best: tuple[Ratio, ...]
    same: tuple[Ratio | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Sequences over machines are in the order of `machines`; ratios are to `reference`, above 1 faster."""

    machines: tuple[Machine, ...]
    reference: Machine
    bests: tuple[Best, ...]
    cases: tuple[Case, ...]  # with a figure on all
    cells: tuple[Key, ...]  # with a figure on all
    whole: Group
    tflops: tuple[float, ...]
    utilization: tuple[float | None, ...]
    power: figures.Power | None
    prices: Mapping[str, Price]  # by label
    workload: mix.Answer | None
    lacks: tuple[Lack, ...]
    longest: tuple[longest.Line, ...]
    units: tuple[figures.Units, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def home(self) -> int:
        """The place of the reference."""
        return self.machines.index(self.reference)

    @cached_property
    def groups(self) -> list[Group]:
        keys: dict[Case, list[Key]] = {}
        for key in self.cells:
            keys.setdefault(key[0], []).append(key)
        grouped = join.groups(self.cases)
        return [
            _group(name, of, [key for case in of for key in keys.get(case, ())], self.machines, self.home, self.bests)
            for name, of in grouped.items()
        ]

    @property
    def overall(self) -> tuple[Ratio | None, ...]:
        """What answers the question: the workload where there is one, else all cases with the fastest backends."""
        return self.workload.ratios if self.workload else self.whole.best

    def bought(self, i: int) -> float | None:
        """What the machine's price buys, in the price's unit; of the workload where there is one."""
        price, rate = self.prices.get(self.machines[i].label), self.rate(i)
        return price.buys(rate) if price and rate else None

    def rate(self, i: int) -> float | None:
        """TFLOP/s of the workload where there is one, else the geometric mean over the cases."""
        return self.workload.tflops[i] if self.workload else self.tflops[i]

    def speed(self, i: int, key: Key) -> float:
        """TFLOP/s of a machine."""
        return figures.tflops(self.machines[i], key)

    def cell_ratio(self, key: Key, i: int) -> Ratio:
        """Of one cell."""
        return ratios.ratio(self.reference, {key: 1.0}, self.machines[i])

    def case_ratio(self, case: Case, i: int) -> Ratio:
        """Of one case, each with its fastest backend."""
        ours, theirs = (case, self.bests[self.home][case]), (case, self.bests[i][case])
        return ratios.ratio(self.reference, {ours: 1.0}, self.machines[i], {theirs: 1.0})

    def others(self) -> Iterator[int]:
        """The places of all machines but the reference."""
        return (i for i in range(len(self.machines)) if i != self.home)


def compare(paths: Sequence[Path], runs: Sequence[Run], request: Request) -> Comparison:
    """Raises UserError where there is nothing to compare."""
    if len(paths) < 2:
        raise UserError("give at least two run files to compare; attnbench report shows a single one")
    for path in paths:
        if [p.resolve() for p in paths].count(path.resolve()) > 1:
            raise UserError(f"{path} is given twice")
    found = machines(paths, runs, parse_names(request.names, paths))
    if len(found) < 2:
        raise UserError("--name makes one machine of all files: nothing to compare")
    home = reference(found, request.to)
    costs = prices.prices(request.prices, found)
    bests = [join.best(machine) for machine in found]
    join.check(found, bests)
    cells, cases = join.common(found), join.common_cases(bests)
    return Comparison(
        machines=tuple(found),
        reference=home,
        bests=tuple(bests),
        cases=tuple(cases),
        cells=tuple(cells),
        whole=_group("all", cases, cells, found, found.index(home), bests),
        tflops=tuple(figures.mean(m, best, cases) or 0.0 for m, best in zip(found, bests, strict=True)),
        utilization=tuple(figures.mean(m, best, cases, "utilization") for m, best in zip(found, bests, strict=True)),
        power=figures.power(found, bests, cases),
        prices=costs,
        workload=_weighed(request.workload, found, home) if request.workload else None,
        lacks=tuple(join.lacks(found)),
        longest=tuple(longest.longest(found)),
        units=tuple(figures.units(found)),
        warnings=tuple(differences.warnings(found, bests, cases)),
    )


def _weighed(file: Path, found: Sequence[Machine], home: Machine) -> mix.Answer:
    from attnbench.analysis.compare import (  # with pydantic, which takes longer to load than most comparisons
        mix,
        workload,
    )

    return mix.weigh(workload.load(file), found, home)


def _group(
    name: str,
    cases: Sequence[Case],
    cells: Sequence[Key],
    found: Sequence[Machine],
    home: int,
    bests: Sequence[Best],
) -> Group:
    keys = [ratios.alike((case, best[case]) for case in cases) for best in bests]
    alike = ratios.alike(cells) if cells else {}
    return Group(
        name,
        tuple(cases),
        tuple(cells),
        tuple(ratios.ratio(found[home], keys[home], m, own) for m, own in zip(found, keys, strict=True)),
        tuple(ratios.ratio(found[home], alike, m) if alike else None for m in found),
    )
