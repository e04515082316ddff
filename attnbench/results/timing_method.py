"""The timing method of a case: CUDA events or the kernels' own span, one for all its cells.

Events include a launch gap of 1 to 4 us, which differs by kernel and is not work of the kernels. For short calls a
record therefore also holds the span of the same calls, by CUPTI. The two methods cannot be compared, so one is chosen
for a whole case, over all backends, rounds and runs that are reported or compared together. Spans are used if the
fastest cell reads less than SHORT by events and each other cell has spans too, or is so long that the gap is negligible
and events may stay. Else all cells are timed by events, and the report says in how many of them the gap matters. Spans
of longer calls are not taken, as tracing slows some kernels by 2 to 3 %.
"""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.policy import SHORT
from attnbench.core.record import Record, Run

NEGLIGIBLE = 0.8e-3  # seconds from which the gap is at most 0.5 %; less than SPAN_LIMIT, up to which spans are recorded

TimedBySpan = frozenset[tuple[Case, str]]  # the cells whose latency is a span, by case and backend


def timed_by_span(runs: Iterable[Run]) -> TimedBySpan:
    """Return the cells of some runs whose latency is a span."""
    cases: dict[Case, dict[str, list[tuple[float, bool]]]] = {}  # seconds by events, and whether there is a span
    for run in runs:
        for record in {record.id: record for record in run.records}.values():
            if record.status == "ok" and record.timer == "events" and (seconds := _events(record)):
                read = seconds, has_span(record)
                cases.setdefault(record.case, {}).setdefault(record.backend, []).append(read)
    found: set[tuple[Case, str]] = set()
    for case, backends in cases.items():
        fastest = {backend: min(seconds for seconds, _ in read) for backend, read in backends.items()}
        spanned = {backend for backend, read in backends.items() if all(spans for _, spans in read)}
        if min(fastest.values()) < SHORT and all(b in spanned or t >= NEGLIGIBLE for b, t in fastest.items()):
            found |= {(case, backend) for backend in spanned}
    return frozenset(found)


def has_span(record: Record) -> bool:
    """Return whether a record has the kernels' spans of the calls that events timed."""
    return record.timer == "events" and "span" in record.measurements


def _events(record: Record) -> float:
    time = record.measurements.get("time")
    return stats.median(time.values) if time and time.values else 0.0
