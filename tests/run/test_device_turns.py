"""The turns of workers on one device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import forked_worker
from attnbench.backends import BACKENDS
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job
from attnbench.run.device_turns import DeviceTurns
from attnbench.run.judge import Judge
from attnbench.run.workers import WorkerPool
from worker_here import CPU, SHORT

GPU = Device("cuda", 0, "GPU", 2**34, 2**34, l2=2**16)
CASE = Case(Shape(1, 32, 32, 2, 2, 16, 16), "fp32", "fwd", True)
NAMES = ("eager", "sdpa-math")


class Worker(threading.Thread):
    """A worker of a group that uses a device, and records the other workers that use it meanwhile."""

    def __init__(self, number: int, turns: DeviceTurns, using: list[int], dies: bool) -> None:
        super().__init__()
        self.number, self.turns, self.using, self.dies = number, turns, using, dies
        self.seen_alone: list[list[int]] = []

    def use(self, seconds: float) -> list[int]:
        self.using.append(self.number)
        time.sleep(seconds)
        seen = list(self.using)
        self.using.remove(self.number)
        return seen

    def run(self) -> None:
        try:
            self.use(0.003 * self.number)
            for _ in range(3):
                self.turns.take("alone", self.number)
                if self.dies:
                    return
                self.seen_alone.append(self.use(0.005))
                self.turns.take("alone", self.number)  # it has the device alone already
                self.turns.take("together", self.number)
                self.turns.take("together", self.number)
                self.use(0.002)
        finally:
            self.turns.leave(self.number)


@pytest.mark.parametrize("dying", [(), (1,), (0, 2)])
def test_a_worker_that_is_alone_is_alone(dying: tuple[int, ...]) -> None:
    turns, using = DeviceTurns(4), list[int]()
    workers = [Worker(number, turns, using, number in dying) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10.0)
        assert not worker.is_alive()
        assert worker.seen_alone == ([] if worker.dies else [[worker.number]] * 3)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with forked_worker.workers():
        judge = Judge(CPU, None)
        made = WorkerPool({name: BACKENDS[name] for name in NAMES}, judge=judge)
        yield made
        made.close()
        judge.close()


def jobs(case: Case = CASE, call: float = 1e-4, nbytes: int = 2**20) -> list[Job]:
    return [Job(case, name, 0, Forecast(0.1, call, nbytes)) for name in NAMES]


def test_a_group_is_measured_and_judged_as_its_jobs_alone_are(pool: WorkerPool) -> None:
    for _ in range(2):
        began = time.monotonic()
        records = pool.measure_together(jobs(), SHORT, CPU)
        elapsed = time.monotonic() - began
        assert [(r.backend, r.status, r.judge) for r in records] == [(name, "ok", "beside") for name in NAMES]
        assert all(record.measurements["time"].values for record in records)
        assert sum(record.seconds or 0.0 for record in records) <= elapsed  # each record has its share


def test_a_worker_that_dies_costs_its_own_record(pool: WorkerPool) -> None:
    pool.measure_together(jobs(), SHORT, CPU)
    pool._workers["eager", 1].on_question = lambda *_: pool._workers["eager", 1].send_kill() or {}
    dead, alive = pool.measure_together(jobs(), SHORT, CPU)
    assert (dead.status, alive.status) == ("failed", "ok")


@pytest.mark.parametrize(
    ("second", "device", "policy"),
    [
        (jobs(Case(Shape(1, 64, 64, 2, 2, 16, 16), "fp32", "fwd", True)), GPU, Policy()),
        (jobs(call=0.1), GPU, Policy()),
        (jobs(nbytes=2**33), GPU, Policy()),
        (jobs(), CPU, Policy()),
        (jobs(), GPU, Policy(caches="fresh")),
    ],
    ids=["another case", "long calls", "much memory", "on a CPU", "fresh caches"],
)
def test_jobs_that_are_measured_one_after_the_other(second: list[Job], device: Device, policy: Policy) -> None:
    pool = WorkerPool({name: BACKENDS[name] for name in NAMES})
    first = jobs()[:1]
    assert pool.may_join(first, jobs()[1], Policy(), GPU)
    assert not pool.may_join(first, second[1], policy, device)
    assert not pool.may_join(first, first[0], Policy(), GPU)
    own = WorkerPool({"eager": BACKENDS["eager"], "sdpa-math": "./mine.py:attention"})
    assert not own.may_join(first, jobs()[1], Policy(), GPU)
