"""The jobs of a run in groups, and within a time limit, with right or wrong forecasts."""

from __future__ import annotations

import sys
from collections import Counter, deque
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
    """A pool with its own clock, on which a job takes `factor` times its forecast.

    With `joins` the jobs of a case run together, except jobs of the backend `heavy`.
    """

    def __init__(self, factor: float = 1.0, joins: bool = False, heavy: str = "", compilers: str = "") -> None:
        self.factor, self.joins, self.heavy, self.compilers = factor, joins, heavy, compilers
        self.now, self.groups, self.last = 0.0, list[str](), list[bool]()

    def may_join(self, group: Sequence[Job], job: Job, *_: Any) -> bool:
        alike = all(of.case == job.case and of.round == job.round for of in group)
        return self.joins and job.backend != self.heavy and alike

    def open_device(self, *_: Any) -> None: ...

    def close(self) -> None: ...

    def measure(self, job: Job, *_: Any, last: bool) -> Record:
        return self.measure_together([job], last=last)[0]

    def measure_together(self, jobs: Sequence[Job], *_: Any, last: bool) -> list[Record]:
        self.groups.append("".join(job.backend for job in jobs))
        self.last.append(last)
        self.now += self.factor * sum(job.forecast.seconds for job in jobs)
        return [Record(job.case, job.backend, job.round, "ok") for job in jobs]


def job(seqlen: int, backend: str, seconds: float, **more: Any) -> Job:
    return Job(case(seqlen), backend, 0, Forecast(seconds, 0.001, 1), **more)


def plan(rounds: int = 1) -> list[Job]:
    return [replace(job(n, name, 10.0), round=at) for at in range(rounds) for n in (8, 16) for name in "abc"]


def steps(pool: Any, jobs: Sequence[Job], limit: float | None = None, device: Device = GPU) -> list[Any]:
    """Return the events of the jobs: (job, None) for each start, (job, record) for each end."""
    with mock.patch.object(job_order, "time", SimpleNamespace(monotonic=lambda: pool.now)):
        within = None if limit is None else TimeLimit(limit, clock=lambda: pool.now)
        return [*job_order.measure_jobs(jobs, pool, Policy(), device, within)]


def measured(pool: Pool, jobs: Sequence[Job], limit: float | None = None, device: Device = GPU) -> list[Record]:
    """Return the records, and assert that each job has one and that measured jobs took no more than the limit."""
    ended = [record for _, record in steps(pool, jobs, limit, device) if record]
    assert sorted(record.id for record in ended) == sorted(job.id for job in jobs)
    assert limit is None or pool.now <= limit
    return ended


def test_jobs_of_a_case_go_together_and_all_are_told() -> None:
    pool = Pool(joins=True)
    told = [(job.backend, record.status if record else "") for job, record in steps(pool, plan(rounds=2))]
    assert pool.groups == ["abc"] * 4
    assert pool.last == [False, False, False, True]
    assert told == [*[(name, "") for name in "abc"], *[(name, "ok") for name in "abc"]] * 4


def test_a_job_that_is_skipped_does_not_part_a_group() -> None:
    pool, jobs = Pool(joins=True), plan()
    jobs[1], jobs[-1] = (replace(of, skip="not supported") for of in (jobs[1], jobs[-1]))
    ended = measured(pool, jobs)
    assert pool.groups == ["ac", "ab"]
    assert pool.last == [False, True]
    assert [r.backend for r in ended if r.status == "skipped"] == ["b", "c"]


def test_a_job_that_may_not_join_does_not_part_a_group() -> None:
    pool = Pool(joins=True, heavy="b")
    ended = measured(pool, plan())
    assert pool.groups == ["ac", "b"] * 2
    assert pool.last == [False, False, False, True]
    assert [r.backend for r in ended] == [*"acb"] * 2


@pytest.mark.parametrize(("seconds", "groups"), [(100.0, ["abc", "abc"]), (45.0, ["abc"]), (70.0, ["abc", "abc"])])
def test_a_group_is_within_a_time_limit(seconds: float, groups: list[str]) -> None:
    """A group is within a time limit, which counts all jobs of a group before it begins."""
    pool = Pool(joins=True)
    measured(pool, plan(), seconds)
    assert pool.groups == groups


@pytest.mark.parametrize("seconds", [0.0, 5.0, 1e9])
def test_a_time_limit_takes_no_square_of_the_jobs(seconds: float) -> None:
    """The work of a time limit is linear: four times the jobs take four times the calls, whether or not they fit."""

    def calls(number: int) -> int:
        pool: Any = Pool(factor=0.0)
        jobs = [job(64 + n, "a", 0.1) for n in range(number)]
        counted: Counter[str] = Counter()
        sys.setprofile(lambda _, event, __: counted.update([event]))
        try:
            deque(job_order.measure_jobs(jobs, pool, Policy(), GPU, TimeLimit(seconds)), maxlen=0)
        finally:
            sys.setprofile(None)
        return counted["call"]

    assert calls(200) < 6 * calls(50)


def on_three_lengths() -> list[Job]:
    """Return the jobs of three lengths and both passes, with forecasts of 10, 20 and 40 s, in the order of a plan."""
    return [
        replace(job(n, name, 10.0 * n / 8), case=case(n, direction=way))
        for n in (8, 16, 32)
        for way in ("fwd", "bwd")
        for name in "ab"
    ]


def lengths_measured(ended: Sequence[Record]) -> Counter[int]:
    return Counter(r.case.shape.seqlen_k for r in ended if r.status == "ok")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(("factor", "lengths"), [(1.0, {8, 16, 32}), (2.0, {8, 16}), (5.0, {8})])
def test_what_a_time_limit_leaves_is_whole_where_the_forecast_was_too_low(
    factor: float, lengths: set[int], kind: Any
) -> None:
    """Within a time limit a length has all backends and both passes or none, the shortest first, at any speed."""
    ended = measured(Pool(factor), on_three_lengths(), 280.0, replace(GPU, kind=kind))
    assert lengths_measured(ended) == dict.fromkeys(lengths, 4)
    assert all(r.resumable and "--time-limit" in str(r.reason) for r in ended if r.status == "skipped")


def test_time_that_is_left_begins_no_case_that_does_not_fit_as_a_whole() -> None:
    """No case begins that does not fit as a whole: 180 s are left, enough for two of the third length's four jobs."""
    assert lengths_measured(measured(Pool(2.0), on_three_lengths(), 420.0)) == {8: 4, 16: 4}


def test_where_no_case_fits_as_a_whole_its_cheapest_jobs_are_measured() -> None:
    ended = measured(Pool(), [job(8, "a", 90.0), job(8, "b", 20.0)], 100.0)
    assert {r.backend: r.status for r in ended} == {"b": "ok", "a": "skipped"}


def test_a_job_that_did_not_fit_by_forecasts_that_were_too_high_is_measured_at_the_end() -> None:
    ended = measured(Pool(factor=0.0), [job(8, "a", 60.0), job(9, "a", 50.0)], 100.0)
    assert [(r.case.shape.seqlen_k, r.status, r.resumable) for r in ended] == [(9, "ok", False), (8, "ok", False)]


def test_of_jobs_that_waited_those_that_may_compile_for_minutes_come_last() -> None:
    """Jobs that may compile for minutes come last, because their forecasts exclude compilation."""
    jobs = [job(8, "c", 60.0), job(8, "a", 70.0), job(9, "a", 60.0)]
    ended = measured(Pool(factor=0.0, compilers="c"), jobs, 100.0)
    assert [(r.backend, r.case.shape.seqlen_k) for r in ended] == [("a", 9), ("a", 8), ("c", 8)]
