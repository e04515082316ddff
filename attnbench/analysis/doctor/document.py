"""A diagnosis and its document: the findings, the A/A test, the verdict, and all facts as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnbench.analysis.doctor.checks import (
    LEVELS,
    Finding,
    Level,
    difference_in_words,
    findings_of_aa_test,
    findings_of_machine,
    interval_in_words,
    unfit,
)
from attnbench.analysis.doctor.resolution import CONFIDENCE, POWER, ROUNDS, resolutions, worst
from attnbench.core.errors import EXIT_DONE, EXIT_UNFIT
from attnbench.core.formats import percent
from attnbench.core.json import to_json
from attnbench.core.machine import Environment
from attnbench.core.sizes import format_duration
from attnbench.core.text import count
from attnbench.render.document import Column, Document, Line, Machine, Span, Table, Verdict
from attnbench.run.aa_test import AATest, case_label
from attnbench.run.doctor import Examination

Mark = Literal["good", "warning", "bad"]  # of a Span, and of a Verdict
MARKS: Mapping[Level, Mark] = {"ok": "good", "warning": "warning", "unfit": "bad"}
VERDICTS: Mapping[Level, str] = {
    "ok": "fit to measure",
    "warning": "fit to measure, with warnings",
    "unfit": "unfit to measure",
}


@dataclass(frozen=True)
class Diagnosis:
    """The findings of the doctor. `facts` is the argument `read` of checks.findings_of_machine."""

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
    findings = [*findings_of_machine(found.environment, found.facts)]
    if found.refusal:
        findings.append(unfit("A/A test", found.refusal, "attnbench backends says what each backend needs"))
    if found.aa_test:
        findings += findings_of_aa_test(found.aa_test)
    return Diagnosis(found.environment, found.facts, tuple(findings), found.aa_test)


def document(diagnosis: Diagnosis) -> Document:
    """Return the document of a diagnosis."""
    device, test = diagnosis.environment.device, diagnosis.aa_test
    found = worst(test) if test else None
    notes: tuple[Line, ...] = ()
    if found:
        one, rounds = (difference_in_words(each) for each in (found[1].by_one_reading, found[1].by_rounds))
        smallest = Span(f"Smallest difference that can be told apart here: {one}", "strong")
        notes = ((smallest, Span(f" by one reading each, {rounds} by {ROUNDS} rounds.")),)
    return Document(
        command="doctor",
        title=device.name,
        machines=(Machine(device.name, str(device)),),
        blocks=(_findings(diagnosis), *([_aa_table(test)] if test and found else [])),
        notes=notes,
        verdict=Verdict(f"{device.name}: {VERDICTS[diagnosis.level]}.", MARKS[diagnosis.level]),
        data=_data(diagnosis),
        exit_code=diagnosis.exit_code,
        rows=[vars(finding) for finding in diagnosis.findings],
    )


def _findings(diagnosis: Diagnosis) -> Table:
    headings = [Column(heading, wrap=False) for heading in ("level", "check")]
    rows = tuple(
        (Span(finding.level, MARKS[finding.level]), finding.check, finding.found, Span(finding.todo, "strong"))
        for finding in diagnosis.findings
    )
    return Table("findings", (*headings, Column("found"), Column("what to do")), rows)


def _aa_table(test: AATest) -> Table:
    turns = count(max(len(readings.a) for readings in test.cases), "turn")
    headings = ("sd of a reading", f"b from a, {CONFIDENCE:.0%} interval", "one reading tells", f"{ROUNDS} rounds tell")
    rows = []
    for case, r in resolutions(test):
        difference = Span(interval_in_words(r), "warning" if r.differs else "")
        one, rounds = difference_in_words(r.by_one_reading), difference_in_words(r.by_rounds)
        rows.append((case_label(case), percent(r.noise), difference, one, rounds))
    return Table(
        "aa-test",
        (Column("case"), *(Column(heading, "right") for heading in headings)),
        tuple(rows),
        title="A/A test",
        note=f"{test.backend} against itself, {turns} of two processes in {format_duration(test.seconds)}",
    )


def _data(diagnosis: Diagnosis) -> Any:
    """Return the verdict, the findings, and the facts on which they rest. Seconds, bytes, hertz; 0.01 is 1 %."""
    found = worst(diagnosis.aa_test) if diagnosis.aa_test else None
    smallest = None
    if found:
        smallest = {"one_reading": found[1].by_one_reading, "rounds": found[1].by_rounds, "of_rounds": ROUNDS}
        smallest |= {"confidence": CONFIDENCE, "power": POWER}
    whole = {
        "verdict": diagnosis.level,
        "exit_code": diagnosis.exit_code,
        "smallest_difference": smallest,
        "findings": [vars(finding) for finding in diagnosis.findings],
        "environment": diagnosis.environment,
        "facts": diagnosis.facts,
        "trial": _aa_data(diagnosis.aa_test) if diagnosis.aa_test else None,
    }
    return to_json(whole)


def _aa_data(test: AATest) -> Mapping[str, Any]:
    by_case = {
        case: {
            **{name: getattr(r, name) for name in ("noise", "difference", "low", "high", "differs")},
            "one": r.by_one_reading,
            "rounds": r.by_rounds,
        }
        for case, r in resolutions(test)
    }
    cases = [
        {**vars(readings), "differences": readings.differences, "resolution": by_case.get(readings.case)}
        for readings in test.cases
    ]
    return {**vars(test), "cases": cases}
