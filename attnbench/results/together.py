"""Facts that follow from all runs shown or compared together, and hold for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from attnbench.core.case import Case
from attnbench.core.record import Record, Run
from attnbench.results.timing_method import TimedBySpan, timed_by_span

Versioned = tuple[Case, str, str | None]  # a case, and a backend with its version


class Together(NamedTuple):
    """Facts of some runs.

    `stored` has the kernels that were slower on new inputs (worker/kernel_trace.py), which probably store results. A
    run on a busy machine may miss this.
    """

    by_span: TimedBySpan = frozenset()  # the cells timed by spans, the same in all runs
    stored: frozenset[Versioned] = frozenset()


def together(runs: Iterable[Run]) -> Together:
    """Return the facts of some runs."""
    runs = list(runs)
    stored: set[Versioned] = set()
    for run in runs:
        rounds: dict[Versioned, list[bool]] = {}
        for record in run.records:
            if record.status == "ok":
                rounds.setdefault(versioned(record), []).append("new_inputs" in record.measurements)
        stored |= {of for of, slower in rounds.items() if 2 * sum(slower) > len(slower)}
    return Together(timed_by_span(runs), frozenset(stored))


def versioned(record: Record) -> Versioned:
    """Return the case, the backend and its version, by which records of several rounds and runs are joined."""
    return record.case, record.backend, record.version
