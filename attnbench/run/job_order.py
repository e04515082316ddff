"""The measurement of a run's jobs in the order of the plan, in groups where possible, and within a time limit."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Record
from attnbench.run.plan import places, problem, skip_over_limit, skipped_record
from attnbench.run.workers import WorkerPool

Steps = Iterator[tuple[Job, Record | None]]  # (a job that starts, None), and (a job, its record)


def ranks_ahead(case: Case, device: Device) -> int:
    """Return the number of ranks with which a worker is opened before its first job: one on a CPU, else the case's."""
    return case.ranks if device.kind == "cuda" else 1


class TimeLimit:
    """Decides which jobs still fit a time limit, by their forecasts and the accuracy of the forecasts so far."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._forecast = self._actual = 10.0  # seconds, so that the first few jobs do not decide the ratio alone

    def add_measured(self, job: Job, seconds: float) -> None:
        """Add a measured job with its seconds."""
        self._forecast += job.forecast.seconds
        self._actual += seconds

    def allows(self, job: Job, ahead: Iterable[Job] = ()) -> bool:
        """Return whether the job fits the time that is left, together with the jobs `ahead` of it."""
        others = sum(j.forecast.seconds for j in ahead)
        return self._clock() + self._actual / self._forecast * (others + job.forecast.seconds) <= self._deadline


def measure_jobs(
    jobs: Sequence[Job], pool: WorkerPool, policy: Policy, device: Device, limit: TimeLimit | None = None
) -> Steps:
    """Measure jobs in their order; yield (job, None) when one starts, then (job, its record).

    The jobs of a case that may be measured together (WorkerPool.may_join) come before its other jobs. A new round has
    new workers.

    With a `limit` of time, whole problems are measured: a problem is a case in all its passes, and plan.places has the
    order of problems. A job waits for the end if it does not fit beside the remaining jobs of its problem and of the
    problems before it. At the end problems that have begun are completed, and others are measured where they fit as a
    whole, the ones that may compile for minutes last; the rest are skipped, and --resume measures them. Too low a
    forecast therefore costs only the last problems, and too high a forecast costs nothing.
    """
    jobs = [*_with_groups_first(jobs, pool, policy, device)]
    measuring, waiting, group = _Measuring(jobs, pool, policy, device, limit), list[Job](), list[Job]()
    for index, job in enumerate(jobs):
        if job.skip and not job.resumable:
            yield job, skipped_record(job)
            continue
        if group and not pool.may_join(group, job, policy, device):
            yield from measuring.measure(group)
            group = []
        if job.resumable or not measuring.fits(index, group):
            waiting.append(job)
        else:
            group.append(job)
    if group:
        yield from measuring.measure(group)
    yield from measuring.late(waiting)


def _with_groups_first(jobs: Sequence[Job], pool: WorkerPool, policy: Policy, device: Device) -> Iterator[Job]:
    """Yield the jobs; in each case and round, the jobs that may be in a group come first."""
    for _, of_case in itertools.groupby(jobs, key=lambda job: (job.case, job.round)):
        yield from sorted(of_case, key=lambda job: not pool.may_join([], job, policy, device))


class _Measuring:
    """The state of `measure_jobs`: measures jobs, and decides which fit the time limit."""

    def __init__(
        self, jobs: Sequence[Job], pool: WorkerPool, policy: Policy, device: Device, limit: TimeLimit | None
    ) -> None:
        self._jobs, self._pool, self._policy, self._device, self._limit = jobs, pool, policy, device, limit
        self._round: int | None = None
        self._order = places(jobs, device.kind) if limit else {}
        self._numbers = [self._number(job) for job in jobs] if limit else []
        self._begun: set[int] = set()  # numbers (plan.places) of problems with a measured job
        self._too_large: set[int] = set()  # numbers of problems that did not fit as a whole
        self._final = next((job for job in reversed(jobs) if not job.skip), None)

    def _number(self, job: Job) -> int:
        return self._order.get(problem(job.case), 0)

    def measure(self, group: Sequence[Job]) -> Steps:
        """Measure the jobs of a group at the same time."""
        if group[0].round != self._round:
            self._begin_round(group[0].round)
        for job in group:
            yield job, None
        began, last = time.monotonic(), any(job is self._final for job in group)
        if len(group) > 1:
            records = self._pool.measure_together(group, self._policy, self._device, last=last)
        else:
            records = [self._pool.measure(group[0], self._policy, self._device, last=last)]
        seconds = (time.monotonic() - began) / len(group)
        self._begun.add(self._number(group[0]))
        for job, record in zip(group, records, strict=True):
            if self._limit:
                self._limit.add_measured(job, seconds)
            yield job, record

    def _begin_round(self, number: int) -> None:
        if self._round is not None:
            self._pool.close()
        self._round = number
        if self._policy.caches == "kept":  # with fresh caches each job has a worker of its own
            planned = [job for job in self._jobs if job.round == number and not job.skip]
            keys = dict.fromkeys((job.backend, ranks_ahead(job.case, self._device)) for job in planned)
            self._pool.open_device(keys, self._device)

    def fits(self, index: int, group: Sequence[Job]) -> bool:
        """Return whether a job fits the time limit beside its group, the rest of its problem and earlier problems."""
        if self._limit is None:
            return True
        job, number = self._jobs[index], self._numbers[index]
        if number in self._too_large:
            return False
        if self._limit.allows(job, group):  # a quick test without the others comes first
            others = zip(self._jobs[index + 1 :], self._numbers[index + 1 :], strict=True)
            if self._limit.allows(job, [*group, *(j for j, other in others if other <= number and not j.skip)]):
                return True
        if not group and number not in self._begun:
            self._too_large.add(number)
        return False

    def late(self, waiting: list[Job]) -> Steps:
        """Measure the jobs kept until the end that fit the time limit, and skip the others."""

        def turn(job: Job) -> tuple[int, bool, int]:
            return job.round, job.backend in self._pool.compilers, self._number(job)

        waiting.sort(key=lambda job: (turn(job), job.forecast.seconds))
        given_up: set[int] = set()  # numbers of problems that are not started
        turns, limit = [turn(job) for job in waiting], self._limit
        for index, job in enumerate(waiting):
            alone = not self._begun or self._number(job) in self._begun
            ends = index + 1 if alone else bisect.bisect_right(turns, turns[index])
            if limit and self._number(job) not in given_up and limit.allows(job, waiting[index + 1 : ends]):
                yield from self.measure([replace(job, skip=None, resumable=False)])
                continue
            if not alone:
                given_up.add(self._number(job))
            late = job if job.resumable or not limit else skip_over_limit(job, limit.seconds)
            yield late, skipped_record(late)
