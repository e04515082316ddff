"""The result of a search: the largest size that fits and is right, what stops the next one, and memory by size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnbench.core.case import Case
from attnbench.core.record import NO_ROOM_TO_CHECK, Record, Run, Search
from attnbench.run.capacity import call_seconds, is_done, key_of, known, outcome
from attnbench.run.capacity_search import bracket

Limit = Literal["memory", "wrong", "refused", "too slow", "failed", "unchecked", "not reached"]
FLOOR = 1e-6  # mean squared relative residual, below which a better fit means nothing (rounding to blocks)
VISIBLE = 0.1  # share of the memory at the largest size, from which the quadratic term names the growth
FULL = 0.75  # share of memory: below it, a size 4 % larger cannot have run out of memory by its call alone
LIMITS: dict[str, Limit] = {
    "oom": "memory",
    "wrong": "wrong",
    "wrong-kernel": "wrong",
    "skipped": "refused",
    "timeout": "too slow",
}


@dataclass(frozen=True)
class Growth:
    """A fit of bytes over size: a + b n + c n^2, none of them negative."""

    a: float
    b: float
    c: float
    largest: int  # the largest size of the fit

    @property
    def name(self) -> Literal["constant", "linear", "quadratic"]:
        """The term that matters at the largest size."""
        total = self.at(self.largest)
        if self.c * self.largest**2 > VISIBLE * total:
            return "quadratic"
        return "linear" if self.b * self.largest > VISIBLE * total else "constant"

    def at(self, size: float) -> float:
        """Return the bytes of a size."""
        return self.a + self.b * size + self.c * size**2


@dataclass(frozen=True)
class Finding:
    """The result of one search, of a case on a backend."""

    run: Run
    search: Search
    backend: str
    case: Case  # at the base size
    largest: int | None  # the largest size that fits and is right
    at_largest: Record | None
    next: int | None  # the smallest size above `largest` that does not fit or is not right
    limit: Limit  # what stops `next`; "not reached" where nothing did yet
    reason: str
    is_done: bool
    tried: Sequence[tuple[int, Record]]  # in the order of sizes
    growth: Growth | None

    @property
    def nbytes(self) -> int | None:
        """The bytes in use at the largest size, inputs included."""
        return memory(self.at_largest) if self.at_largest else None

    @property
    def call(self) -> float | None:
        """The seconds of one call at the largest size."""
        return call_seconds(self.at_largest) if self.at_largest else None

    @property
    def forecast_error(self) -> float | None:
        """The error of the plan's forecast of memory at the largest size, as a share of the memory."""
        record = self.at_largest
        if record is None or record.forecast is None or not self.nbytes:
            return None
        return record.forecast.nbytes / self.nbytes - 1


def _limit(run: Run, record: Record, below: Record | None) -> Limit:
    """Return the limit that stopped a size that does not fit, from its record.

    `below` is the record of the largest size that fits.

    Where `below` left much of the device free, memory ran out for the check and not for the call: "unchecked".
    """
    if record.status == "failed" and NO_ROOM_TO_CHECK in (record.reason or ""):
        return "unchecked"
    found = LIMITS.get(record.status, "failed")
    room = run.search.memory if run.search and run.search.memory else run.environment.device.memory
    taken = memory(below) if below else None
    return "unchecked" if found == "memory" and taken and room and taken < FULL * room else found


def memory(record: Record) -> int | None:
    """Return the bytes in use at the peak of a step, inputs included; None where it was not measured."""
    parts = [record.measurements.get(name) for name in ("memory_inputs", "memory_peak")]
    return int(sum(part.values[0] for part in parts if part)) if all(parts) else None


def findings(runs: Sequence[Run]) -> list[Finding]:
    """Return the findings of the searches of some runs, in the order of their plans.

    Of repeated searches (`_same`) one is kept: a finished search if there is any, and among several the search with the
    largest size.
    """
    found = []
    for run in runs:
        search = run.search
        assert search is not None
        for job in run.plan:
            backend, case = key = key_of(job, search.of)
            records = known(run.records, key, search)
            at = bracket({size: outcome(record) for size, record in records.items()})
            stopped = records.get(at.stops) if at.stops else None
            done = is_done(run.records, job, search)
            below = records.get(at.fits) if at.fits else None
            limit = _limit(run, stopped, below) if stopped else "not reached"
            points = [(size, float(memory(r) or 0)) for size, r in records.items() if r.status == "ok" and memory(r)]
            found.append(
                Finding(
                    run,
                    search,
                    backend,
                    case,
                    at.fits,
                    below,
                    at.stops,
                    limit,
                    (stopped.reason if stopped else job.skip) or "",
                    done,
                    sorted(records.items()),
                    fit_growth(points),
                )
            )
    furthest = {_same(of): of for of in sorted(found, key=lambda of: (of.is_done, of.largest or 0))}
    return [of for of in found if of is furthest[_same(of)]]


def _same(of: Finding) -> tuple[str, Search, str, Case]:
    """Return the key that is equal for repeated searches: device name, kind of search, backend and case."""
    return of.run.environment.device.name, of.search, of.backend, of.case


def fit_growth(points: Sequence[tuple[int, float]]) -> Growth | None:
    """Return the fit of (size, bytes) by least squares of relative residuals; None for fewer than three sizes.

    Of the constant, linear and quadratic terms it has those that the Bayesian information criterion keeps.
    """
    points = sorted(dict(points).items())
    if len(points) < 3:
        return None
    sizes, values = np.array(points, float).T
    largest, number = points[-1][0], len(points)
    columns = (sizes[:, None] / largest) ** np.arange(3) / values[:, None]
    fits = []
    for terms in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        own = columns[:, terms]
        found, _, rank, _ = np.linalg.lstsq(own, np.ones(number))
        if len(terms) < number and rank == len(terms) and min(found) >= 0:
            mean = float(np.mean((own @ found - 1) ** 2)) + FLOOR
            score = number * math.log(mean) + len(terms) * math.log(number)
            fits.append((score, dict(zip(terms, found.tolist(), strict=True))))
    _, best = min(fits, key=lambda fit: fit[0])
    a, b, c = (best.get(power, 0.0) / largest**power for power in range(3))
    return Growth(a, b, c, largest)
