"""The A/A test on a clock of its own: turns, their order, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from healthy_h200 import CASES

from attnbench.analysis.doctor.resolution import resolutions, worst
from attnbench.core.record import Job, Measurement, Record
from attnbench.run.aa_test import MAX_TURNS, AATest, case_label, run_aa_test
from builders import H200


class SimulatedPool:
    """Jobs take `seconds` each of its own clock; what `script` says of one, else a reading of 1 ms."""

    def __init__(self, seconds: float, script: Callable[[Job], Record | None] = lambda _: None) -> None:
        self.seconds, self.script, self.now = seconds, script, 0.0
        self.jobs: list[Job] = []

    def measure(self, job: Job, *_: object) -> Record:
        self.now += self.seconds
        self.jobs.append(job)
        time = {"time": Measurement("s", (1e-3, 2e-3, 9e-3))}
        return self.script(job) or Record(job.case, job.backend, job.round, "ok", measurements=time)

    def aa_test(self, seconds: float) -> AATest:
        return run_aa_test(self, "fake", CASES, H200, seconds, lambda _: None, lambda: self.now)  # type: ignore[arg-type]


def test_turns_swap_their_order_and_keep_the_time() -> None:
    pool = SimulatedPool(1.0)
    found = pool.aa_test(120.0)
    assert found.seconds == 120.0
    assert [len(c.a) for c in found.cases] == [20] * 3
    assert {x for c in found.cases for x in (*c.a, *c.b)} == {2e-3}
    turns = [pool.jobs[i : i + 6] for i in range(0, len(pool.jobs), 6)]
    for i, turn in enumerate(turns):
        assert [j.case for j in turn[::2]] == [j.case for j in turn[1::2]] == CASES
        assert [j.backend for j in turn] == (["a", "b"] * 3 if i % 2 == 0 else ["b", "a"] * 3)
        assert {j.round for j in turn} == {i}


def test_a_slow_machine_goes_on_with_one_case() -> None:
    found = SimulatedPool(1.0).aa_test(20.0)
    assert [len(c.a) for c in found.cases] == [6, 2, 2]
    assert found.seconds == 20.0
    assert [case for case, _ in resolutions(found)] == CASES[:1]
    assert worst(SimulatedPool(60.0).aa_test(120.0)) is None, "so slow a machine has no figure"
    assert [len(c.a) for c in SimulatedPool(1e-3).aa_test(120.0).cases] == [MAX_TURNS] * 3


def test_the_first_job_that_is_not_ok_ends_it() -> None:
    def script(job: Job) -> Record | None:
        bad = job.round == 1 and job.case == CASES[1]
        return Record(job.case, job.backend, job.round, "failed", "x") if bad else None

    pool = SimulatedPool(1.0, script)
    found = pool.aa_test(120.0)
    assert found.failed is not None
    assert (found.failed.backend, found.failed.round, case_label(found.failed.case)) == ("b", 1, "16k b1")
    assert len(pool.jobs) == 9


def test_what_happened_meanwhile_is_kept() -> None:
    def script(job: Job) -> Record | None:
        more: dict[str, Any] = {"limits": ("power cap",), "others": (f"p{job.round % 2}",), "ecc_errors": 1}
        return Record(job.case, job.backend, job.round, "ok", measurements={"time": Measurement("s", (1.0,))}, **more)

    found = SimulatedPool(1.0, script).aa_test(24.0)
    assert (found.limits, found.others, found.ecc_errors, found.host_bound) == (("power cap",), ("p0", "p1"), 24, False)
