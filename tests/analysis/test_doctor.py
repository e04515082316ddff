"""A whole diagnosis without a GPU, and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from healthy_h200 import HOST, QUIET, aa_test, facts, judged, judged_test

from attnbench.analysis.doctor.checks import Finding
from attnbench.analysis.doctor.document import Diagnosis, diagnose, document
from attnbench.core.errors import UserError
from attnbench.render import json_and_csv, terminal
from attnbench.run import doctor, host_facts, session
from attnbench.run.aa_test import AATest, case_label
from builders import H200, environment


class Examined(session.WorkerPool):
    """The workers of an H200, simulated; the examiner answers with `facts`, or crashes."""

    facts: ClassVar[dict[str, Any] | None] = None

    def ask(self, name: str, *_: object) -> dict[str, Any]:
        assert name == doctor.EXAMINER
        if self.facts is None:
            raise UserError(f"{name}: the worker crashed (SIGSEGV)")
        return {"facts": self.facts}

    # the A/A test is of the simulated backend, which the simulated device alone runs
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
    monkeypatch.setattr(session.Session, "have_judged", lambda _: None)  # a simulated backend asks no judge
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
