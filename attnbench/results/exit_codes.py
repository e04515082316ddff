"""The exit code of a command that measured a run, and the records that decide it."""

from __future__ import annotations

from collections import Counter

from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_WRONG_RESULT
from attnbench.core.record import WRONG, Record, Run

MAX_FAILED_STARTS = 3  # of a backend's worker, until its other jobs fail at once
GIVEN_UP = f"its worker died {MAX_FAILED_STARTS} times while starting; given up"  # the reason of these jobs


def exit_code(run: Run, allow_wrong: bool) -> int:
    """Return the exit code of a command that measured a run, or searched, without an interrupt."""
    if wrong_records(run) and not allow_wrong:
        return EXIT_WRONG_RESULT
    is_done = any(r.status == "ok" for r in run.records) and (run.search or not given_up(run))
    return EXIT_DONE if is_done else EXIT_NOTHING_MEASURED


def given_up(run: Run) -> dict[str, int]:
    """Return backend -> number of its untried jobs, for the backends whose workers did not start."""
    return dict(Counter(record.backend for record in run.records if record.reason == GIVEN_UP))


def wrong_records(run: Run) -> list[Record]:
    """Return the records with wrong results or wrong kernels; the last record of a job counts."""
    last = {(r.case, r.backend, r.round): r for r in run.records}
    return [record for record in last.values() if record.status in WRONG]
