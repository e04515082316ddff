"""Detection of runs given twice, and of copies of a run that were resumed separately."""

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
DIGITS = 1e-6  # relative; a baseline stores its numbers with seven digits
NOT_TIMED = 3  # the number of fields before the times in `_recorded`


def without_copies(given: Iterable[tuple[K, Run]]) -> list[tuple[K, Run]]:
    """Return the (key, run) pairs with each run once; of a run and its baseline the run, which has the samples.

    A run given twice (as a copy, an earlier part, its baseline, or as a file and in a folder) would look like a second
    machine, or like rounds without noise. The whole run takes the position of the first of its parts.
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
    """Yield a sentence for each pair of runs that share records, as copies of a run that were resumed separately.

    `given` has (name, run) pairs, each run once (`without_copies`).
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
                    "of them are the same, and count as one measurement"
                )


def _is_part(run: Run, whole: Run) -> bool:
    """Return whether a run is the same as `other`, an earlier state of it, or its baseline."""
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
    """Return a run in its state before measurement, without added rounds."""
    return replace(run, plan=[job for job in run.plan if not job.round], records=(), replaced=())


def _is_within(run: Run, whole: Run) -> bool:
    """Return whether `whole` has all records of a run; false where only the run has no records."""
    some, every = _recorded(run), _recorded(whole)
    return some <= every and bool(some or not every)


def _recorded(run: Run) -> Set[tuple[object, ...]]:
    """Return the identity of each record of a run: NOT_TIMED fields, then the samples of its time.

    Errors are left out, because NaN does not equal itself.
    """
    records = [(r, r.measurements.get("time")) for r in (*run.records, *run.replaced)]
    return {(r.id, r.status, r.seconds, *(time.values if time else ())) for r, time in records}


def _kept(run: Run) -> tuple[str, tuple[str, str | None], dict[str, float]]:
    """Return the parts of a run that its baseline keeps: suite, device, and the time of each job."""
    device = run.environment.device
    taken = ((r.id, r.measurements["time"].values) for r in run.records if "time" in r.measurements)
    return run.suite, (device.name, device.uuid), {job: stats.median(values) for job, values in taken if values}
