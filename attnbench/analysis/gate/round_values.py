"""One value for each round and metric that a gate compares, measured in the same way on both sides."""

from __future__ import annotations

from attnbench.analysis.gate.findings import TIMED
from attnbench.results import metrics
from attnbench.results.cells import Cell


def round_values(metric: str, baseline: Cell, current: Cell) -> tuple[dict[int, float], dict[int, float]]:
    """Return round -> value of a metric, in its unit, of the rounds that have one, for two cells that are compared.

    The latency of a kernel near 100 us may be the events' reading in some rounds and the kernels' span in others
    (Row.uses_span). The gap between the two is no change of the kernel, so spans count only where all measured rounds
    of both sides have them. A latency of 0 is no value: nothing can be compared with it.
    """
    if metric not in TIMED:
        return baseline.rounds(metric), current.rounds(metric)
    spans = {row.uses_span for row in (*baseline.ok, *current.ok)}
    return _timed(metric, baseline, by_events=len(spans) > 1), _timed(metric, current, by_events=len(spans) > 1)


def _timed(metric: str, cell: Cell, *, by_events: bool) -> dict[int, float]:
    """Return round -> seconds, or cycles; with `by_events` as CUDA events read them even where there are spans."""
    found = {}
    for row in cell.ok:
        seconds = row.one_value("time") if by_events else metrics.value("latency", row)
        held = metrics.value("clock_held", row) if metric == "cycles" else 1.0
        if seconds is not None and seconds > 0 and held is not None:
            found[row.record.round] = seconds * held
    return found
