"""Diagnose a machine: judge what was read of it, and its A/A test, by the table of checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.doctor.check_facts import facts_of_aa_test, facts_of_machine
from attnbench.analysis.doctor.checks import LEVELS, Finding, Level, judge
from attnbench.core.errors import EXIT_DONE, EXIT_UNFIT
from attnbench.core.machine import Environment
from attnbench.run.aa_test import AATest
from attnbench.run.doctor import Examination


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


def diagnose(found: Examination) -> Diagnosis:
    """Return the diagnosis of a machine that was examined."""
    findings = judge(facts_of_machine(found.environment, found.facts))
    if found.refusal:
        findings.append(Finding("A/A test", "unfit", found.refusal, "attnbench backends says what each needs"))
    if found.aa_test:
        findings += judge(facts_of_aa_test(found.aa_test))
    return Diagnosis(found.environment, found.facts, tuple(findings), found.aa_test)
