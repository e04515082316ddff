"""One value a round of each metric that a gate knows, alike on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench import derive, metrics, stats
from attnbench.metrics import digits
from attnbench.types import Record

CYCLES = "cycles"  # latency times the clock that was held: what a kernel takes where the clock is not its doing


def readings(
    metric: str, baseline: Sequence[Record], current: Sequence[Record]
) -> tuple[dict[int, float], dict[int, float]]:
    """Round -> value on either side, of the rounds that have one, in the metric's unit.

    A kernel near the length below which its span replaces the events' reading may have either; the gap between them is
    no change of the kernel, so the span counts only where all rounds have it.
    """
    if metric not in ("latency", CYCLES):
        found = [{r.round: metrics.value(metric, r) for r in side} for side in (baseline, current)]
    else:
        span = all(derive.uses_span(r) for side in (baseline, current) for r in side)
        found = [{r.round: _time(r, span, metric) for r in side} for side in (baseline, current)]
    before, after = ({i: v for i, v in side.items() if v is not None} for side in found)
    return before, after


def text(metric: str, value: float | None) -> str:
    """A value for a reader, with its unit."""
    if value is None:
        return "-"
    return f"{digits(value / 1e6)} Mcycles" if metric == CYCLES else metrics.METRICS[metric].format(value)


def signed(change: float) -> str:
    """+1.23%, with three significant digits, so that an interval's end can be told from the margin."""
    change = change if abs(change) >= 1e-6 else 0.0
    return f"{'-' if change < 0 else '+'}{digits(100 * abs(change))}%"


def _time(record: Record, span: bool, metric: str) -> float | None:
    if span == derive.uses_span(record):
        time = derive.latency(record)
    else:
        found = derive.values(record, "time")
        time = stats.median(found) if found else None
    if metric != CYCLES or time is None:
        return time
    clock = derive.values(record, "clock_held")
    return time * stats.median(clock) if clock else None
