"""A run within a time limit: what is measured where forecasts were right or wrong, and what is left out."""

from __future__ import annotations

import sys
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.run import job_order
from attnbench.run.job_order import TimeLimit

DEVICE = Device("fake", 0, "Simulated GPU", 2**36, 2**36)
POLICY = Policy(timeout_s=60.0)
QUICK = Forecast(0.01, 0.001, 1)


def case(seqlen: int) -> Case:
    return Case(Shape(1, seqlen, seqlen, 1, 1, 64, 64), "bf16", "fwd")


def job(seqlen: int, backend: str = "fake", forecast: Forecast = QUICK, skip: str | None = None) -> Job:
    return Job(case(seqlen), backend, 0, forecast, skip)


class SlowPool:
    """A pool whose jobs take `factor` times their forecast, on a clock of its own; it notes the last job."""

    compilers: frozenset[str] = frozenset()

    def __init__(self, factor: float) -> None:
        self.now, self.factor, self.last = 0.0, factor, list[Job]()

    def measured(self, jobs: list[Job], seconds: float, kind: Any = "fake") -> list[Record]:
        """Return the records of jobs within a time limit on its clock."""
        device = Device(kind, 0, "a device", 2**30, 2**30)
        with mock.patch.object(job_order, "time", SimpleNamespace(monotonic=lambda: self.now)):
            limit = TimeLimit(seconds, clock=lambda: self.now)
            return [r for _, r in job_order.measure_jobs(jobs, self, POLICY, device, limit) if r]  # type: ignore[arg-type]

    def open_device(self, *_: Any) -> None: ...

    def may_join(self, *_: Any) -> bool:
        return False

    def measure(self, job: Job, *_: Any, last: bool) -> Record:
        self.now += self.factor * job.forecast.seconds
        self.last += [job] if last else []
        return Record(job.case, job.backend, job.round, "ok")


def on_three_lengths(backends: str = "ab") -> list[Job]:
    """Return the jobs of three lengths, both passes, 10 s, 20 s and 40 s each by forecast, in the order of a plan."""
    return [
        Job(Case(case(n).shape, "bf16", way), name, 0, Forecast(10.0 * n / 8, 0.1, 1))  # type: ignore[arg-type]
        for n in (8, 16, 32)
        for way in ("fwd", "bwd")
        for name in backends
    ]


@pytest.mark.parametrize("seconds", [0.0, 5.0, 1e9])
def test_a_time_limit_takes_no_square_of_the_jobs(seconds: float) -> None:
    """Four times as many jobs, of which none, some or all fit, take four times as many calls of functions."""

    def measure(wanted: Job, *_: Any, **__: Any) -> Record:
        return Record(wanted.case, wanted.backend, wanted.round, "ok")

    def calls(number: int) -> int:
        pool: Any = SimpleNamespace(
            compilers=(), measure=measure, open_device=lambda *_: None, may_join=lambda *_: False
        )
        jobs = [job(64 + n, forecast=Forecast(0.1, 0.001, 1)) for n in range(number)]
        counted: Counter[str] = Counter()
        sys.setprofile(lambda _, event, __: counted.update([event]))
        try:
            deque(job_order.measure_jobs(jobs, pool, POLICY, DEVICE, TimeLimit(seconds)), maxlen=0)
        finally:
            sys.setprofile(None)
        return counted["call"]

    assert calls(200) < 6 * calls(50)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(("factor", "lengths"), [(1.0, {8, 16, 32}), (2.0, {8, 16}), (5.0, {8})])
def test_what_a_time_limit_leaves_is_whole_where_the_forecast_was_too_low(
    factor: float, lengths: set[int], kind: Any
) -> None:
    """A length has all backends and both passes, or none; on all machines the shortest are there."""
    pool, jobs = SlowPool(factor), on_three_lengths()
    ended = pool.measured(jobs, 280.0, kind)
    counts = Counter(r.case.shape.seqlen_k for r in ended if r.status == "ok")
    assert counts == dict.fromkeys(lengths, 4)
    assert all(r.resumable for r in ended if r.status == "skipped")
    assert pool.now <= 280.0
    assert len(ended) == len(jobs)


def test_time_that_is_left_begins_no_case_that_does_not_fit_as_a_whole() -> None:
    """After two lengths 180 s are left, in which two of the four jobs of the third would fit."""
    pool = SlowPool(2.0)
    ended = pool.measured(on_three_lengths(), 420.0)
    assert Counter(r.case.shape.seqlen_k for r in ended if r.status == "ok") == {8: 4, 16: 4}


def test_where_no_case_fits_as_a_whole_its_cheapest_jobs_are_measured() -> None:
    pool, jobs = SlowPool(1.0), [job(8, n, forecast=Forecast(s, 0.1, 1)) for n, s in (("a", 90.0), ("b", 20.0))]
    ended = pool.measured(jobs, 100.0)
    assert {r.backend: r.status for r in ended} == {"b": "ok", "a": "skipped"}


def test_the_last_job_looks_at_what_others_do() -> None:
    pool, jobs = SlowPool(1.0), [*on_three_lengths("a"), job(9, skip="too large")]
    pool.measured(jobs, 1000.0)
    assert pool.last == [jobs[-2]]
