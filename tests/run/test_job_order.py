"""The jobs of a run in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.run import job_order
from attnbench.run.job_order import TimeLimit
from builders import case

GPU = Device("cuda", 0, "GPU", 2**34, 2**34)


class Pool:
    """A pool of which jobs of one case go together; each job takes its forecast on a clock."""

    compilers: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.now, self.groups, self.last = 0.0, list[str](), list[bool]()

    def may_join(self, group: Sequence[Job], job: Job, *_: Any) -> bool:
        return all(of.case == job.case and of.round == job.round for of in group)

    def open_device(self, *_: Any) -> None: ...

    def close(self) -> None: ...

    def measure(self, job: Job, *_: Any, last: bool) -> Record:
        return self.measure_together([job], last=last)[0]

    def measure_together(self, jobs: Sequence[Job], *_: Any, last: bool) -> list[Record]:
        self.groups.append("".join(job.backend for job in jobs))
        self.last.append(last)
        self.now += sum(job.forecast.seconds for job in jobs)
        return [Record(job.case, job.backend, job.round, "ok") for job in jobs]


def plan(rounds: int = 1) -> list[Job]:
    return [Job(case(n), name, at, Forecast(10.0, 0.001, 1)) for at in range(rounds) for n in (8, 16) for name in "abc"]


def measured(pool: Any, jobs: Sequence[Job], limit: float | None = None) -> list[tuple[str, str]]:
    """Return what is told of the jobs: their backend, and "" where one begins, else how it ended."""
    with mock.patch.object(job_order, "time", SimpleNamespace(monotonic=lambda: pool.now)):
        within = TimeLimit(limit, clock=lambda: pool.now) if limit else None
        steps = job_order.measure_jobs(jobs, pool, Policy(), GPU, within)
        return [(job.backend, record.status if record else "") for job, record in steps]


def test_jobs_of_a_case_go_together_and_all_are_told() -> None:
    pool = Pool()
    told = measured(pool, plan(rounds=2))
    assert pool.groups == ["abc"] * 4
    assert pool.last == [False, False, False, True]
    assert told == [*[(name, "") for name in "abc"], *[(name, "ok") for name in "abc"]] * 4


def test_a_job_that_is_skipped_does_not_part_a_group() -> None:
    pool, jobs = Pool(), plan()
    jobs[1] = replace(jobs[1], skip="not supported")
    told = measured(pool, jobs)
    assert pool.groups == ["ac", "abc"]
    assert told.count(("b", "skipped")) == 1
    assert len([1 for _, status in told if status]) == len(jobs)


def test_a_job_that_may_not_join_does_not_part_a_group() -> None:
    class OneIsHeavy(Pool):
        def may_join(self, group: Sequence[Job], job: Job, *_: Any) -> bool:
            return job.backend != "b" and super().may_join(group, job)

    pool = OneIsHeavy()
    told = measured(pool, plan())
    assert pool.groups == ["ac", "b"] * 2
    assert pool.last == [False, False, False, True]
    assert [name for name, status in told if status] == [*"acb"] * 2


@pytest.mark.parametrize(("seconds", "groups"), [(100.0, ["abc", "abc"]), (45.0, ["abc"]), (70.0, ["abc", "abc"])])
def test_a_group_is_within_a_time_limit(seconds: float, groups: list[str]) -> None:
    """The limit counts all jobs of a group that has not begun."""
    pool = Pool()
    told = measured(pool, plan(), seconds)
    assert pool.groups == groups
    assert pool.now <= seconds
    assert len([1 for _, status in told if status]) == 6
