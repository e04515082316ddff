"""One value a round of each metric that a gate knows, alike on both sides; of all pairs of cells at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.results import batch, derive, metrics
from attnbench.results.batch import Grouped
from attnbench.results.cells import Cell
from attnbench.results.columns import Columns
from attnbench.results.metrics import digits

if TYPE_CHECKING:
    from attnbench.results.arrays import Floats, Ints

CYCLES = "cycles"  # latency times the clock that was held: what a kernel takes where the clock is not its doing


@dataclass(frozen=True, eq=False)
class Side:
    """Cells of one run, each of which has its like on the other side, at the same place."""

    columns: Columns
    records: Grouped

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Side:
        return cls(cells[0].columns, batch.grouped([cell.rows for cell in cells]))


@dataclass(frozen=True, eq=False)
class Readings:
    """Of one side: the values of each cell's rounds, one cell's after the other's."""

    cells: Ints  # the place of each value's cell
    rounds: Ints
    values: Floats  # in the metric's unit
    counts: Ints  # how many values each cell has

    def only(self, some: Any) -> Readings:
        """Some of the values."""
        import numpy as np

        counts = np.bincount(self.cells[some], minlength=len(self.counts))
        return Readings(self.cells[some], self.rounds[some], self.values[some], counts)

    def table(self, values: Floats) -> Floats:
        """Such values as these, in a row a cell; what stands behind as many as it has means nothing."""
        import numpy as np

        found = np.zeros((len(self.counts), self.counts.max(initial=1)))
        found[self.cells, np.arange(len(self.cells)) - (np.cumsum(self.counts) - self.counts)[self.cells]] = values
        return found


def readings(metric: str, baseline: Side, current: Side) -> tuple[Readings, Readings]:
    """Of the rounds that have a value.

    A kernel near the length below which its span replaces the events' reading may have either; the gap between them is
    no change of the kernel, so the span counts only where all rounds of both sides have it.
    """
    if metric not in ("latency", CYCLES):
        return _known(baseline, _column(metric, baseline)), _known(current, _column(metric, current))
    sides = baseline, current
    columns = [_column("latency", side) for side in sides]
    mixed = _mixed(baseline, current)
    for side, column in zip(sides, columns, strict=True):
        for i in mixed[side.records.groups].nonzero()[0].tolist():
            column[i] = _events(side.columns, side.records.rows[i])
        column[column <= 0] = math.nan  # a timer that read nothing: a ratio to it means nothing
        if metric == CYCLES:
            column *= _column("clock_held", side)
    before, after = (_known(side, column) for side, column in zip(sides, columns, strict=True))
    return before, after


def alike(before: Readings, after: Readings) -> tuple[Readings, Readings]:
    """Of the rounds that have a value on both sides."""
    import numpy as np

    most = 1 + max(before.rounds.max(initial=0), after.rounds.max(initial=0))
    ours, theirs = (side.cells * most + side.rounds for side in (before, after))
    return before.only(np.isin(ours, theirs)), after.only(np.isin(theirs, ours))


def text(metric: str, value: float | None) -> str:
    """A value for a reader, with its unit."""
    if value is None:
        return "-"
    return f"{digits(value / 1e6)} Mcycles" if metric == CYCLES else metrics.METRICS[metric].format(value)


def signed(change: float) -> str:
    """+1.23%, with three significant digits, so that an interval's end can be told from the margin."""
    change = change if abs(change) >= 1e-6 else 0.0
    return f"{'-' if change < 0 else '+'}{digits(100 * abs(change))}%"


def _column(metric: str, side: Side) -> Floats:
    """NaN where there is none."""
    found: Floats = batch.array(metric, side.columns)[side.records.rows]
    return found


def _known(side: Side, column: Floats) -> Readings:
    import numpy as np

    numbers = np.array(side.columns.rounds, np.int64)[side.records.rows]
    every = Readings(side.records.groups, numbers, column, np.zeros(side.records.number, np.int64))
    return every.only(~np.isnan(column))


def _mixed(baseline: Side, current: Side) -> Any:
    """The cells of which some measured rounds, of either side, have the span for their latency, and some have not."""
    import numpy as np

    found = np.zeros((2, baseline.records.number), bool)  # cells with a span, cells with a reading of events
    spans = [batch.spans(side.columns) for side in (baseline, current)]
    for side, own in zip((baseline, current), spans, strict=True) if any(spans) else ():
        for i, cell in zip(side.records.rows.tolist(), side.records.groups.tolist(), strict=True):
            if side.columns.statuses[i] == "ok":
                found[int(i not in own), cell] = True
    return found.all(axis=0)


def _events(columns: Columns, row: int) -> float:
    """Median of what events read in a measured round; NaN where they read nothing."""
    found = derive.values(columns[row], "time") if columns.statuses[row] == "ok" else ()
    return stats.median(found) if found else math.nan
