"""Runs as units of models: each unit's latency against the median of its model, over all cells of a family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnbench.analysis.cluster.outliers import Judgement, judge
from attnbench.core import stats
from attnbench.core.groups import grouped
from attnbench.core.record import Record, Run
from attnbench.results.cells import Cell, Key, cells
from attnbench.results.run_setup import differences, setup_texts, unique_labels
from attnbench.results.uncertainty import NORMAL, Spread, spread

Family = str  # "compute bound", "memory bound"; "all cells" where the roofline is not known


@dataclass(frozen=True, eq=False)
class Unit:
    """One GPU: the runs of it, and its cells."""

    files: tuple[str, ...]  # the name of each run's file, which names its node and GPU
    runs: tuple[Run, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The name of the unit's run file; of several files the first name, and the number of the others."""
        more = len(self.files) - 1
        return self.files[0] + (f" and {more} more" if more else "")

    def where(self, cell: Cell) -> str:
        """Return the name of the file that has a cell of the unit."""
        return next(name for name, run in zip(self.files, self.runs, strict=True) if run is cell.run)

    @property
    def uuid(self) -> str:
        return self.runs[0].environment.device.uuid or ""

    @property
    def id(self) -> str:
        """The UUID, else the name: no two units of any models share it."""
        return self.uuid or self.name

    @property
    def records(self) -> list[Record]:
        return [record for run in self.runs for record in run.records]

    @cached_property
    def wrong(self) -> list[Cell]:
        """The cells with a wrong result."""
        return [cell for cell in self.cells if cell.status == "wrong" and not cell.of_earlier_check]

    @cached_property
    def other_kernels(self) -> list[Cell]:
        """The cells in which another kernel ran than the backend declares, which is no wrong result."""
        return [cell for cell in self.cells if cell.status == "wrong-kernel" and not cell.of_earlier_check]

    def cards(self, cell: Cell) -> frozenset[str]:
        """Return the UUIDs of the GPUs that computed a cell, one for each rank; the unit's name where none is known."""
        return cell.cards or frozenset({self.name})

    @cached_property
    def latencies(self) -> dict[Key, float]:
        """The median latency of each comparable cell, without cells whose time is the host's and not the GPU's."""
        found = [(cell.key, s) for cell in self.cells if (s := cell.value("latency")) and not cell.is_host_bound()]
        return {key: stats.median([s for _, s in own]) for key, own in grouped(found, lambda pair: pair[0]).items()}

    def reading(self, *names: str) -> float | None:
        """Return the median of the first of the named readings that the unit has."""
        for name in names:
            taken = (record.measurements.get(name) for record in self.records)
            values = [value for one in taken if one for value in one.values if math.isfinite(value)]
            if values:
                return stats.median(values)
        return None


@dataclass(frozen=True, eq=False)
class Model:
    """The units of one model that were measured alike."""

    label: str
    units: tuple[Unit, ...]
    families: Mapping[Family, tuple[Key, ...]]  # the cells that are compared
    tests: int  # units times families that are judged, of all models

    @property
    def run(self) -> Run:
        return self.units[0].runs[0]

    @cached_property
    def figures(self) -> dict[Family, dict[Unit, float]]:
        """Family -> unit -> median over its cells of log(latency / the model's median latency)."""
        found: dict[Family, dict[Unit, float]] = {}
        for family, keys in self.families.items():
            logs: dict[Unit, list[float]] = {}
            for key in keys:
                own = {unit: unit.latencies[key] for unit in self.units if key in unit.latencies}
                middle = stats.median([*own.values()])
                for unit, seconds in own.items():
                    logs.setdefault(unit, []).append(math.log(seconds / middle))
            found[family] = {unit: stats.median(values) for unit, values in logs.items()}
        return found

    @cached_property
    def judgements(self) -> dict[Family, Judgement | None]:
        return {
            family: judge([*figures.values()], self._table(self.families[family]), self.tests)
            for family, figures in self.figures.items()
        }

    @property
    def judged(self) -> list[Unit]:
        """The units that are judged in any family: those that measured its cells, where these are enough units."""
        families = [family for family, judgement in self.judgements.items() if judgement]
        return [unit for unit in self.units if any(unit in self.figures[family] for family in families)]

    @property
    def spread(self) -> Spread:
        """The model's entry in the table of spreads (results/spreads.json)."""
        return spread(self.run.environment.device)

    def off(self, unit: Unit, family: Family) -> float | None:
        """Return the distance of a unit from the middle of a family, a logarithm; None where it was not measured."""
        judged, figure = self.judgements[family], self.figures[family].get(unit)
        return None if figure is None else figure - (judged.middle if judged else 0.0)

    def outlying(self, unit: Unit) -> dict[Family, float]:
        """Return family -> distance from the middle (a logarithm, above 0 if slower) where a unit is an outlier."""
        return self._beyond(unit, lambda judged: (judged.threshold, math.inf))

    def far_off(self, unit: Unit) -> dict[Family, float]:
        """Return family -> distance from the middle (a logarithm) where a unit is far off and no outlier."""
        return self._beyond(unit, lambda judged: (judged.far, judged.threshold))

    def _beyond(self, unit: Unit, limits: Callable[[Judgement], tuple[float, float]]) -> dict[Family, float]:
        """Return family -> distance from the middle (a logarithm), for some of the families that have a judgement.

        These are the families in which the unit's distance, on either side, is above the first limit and not above the
        second.
        """
        found = {}
        for family, judged in self.judgements.items():
            off = self.off(unit, family)
            if judged and off is not None and limits(judged)[0] < abs(off) <= limits(judged)[1]:
                found[family] = off
        return found

    def right(self, key: Key) -> frozenset[str]:
        """Return the units that computed a cell right."""
        return self._right.get(key, frozenset())

    @cached_property
    def _right(self) -> dict[Key, frozenset[str]]:
        right = [(cell.key, unit.id) for unit in self.units for cell in unit.cells if cell.status == "ok"]
        return {key: frozenset(id for _, id in own) for key, own in grouped(right, lambda pair: pair[0]).items()}

    def alone_wrong(self, unit: Unit) -> list[Cell]:
        """Return the wrong cells of a unit that others of the model computed right."""
        return [cell for cell in unit.wrong if self.right(cell.key) - {unit.id}]

    def _table(self, keys: Iterable[Key]) -> float:
        """Return the standard deviation between units by the table, with the variance between processes added."""
        wanted = {*keys}
        cells = [cell for unit in self.units for cell in unit.cells if cell.key in wanted]
        halves = [cell.uncertainty.total for cell in cells if cell.uncertainty is not None]
        between = self.spread.cards.units(stats.median([cell.load for cell in cells]), len(wanted))
        return math.hypot(between, stats.median(halves) / NORMAL if halves else 0.0)


def models(files: Sequence[tuple[str, Run]]) -> list[Model]:
    """Return the models of runs, each with the name of its file; the model with the most units first.

    Units are pooled where nothing of the setup differs (results/run_setup.py). Runs of one UUID are of one unit.
    Runs of `capacity` say nothing of a unit's speed and are left out.
    """
    files = [(name, run) for name, run in files if run.search is None]
    groups: list[list[tuple[str, Run]]] = []
    for name, run in files:
        group = next((group for group in groups if not differences(group[0][1], run)), None)
        if group is None:
            groups.append([(name, run)])
        else:
            group.append((name, run))
    groups.sort(key=lambda group: -len(group))
    found = grouped(cells([run for _, run in files]), lambda cell: id(cell.run))
    firsts = [group[0][1] for group in groups]
    texts = [[*setup_texts(run).values()] for run in firsts]
    labels = unique_labels([run.environment.device.name for run in firsts], texts, "{}, {}")
    pooled = [_units(group, found) for group in groups]
    families = [_families(units) for units in pooled]
    tests = sum(len(units) * len(own) for units, own in zip(pooled, families, strict=True))
    return [Model(*each, tests) for each in zip(labels, pooled, families, strict=True)]


def _units(group: Sequence[tuple[str, Run]], found: Mapping[int, Sequence[Cell]]) -> tuple[Unit, ...]:
    """Return the units of runs in the order of their names."""
    by_unit = grouped(group, lambda pair: pair[1].environment.device.uuid or f"file {pair[0]}")
    units = [
        Unit(
            tuple(name for name, _ in own),
            tuple(run for _, run in own),
            tuple(cell for _, run in own for cell in found.get(id(run), ())),
        )
        for own in by_unit.values()
    ]
    return tuple(sorted(units, key=lambda unit: unit.name))


def _families(units: Sequence[Unit]) -> dict[Family, tuple[Key, ...]]:
    """Return the cells that at least two units and half of all units measured, by the limit that bounds them."""
    bounds = {cell.key: cell.bound for unit in units for cell in unit.cells}
    measured = Counter(key for unit in units for key in unit.latencies)
    keys = [key for key, number in measured.items() if number >= max(2, len(units) / 2)]
    found = grouped(keys, lambda key: f"{bound} bound" if (bound := bounds[key]) else "all cells")
    return {family: tuple(keys) for family, keys in sorted(found.items())}
