"""What the cells of one run share, and what is asked of all of them: each thing computed once, for all at once.

A report on 100,000 records has 20,000 cells and asks each a dozen questions: was its clock held down, what is its
median latency? That takes seconds where each cell answers for itself; so the answers stand here, by the cell's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.results import batch, columns, derive, metrics

if TYPE_CHECKING:
    from attnbench.results.cells import Cell

CLOCK_HELD = 0.985  # of the best clock; the rest is the gauge's and the boost's own play
Values = Mapping[int, float | None] | Sequence[float | None]  # by a cell's place


class Sheet:
    """The cells of a run, in the order of a report, and their figures. A set of cells has their places in `cells`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.columns = columns.of(run.records)
        self.cases = dict(zip(map(id, self.columns.cases), self.columns.cases, strict=True))  # each once
        self.device = ""  # label, unique among devices (or settings) that are not comparable
        self.beside: Sequence[Sheet] = (self,)  # those with this label
        self.several_dtypes = False  # not all cells of the report have one dtype
        self.cells: list[Cell] = []
        self._rates: dict[tuple[str, Convention], derive.Context] = {}
        self._values: dict[tuple[str, Convention], Values] = {}

    @cached_property
    def rows(self) -> list[int]:
        """The places of the cells' records, one cell's after the other's."""
        return list(chain.from_iterable(cell.rows for cell in self.cells))

    @cached_property
    def _cell_of(self) -> list[int | None]:
        """The cell of each record; None of one that a later one replaces."""
        found: list[int | None] = [None] * len(self.columns)
        for place, cell in enumerate(self.cells):
            for i in cell.rows:
                found[i] = place
        return found

    def having(self, records: Iterable[int]) -> set[int]:
        """The cells of which one record is among these."""
        return {place for i in records if (place := self._cell_of[i]) is not None}

    @cached_property
    def spans(self) -> Set[int]:
        """Where in a measured round the kernels' span stands in place of the events' reading."""
        return self.having(i for i in batch.spans(self.columns) if self.columns.statuses[i] == "ok")

    @cached_property
    def compared(self) -> Set[int]:
        """Where the instruments took turns."""
        return self.having(chain.from_iterable(self.columns.present[name] for name in derive.TURNS))

    @cached_property
    def failed(self) -> Set[int]:
        """Where a round ended otherwise than measured or skipped."""
        each = enumerate(self.columns.statuses)
        return self.having(i for i, status in each if status not in ("ok", "skipped"))

    @cached_property
    def powered(self) -> Set[int]:
        """Where power was measured in a long run without pauses."""
        return self.having(self.columns.present["sustained_power"])

    @cached_property
    def held_down(self) -> Set[int]:
        """Where something kept the clock below its best in a measured round.

        The exact gauge tells where there is one: well below the run's best clock, or below the device's and NVML names
        a limit. Else NVML's limits do.
        """
        clocks, limits = batch.values("clock_held", self.columns), self.columns.limits
        best = max(filter(None, map(clocks.__getitem__, self.rows)), default=0.0)
        top = self.run.environment.clock_max_hz
        low, short = CLOCK_HELD * best, math.inf if top is None else CLOCK_HELD * top
        slow = [i for i, hz in enumerate(clocks) if hz is not None and hz < low]
        limited = [i for i in limits if (hz := clocks[i]) is None or hz < short]
        return self.having(i for i in (*slow, *limited) if self.columns.statuses[i] == "ok")

    @cached_property
    def eager(self) -> Mapping[Case, Mapping[int, float]]:
        """Round -> seconds of eager on each case, of all runs with this label."""
        every = (cell for sheet in self.beside for cell in sheet.cells)
        return {cell.case: cell.rounds("latency") for cell in every if cell.backend == "eager" and cell.status == "ok"}

    def rates(self, dtype: str, convention: Convention = "exact") -> derive.Context:
        """What the run says of its machine."""
        if (dtype, convention) not in self._rates:
            matmuls, copy = self._ceilings
            found = derive.context(self.run, dtype, matmuls.get(dtype), copy)
            self._rates[dtype, convention] = replace(found, convention=convention)
        return self._rates[dtype, convention]

    @cached_property
    def _ceilings(self) -> tuple[Mapping[str, float], float | None]:
        """What large matmuls, by dtype, and large copies reached, in the median."""
        matmuls, copies = map(self.columns.samples, derive.CEILINGS)
        found: dict[str, list[float]] = {}
        for i, readings in matmuls:
            found.setdefault(self.columns.cases[i].dtype, []).extend(readings)
        copied = copies.values
        ceilings = {dtype: stats.median(readings) for dtype, readings in found.items()}
        return ceilings, stats.median(copied) if copied else None

    def values(self, metric: str, convention: Convention = "exact") -> Values:
        """The median over a measured cell's rounds, derived once."""
        found = self._values.get((metric, convention))
        if found is None:
            if convention != "exact" and isinstance(metrics.METRICS[metric].derive, derive.Once):
                found = self.values(metric)  # it needs no context
            elif metric in batch.FORMULAS and len(self.columns) >= batch.FEW:
                found = batch.medians(metric, self.columns, self._grouped)
            else:
                found = _Asked(self, metric, convention)
            self._values[metric, convention] = found
        return found

    @cached_property
    def _grouped(self) -> batch.Grouped:
        return batch.grouped([cell.rows for cell in self.cells])


class _Asked(dict[int, "float | None"]):
    """A metric of those cells that are asked for."""

    def __init__(self, sheet: Sheet, metric: str, convention: Convention) -> None:
        self._sheet, self._metric, self._convention = sheet, metric, convention

    def __missing__(self, place: int) -> float | None:
        found = self._each(self._sheet.cells[place])
        known = [v for v in found if v is not None]
        self[place] = stats.median(known) if known else None
        return self[place]

    def _each(self, cell: Cell) -> list[float | None]:
        """By round."""
        metric, formula = self._metric, metrics.METRICS[self._metric].derive
        if metric in batch.FORMULAS:
            return [*cell.rounds(metric).values()]
        if isinstance(formula, derive.Once):
            return [metrics.value(metric, r) for r in cell.records]
        rounds = self._sheet.columns.rounds
        if formula is derive.speedup:
            contexts = [cell.context(rounds[i], self._convention) for i in cell.ok]
        else:
            contexts = [self._sheet.rates(cell.case.dtype, self._convention)] * len(cell.ok)
        return [self._one(cell, i, formula, context) for i, context in zip(cell.ok, contexts, strict=True)]

    def _one(self, cell: Cell, row: int, formula: derive.Formula, context: derive.Context) -> float | None:
        """Without its record, where the latency is all that is asked of it, and is finite."""
        if isinstance(formula, derive.OfLatency):
            seconds = batch.values("latency", self._sheet.columns)[row]
            if seconds is not None:
                return metrics.finite(formula.compute(derive.Timed(cell.case, cell.backend, seconds), context))
        return metrics.value(self._metric, self._sheet.columns[row], context)
