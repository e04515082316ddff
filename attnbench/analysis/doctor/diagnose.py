"""`attnbench doctor`: is this machine fit to measure? Facts -> findings, then an A/A test that ends in one figure.

The facts come from a worker of its own (fitness.py), so that the two of the A/A test (trial.py) are alike. verdicts.py
says what facts and test mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.doctor.aa_test import PAIR, Trial, trial_cases, try_out
from attnbench.analysis.doctor.checks import LEVELS, Finding, Level, judge, judge_trial, unfit
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_UNFIT, UserError
from attnbench.core.json import to_json
from attnbench.core.machine import Device, Environment
from attnbench.run import host_facts
from attnbench.run.device_probe import probe_device
from attnbench.run.select import backend_spec, parse_device
from attnbench.run.workers import WorkerPool, closing_workers

EXIT_CODES: Mapping[Level, int] = {"ok": 0, "warning": 1, "unfit": EXIT_UNFIT}

SECONDS, QUICK_SECONDS = 120.0, 20.0  # of the A/A test
EXAMINE_TIMEOUT = 120.0  # seconds
EXAMINER = "examiner"
IMPLEMENTATIONS = {"cuda": ("sdpa-flash", "sdpa-efficient", "eager"), "cpu": ("eager",), "fake": ("fake",)}


@dataclass(frozen=True)
class Diagnosis:
    environment: Environment
    facts: Mapping[str, Any]
    findings: tuple[Finding, ...]
    trial: Trial | None = None

    @property
    def level(self) -> Level:
        """The worst of all findings."""
        return max((f.level for f in self.findings), key=LEVELS.index, default="ok")

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.level]


def diagnose(asked: str, say: Callable[[str], None], *, quick: bool = False) -> Diagnosis:
    """Looks at the device that was asked for and tries it; `say` hears what goes on. Raises UserError without one."""
    facts: dict[str, Any] = {"asked": parse_device(asked), "host": host_facts.read_host_facts()}
    pool = WorkerPool({})
    with closing_workers(pool):
        say("looking at the device")
        environment = probe_device(asked, ("bf16", "fp32"))
        device = environment.device
        cases = trial_cases(device.kind)
        backend, refusal = _choose(pool, device, cases)
        if device.kind == "cuda":
            say("examining the GPU")
            facts |= _examined(pool, device)
        findings = judge(environment, facts)
        if refusal:
            findings.append(unfit("A/A test", refusal, "attnbench backends says what each needs"))
        if refusal or "broken" in facts:
            return Diagnosis(environment, facts, tuple(findings))
        say("A/A test: opening the device twice")
        pool.open_device(PAIR, device)
        seconds = QUICK_SECONDS if quick else SECONDS
        trial = try_out(pool, backend, cases[: 2 if quick else None], device, seconds, say)
        return Diagnosis(environment, facts, (*findings, *judge_trial(trial)), trial)


def _choose(pool: WorkerPool, device: Device, cases: Sequence[Case]) -> tuple[str, str | None]:
    """The first implementation that takes all cases, which the pool has then loaded; or why the last one does not."""
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


def _examined(pool: WorkerPool, device: Device) -> dict[str, Any]:
    """A worker's facts, or why it has none: what breaks it would break every measurement."""
    try:
        answer = pool.ask(EXAMINER, {"op": "examine", "device": to_json(device)}, EXAMINE_TIMEOUT)
    except UserError as error:
        return {"broken": str(error).removeprefix(f"{EXAMINER}: ")}
    return dict(answer["facts"])
