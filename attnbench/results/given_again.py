"""Tell which of some runs are one run that was given again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

from attnbench.core import stats
from attnbench.core.record import Run

K = TypeVar("K")
DIGITS = 1e-6  # a baseline's figures have seven digits


def without_copies(given: Iterable[tuple[K, Run]]) -> list[tuple[K, Run]]:
    """Return runs with what comes with them, each once; of a run and its baseline the run, which has the samples.

    A run that is given again, as a copy, as its own baseline or beside its folder, would look like a second machine or
    like rounds without noise.
    """
    found: list[tuple[K, Run]] = []
    for beside, run in given:
        twin = next((i for i, (_, other) in enumerate(found) if _is_the_same(run, other)), None)
        if twin is None:
            found.append((beside, run))
        elif found[twin][1].reduced:
            found[twin] = beside, run
    return found


def _is_the_same(run: Run, other: Run) -> bool:
    """Return whether two are one run, of which a baseline keeps a part only: what it was measured on, and its times."""
    if run.started != other.started:
        return False
    if not (run.reduced or other.reduced):
        return run == other
    (suite, device, times), (other_suite, other_device, other_times) = _kept(run), _kept(other)
    few, many = sorted((times, other_times), key=len)
    same = all(job in many and math.isclose(few[job], many[job], rel_tol=DIGITS) for job in few)
    return same and (suite, device) == (other_suite, other_device)


def _kept(run: Run) -> tuple[str, tuple[str, str | None], dict[str, float]]:
    """Return what a baseline keeps of a run: its suite, its device, and the time of each job."""
    device = run.environment.device
    taken = ((r.id, r.measurements["time"].values) for r in run.records if "time" in r.measurements)
    return run.suite, (device.name, device.uuid), {job: stats.median(values) for job, values in taken if values}
