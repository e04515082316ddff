"""Tell which of some runs are one run that was given again, or copies of one that went on apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import TypeVar

from attnbench.core import stats
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.core.text import count

K = TypeVar("K")
DIGITS = 1e-6  # a baseline's figures have seven digits
NOT_TIMED = 3  # what `_recorded` returns of a record beside its time


def without_copies(given: Iterable[tuple[K, Run]]) -> list[tuple[K, Run]]:
    """Return runs with what comes with them, each once; of a run and its baseline the run, which has the samples.

    A run that is given again, as a copy, as a part of itself, as its own baseline or beside its folder, would look like
    a second machine or like rounds without noise. The whole takes the place of the first of its parts.
    """
    found: list[tuple[K, Run]] = []
    for beside, run in given:
        if any(_is_part(run, other) for _, other in found):
            continue
        parts = [i for i, (_, other) in enumerate(found) if _is_part(other, run)]
        if parts:
            found[parts[0]] = beside, run
        else:
            found.append((beside, run))
        found = [one for i, one in enumerate(found) if i not in parts[1:]]
    return found


def went_on_apart(given: Iterable[tuple[K, Run]]) -> Iterator[str]:
    """Yield a sentence for each two runs that share records, as copies of one that were resumed each by itself.

    No run is among them twice (`without_copies`). What comes with a run is its name.
    """
    for of in grouped(given, lambda pair: pair[1].started).values():
        recorded = cache(lambda i, of=of: _recorded(of[i][1]))
        for i, j in combinations(range(len(of)), 2):
            (name, run), (other_name, other) = of[i], of[j]
            if run.environment != other.environment or _planned(run) != _planned(other):
                continue
            if timed := [record for record in recorded(i) & recorded(j) if len(record) > NOT_TIMED]:
                yield (
                    f"{name} and {other_name} are copies of one run that went on apart: {count(len(timed), 'record')} "
                    "of them are the same, and are no two measurements"
                )


def _is_part(run: Run, whole: Run) -> bool:
    """Return whether a run is the other, or what was measured of it when it was copied, or a baseline of it."""
    if run.started != whole.started or (whole.reduced and not run.reduced):
        return False
    if not run.reduced:
        return run.environment == whole.environment and _planned(run) == _planned(whole) and _is_within(run, whole)
    (suite, device, times), (other_suite, other_device, other_times) = _kept(run), _kept(whole)
    if whole.reduced and len(times) > len(other_times):
        return False
    few, many = sorted((times, other_times), key=len)
    same = all(job in many and math.isclose(few[job], many[job], rel_tol=DIGITS) for job in few)
    return same and (suite, device) == (other_suite, other_device)


def _planned(run: Run) -> Run:
    """Return a run as it was before it was measured, without rounds that were added."""
    return replace(run, plan=[job for job in run.plan if not job.round], records=(), replaced=())


def _is_within(run: Run, whole: Run) -> bool:
    """Return whether the other run has all records of a run. One without records is a part of none that has some."""
    some, every = _recorded(run), _recorded(whole)
    return some <= every and bool(some or not every)


def _recorded(run: Run) -> Set[tuple[object, ...]]:
    """Return what tells each record of a run from others: NOT_TIMED fields, then the samples of its time.

    Errors are none of it, as they may be NaN and then equal nothing.
    """
    records = [(r, r.measurements.get("time")) for r in (*run.records, *run.replaced)]
    return {(r.id, r.status, r.seconds, *(time.values if time else ())) for r, time in records}


def _kept(run: Run) -> tuple[str, tuple[str, str | None], dict[str, float]]:
    """Return what a baseline keeps of a run: its suite, its device, and the time of each job."""
    device = run.environment.device
    taken = ((r.id, r.measurements["time"].values) for r in run.records if "time" in r.measurements)
    return run.suite, (device.name, device.uuid), {job: stats.median(values) for job, values in taken if values}
