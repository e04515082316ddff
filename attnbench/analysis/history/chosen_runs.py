"""Which of the runs a history is of: those of a branch, those since a date or commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from attnbench.analysis.history.acknowledged import is_named
from attnbench.analysis.history.series import in_order
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.core.text import some
from attnbench.results.run_setup import seconds_started


def of_branch(runs: Sequence[Run], branch: str) -> list[Run]:
    """Return the runs of a branch. Raises UserError where there is none."""
    found = [run for run in runs if run.environment.branch == branch]
    if not found:
        known = sorted({run.environment.branch for run in runs if run.environment.branch})
        others = f"there are runs of {some(known)}" if known else "no run says of which branch it is"
        raise UserError(f"--branch: no run of {branch}; {others}")
    return found


def since(runs: Sequence[Run], text: str) -> list[Run]:
    """Return the runs from a date on, or from the first run of a commit on. Raises UserError where there is none."""
    ordered = in_order(runs)
    first = next((place for place, run in enumerate(ordered) if is_named(run, text)), None)
    if first is not None:
        return ordered[first:]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--since: {text} is neither a date (2026-11-01) nor the commit of a run") from None
    least = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    found = [run for run in ordered if (seconds_started(run) or 0.0) >= least]
    if not found:
        raise UserError(f"--since: no run was started since {text}; the last one was at {ordered[-1].started}")
    return found
