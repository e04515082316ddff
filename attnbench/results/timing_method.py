"""Whether the latency of a cell is what CUDA events read or the kernels' own span: one method for a whole case.

Events include a launch gap of 1 to 4 us that differs by kernel, which is no work of the kernels. So where calls are
short a record holds the span of the same calls as well, by CUPTI. Both methods in one ratio would compare unlike
things, so a case is decided as a whole, over all backends, rounds and runs that are reported or compared together: it
is timed by spans if the fastest of its cells reads less than SHORT by events and every other one has spans too, or
reads so much that the gap is negligible, so that it may stay with events. Else all its cells are timed by events, and
the report says in how many the gap counts. (Tracing slows some kernels by 2 to 3 %: no reason to take spans of longer
calls.)
"""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.policy import SHORT
from attnbench.core.record import Record, Run

NEGLIGIBLE = 0.8e-3  # seconds, of which the gap is 0.5 % at most; below the length up to which spans are recorded

TimedBySpan = frozenset[tuple[Case, str]]  # the cells whose latency is a span, by case and backend


def timed_by_span(runs: Iterable[Run]) -> TimedBySpan:
    """Return the cells of some runs whose latency is a span."""
    cases: dict[Case, dict[str, list[Record]]] = {}
    for run in runs:
        for record in {record.id: record for record in run.records}.values():
            if record.status == "ok" and record.timer == "events" and _events(record):
                cases.setdefault(record.case, {}).setdefault(record.backend, []).append(record)
    found: set[tuple[Case, str]] = set()
    for case, backends in cases.items():
        fastest = {backend: min(map(_events, records)) for backend, records in backends.items()}
        spanned = {backend for backend, records in backends.items() if all(map(has_span, records))}
        if min(fastest.values()) < SHORT and all(b in spanned or t >= NEGLIGIBLE for b, t in fastest.items()):
            found |= {(case, backend) for backend in spanned}
    return frozenset(found)


def has_span(record: Record) -> bool:
    """Return whether a record holds the span of the calls that events timed."""
    if record.timer != "events" or "span" not in record.measurements:
        return False
    return bool(record.measurements["span"].values)


def _events(record: Record) -> float:
    time = record.measurements.get("time")
    return stats.median(time.values) if time and time.values else 0.0
