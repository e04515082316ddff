"""Diagnose a machine: read its facts, judge them by the table of checks, and run an A/A test.

A worker of its own, the examiner, reads the GPU's facts, so that the two workers of the A/A test do the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.doctor.aa_test import PAIR, AATest, aa_test_cases, run_aa_test
from attnbench.analysis.doctor.check_facts import facts_of_aa_test, facts_of_machine
from attnbench.analysis.doctor.checks import LEVELS, Finding, Level, judge
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_DONE, EXIT_UNFIT, UserError
from attnbench.core.json import to_json
from attnbench.core.machine import Device, Environment
from attnbench.run import host_facts
from attnbench.run.device_probe import probe_device
from attnbench.run.select import backend_spec, parse_device
from attnbench.run.workers import WorkerPool, closing_workers

SECONDS, QUICK_SECONDS = 120.0, 20.0  # of the A/A test
EXAMINE_TIMEOUT = 120.0  # seconds
EXAMINER = "examiner"
IMPLEMENTATIONS = {"cuda": ("sdpa-flash", "sdpa-efficient", "eager"), "cpu": ("eager",), "fake": ("fake",)}


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found. `facts` are those of check_facts.facts_of_machine, as they were read."""

    environment: Environment
    facts: Mapping[str, Any]
    findings: tuple[Finding, ...]
    aa_test: AATest | None = None

    @property
    def level(self) -> Level:
        """The worst level of all findings."""
        return max((f.level for f in self.findings), key=LEVELS.index, default="ok")

    @property
    def exit_code(self) -> int:
        return EXIT_UNFIT if self.level == "unfit" else EXIT_DONE


def diagnose(asked: str, say: Callable[[str], None], *, quick: bool = False) -> Diagnosis:
    """Diagnose the machine with the device that was asked for; `say` is told what goes on.

    Raises UserError where there is no such device.
    """
    facts: dict[str, Any] = {"asked": parse_device(asked), "host": host_facts.read_host_facts()}
    pool = WorkerPool({})
    with closing_workers(pool):
        say("looking at the device")
        environment = probe_device(asked, ("bf16", "fp32"), allow_busy=True)
        device = environment.device
        cases = aa_test_cases(device.kind)
        backend, refusal = _load_implementation(pool, device, cases)
        if device.kind == "cuda":
            say("examining the GPU")
            facts |= _examine_gpu(pool, device)
        findings = judge(facts_of_machine(environment, facts))
        if refusal:
            findings.append(Finding("A/A test", "unfit", refusal, "attnbench backends says what each needs"))
        if refusal or "broken" in facts:
            return Diagnosis(environment, facts, tuple(findings))
        say("A/A test: opening the device twice")
        pool.open_device([(name, 1) for name in PAIR], device)
        seconds = QUICK_SECONDS if quick else SECONDS
        test = run_aa_test(pool, backend, cases[: 2 if quick else None], device, seconds, say)
        return Diagnosis(environment, facts, (*findings, *judge(facts_of_aa_test(test))), test)


def _load_implementation(pool: WorkerPool, device: Device, cases: Sequence[Case]) -> tuple[str, str | None]:
    """Have all workers of the pool load the first of IMPLEMENTATIONS that takes all cases.

    Returns its name and None, or the name of the last one and why that does not take them.
    """
    names = (*PAIR, EXAMINER) if device.kind == "cuda" else PAIR
    backend, reason = "", None
    for backend in IMPLEMENTATIONS[device.kind]:
        pool.close()
        pool.specs = dict.fromkeys(names, backend_spec(backend))
        answers = pool.survey(pool.probe(), cases, device)
        reason = next((answer.reason for of_one in answers.values() for answer in of_one if answer.reason), None)
        if reason is None:
            return backend, None
    return backend, f"{backend} cannot be used: {reason}"


def _examine_gpu(pool: WorkerPool, device: Device) -> dict[str, Any]:
    """Return the facts that the examiner reads, or why it reads none, which would stop every measurement too."""
    try:
        answer = pool.ask(EXAMINER, {"op": "examine", "device": to_json(device)}, EXAMINE_TIMEOUT)
    except UserError as error:
        return {"broken": str(error).removeprefix(f"{EXAMINER}: ")}
    return dict(answer["facts"])
