"""The command that adds the rounds for which the open cells of a gate ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attnbench.analysis.gate.findings import Judgement
from attnbench.analysis.gate.notes import ROUNDS
from attnbench.analysis.gate.verdicts import Finding
from attnbench.core.errors import EXIT_INCONCLUSIVE
from attnbench.core.text import count
from attnbench.results import run_file

MOST = 20  # rounds to add; what asks for more is better measured in turns


def with_command(judgement: Judgement, current: Path) -> Judgement:
    """Return a judgement with the command that measures the rounds that would settle its open cells, and a note on it.

    `current`: the file of the current run. It is as it was where no rounds settle any, or none can be added.
    """
    run = judgement.current
    asked = [f for f in judgement.findings if judgement.exit_code_of(f) == EXIT_INCONCLUSIVE]
    rounds = [of for f in asked if (of := more_of_current(f)) and of <= MOST]
    if judgement.refused or not rounds or not run.plan or run.turns or run.search or current.suffix == ".gz":
        return judgement
    number = run.planned_rounds + max(rounds)
    command = f"{run_file.resume_command(run, current)} --rounds {number}"
    note = f"To settle {len(rounds)} of {count(len(asked), 'inconclusive result')}: {command}, and gate again."
    return replace(judgement, notes=(*judgement.notes, note), commands=(command,))


def more_of_current(finding: Finding) -> int | None:
    """Return how many more rounds of the current run would settle a finding; None where its reason is another.

    Where there are too few for any test: those that docs/gate.md states the error rates for.
    """
    decision = finding.decision
    if finding.unjudged:
        return max(ROUNDS - finding.rounds[1], 0)
    return decision.more_current if decision and not (decision.slow_rounds or decision.jumped) else None
