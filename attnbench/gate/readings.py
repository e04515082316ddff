"""One value a round of each metric that a gate knows, alike on both sides."""

from __future__ import annotations

from attnbench import derive, metrics, stats
from attnbench.metrics import digits
from attnbench.report import batch
from attnbench.report.cells import Cell

CYCLES = "cycles"  # latency times the clock that was held: what a kernel takes where the clock is not its doing


def readings(metric: str, baseline: Cell, current: Cell) -> tuple[dict[int, float], dict[int, float]]:
    """Round -> value on either side, of the rounds that have one, in the metric's unit.

    A kernel near the length below which its span replaces the events' reading may have either; the gap between them is
    no change of the kernel, so the span counts only where all rounds have it.
    """
    if metric not in ("latency", CYCLES):
        return baseline.rounds(metric), current.rounds(metric)
    ours, theirs = batch.spans(baseline.columns), batch.spans(current.columns)
    mixed = False
    if ours or theirs:
        mixed = len({*(i in ours for i in baseline.ok), *(i in theirs for i in current.ok)}) > 1
    before, after = (_events(cell) if mixed else cell.rounds("latency") for cell in (baseline, current))
    return (_cycles(baseline, before), _cycles(current, after)) if metric == CYCLES else (before, after)


def text(metric: str, value: float | None) -> str:
    """A value for a reader, with its unit."""
    if value is None:
        return "-"
    return f"{digits(value / 1e6)} Mcycles" if metric == CYCLES else metrics.METRICS[metric].format(value)


def signed(change: float) -> str:
    """+1.23%, with three significant digits, so that an interval's end can be told from the margin."""
    change = change if abs(change) >= 1e-6 else 0.0
    return f"{'-' if change < 0 else '+'}{digits(100 * abs(change))}%"


def _events(cell: Cell) -> dict[int, float]:
    """Median of what events read."""
    each = ((cell.columns.rounds[i], derive.values(cell.columns[i], "time")) for i in cell.ok)
    return {number: stats.median(found) for number, found in each if found}


def _cycles(cell: Cell, times: dict[int, float]) -> dict[int, float]:
    clocks = cell.rounds("clock_held")
    return {number: time * clocks[number] for number, time in times.items() if number in clocks}
