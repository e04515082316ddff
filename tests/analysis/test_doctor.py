"""A whole diagnosis without a GPU, its document, and the A/A test on a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from healthy_h200 import CASES, HOST, QUIET, aa_test, facts, judged, judged_test

from attnbench.analysis.doctor.checks import Finding
from attnbench.analysis.doctor.document import Diagnosis, diagnose, document
from attnbench.analysis.doctor.resolution import resolutions, worst
from attnbench.core.errors import UserError
from attnbench.core.record import Job, Measurement, Record
from attnbench.render import json_and_csv, terminal
from attnbench.run import doctor, host_facts, session
from attnbench.run.aa_test import MAX_TURNS, AATest, case_label, run_aa_test
from builders import H200, environment


class Examined(session.WorkerPool):
    """Simulated workers of an H200; the examining one answers with `facts` or crashes."""

    facts: ClassVar[dict[str, Any] | None] = None

    def ask(self, name: str, *_: object) -> dict[str, Any]:
        assert name == doctor.EXAMINER
        if self.facts is None:
            raise UserError(f"{name}: the worker crashed (SIGSEGV)")
        return {"facts": self.facts}

    # The A/A test needs the simulated backend, which runs on the simulated device only.
    def survey(self, probes: Any, cases: Any, device: Any) -> Any:
        return super().survey(probes, cases, replace(device, kind="fake"))


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = SimpleNamespace(
        describe=lambda: environment(H200, packages={"triton": "3.5.0"}),
        peers=lambda *_: (),
        measure_rates=lambda known, _: known,
        close=lambda: None,
    )
    monkeypatch.setattr(session, "WorkerPool", Examined)
    monkeypatch.setattr(session.Session, "have_judged", lambda _: None)  # the simulated backend needs no judge
    monkeypatch.setattr(session, "DeviceProbe", lambda *_, **__: probe)
    monkeypatch.setattr(doctor, "IMPLEMENTATIONS", {"cuda": ("fake",)})
    monkeypatch.setattr(host_facts, "read_host_facts", lambda: HOST)


@pytest.mark.usefixtures("examined")
def test_a_whole_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = facts()
    monkeypatch.setattr(Examined, "facts", {name: healthy[name] for name in ("nvml", "instruments")})
    said: list[str] = []
    found = diagnose(doctor.examine("auto", said.append, quick=True))
    assert (found.level, found.exit_code) == ("ok", 0)
    assert found.aa_test is not None
    assert [case_label(c.case) for c in found.aa_test.cases] == ["1k b16", "16k b1"]
    assert said[:2] == ["looking at the device", "examining the GPU"]
    assert said[3].startswith("A/A test: turn 1, ")


@pytest.mark.usefixtures("examined")
def test_a_gpu_that_cannot_be_examined_is_unfit_and_not_tried() -> None:
    found = diagnose(doctor.examine("auto", lambda _: None))
    assert (found.level, found.exit_code, found.aa_test) == ("unfit", 3, None)
    assert ("GPU", "unfit", "the worker crashed (SIGSEGV)") in [(f.check, f.level, f.found) for f in found.findings]


def diagnosis(*more: Finding, test: AATest | None = None) -> Diagnosis:
    """Return the diagnosis of a healthy H200 with more findings."""
    test = test or aa_test(*QUIET)
    return Diagnosis(environment(H200), facts(), (*judged(facts()), *more, *judged_test(test)), test)


def test_json_holds_the_verdict_the_findings_and_every_reading() -> None:
    found = diagnosis(Finding("MIG", "warning", "on", "turn it off"))
    assert terminal.text(document(diagnosis())).splitlines()[-1] == "NVIDIA H200: fit to measure."
    read = json.loads(json_and_csv.json_text(document(found)))
    assert (read["verdict"], read["exit_code"]) == ("warning", 0)
    assert read["smallest_difference"]["one_reading"] > read["smallest_difference"]["rounds"] > 0
    assert [f["check"] for f in read["findings"]] == [f.check for f in found.findings]
    assert read["facts"]["nvml"]["clock_max"] == 1.98e9
    (case,) = read["trial"]["cases"]
    assert case["differences"] == pytest.approx(QUIET)
    assert case["resolution"]["differs"] is False
    assert case["resolution"]["one"] == read["smallest_difference"]["one_reading"]


class SimulatedPool:
    """A pool with its own clock: each job takes `seconds` and reads 1 ms, unless `script` sets its result."""

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
