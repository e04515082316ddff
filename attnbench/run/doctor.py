"""Examination of a machine for `attnbench doctor`: its facts, and an A/A test.

A separate worker, the examiner, reads the GPU's facts, so that the two workers of the A/A test do the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.backends import BACKENDS
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.json import to_json
from attnbench.core.machine import Environment
from attnbench.run import host_facts
from attnbench.run.aa_test import PAIR, AATest, aa_test_cases, run_aa_test
from attnbench.run.fences import held
from attnbench.run.select import Chosen, parse_device
from attnbench.run.session import Session

SECONDS, QUICK_SECONDS = 120.0, 20.0  # duration of the A/A test
EXAMINE_TIMEOUT = 120.0  # seconds for the examiner
EXAMINER = "examiner"
DTYPES = ("bf16", "fp32")  # the dtypes of the device's measured rates
IMPLEMENTATIONS = {"cuda": ("sdpa-flash", "sdpa-efficient", "eager"), "cpu": ("eager",), "fake": ("fake",)}


@dataclass(frozen=True)
class Examination:
    """The facts of a machine, and the A/A test, or why there is none.

    `facts` have the form for analysis/doctor/checks.findings_of_machine.
    """

    environment: Environment
    facts: Mapping[str, Any]
    refusal: str | None = None  # why no implementation can be tested
    aa_test: AATest | None = None


def examine(asked: str, say: Callable[[str], None], *, quick: bool = False) -> Examination:
    """Examine the machine with the requested device; `say` receives progress.

    Raises UserError where there is no such device.
    """
    facts: dict[str, Any] = {"asked": parse_device(asked), "host": host_facts.read_host_facts(), "fences": held()}
    with Session(asked, allow_busy=True) as session:
        say("looking at the device")
        session.describe()
        session.measure_rates(DTYPES)
        device = session.device
        cases = aa_test_cases(device.kind)
        backend, refusal = _load_implementation(session, cases)
        if device.kind == "cuda":
            say("examining the GPU")
            facts |= _examine_gpu(session)
        if refusal or "broken" in facts:
            return Examination(session.environment, facts, refusal)
        say("A/A test: opening the device twice")
        session.have_judged()
        session.pool.open_device([(name, 1) for name in PAIR], device)
        seconds = QUICK_SECONDS if quick else SECONDS
        test = run_aa_test(session.pool, backend, cases[: 2 if quick else None], device, seconds, say)
        return Examination(session.environment, facts, None, test)


def _load_implementation(session: Session, cases: Sequence[Case]) -> tuple[str, str | None]:
    """Have all workers of the session load the first of IMPLEMENTATIONS that supports all cases.

    Returns its name and None, or the last one's name and why it does not support them.
    """
    names = (*PAIR, EXAMINER) if session.device.kind == "cuda" else PAIR
    backend, reason = "", None
    for backend in IMPLEMENTATIONS[session.device.kind]:
        session.choose(Chosen(dict.fromkeys(names, BACKENDS[backend])))
        session.load()
        answers = session.survey(cases)
        reason = next((answer.reason for of_one in answers.values() for answer in of_one if answer.reason), None)
        if reason is None:
            return backend, None
    return backend, f"{backend} cannot be used: {reason}"


def _examine_gpu(session: Session) -> dict[str, Any]:
    """Return the examiner's facts of the GPU, or why there are none, which would stop every measurement too."""
    try:
        request = {"op": "examine", "device": to_json(session.device)}
        answer = session.pool.ask(EXAMINER, request, EXAMINE_TIMEOUT)
    except UserError as error:
        return {"broken": str(error).removeprefix(f"{EXAMINER}: ")}
    return dict(answer.get("facts") or {"broken": "its worker's answer has no facts"})
