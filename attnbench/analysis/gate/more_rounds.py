"""The commands that decide the open cells of a gate: more rounds of the current run, or turns with the baseline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attnbench.analysis.gate import run_differences
from attnbench.analysis.gate.findings import Judgement
from attnbench.analysis.gate.margins import ROUNDS
from attnbench.analysis.gate.verdicts import Finding
from attnbench.core.errors import EXIT_INCONCLUSIVE
from attnbench.core.text import count
from attnbench.results import run_file

MOST = 20  # rounds to add; cells that need more are better measured in turns


def with_command(judgement: Judgement, current: Path, gate: Sequence[str] = ()) -> Judgement:
    """Return a judgement with notes on the commands that would settle its open cells.

    `current`: the file of the current run. `gate`: the words of the command of this gate; () where the gate has
    measured in turns already. The command that adds rounds also stands in `commands` of the judgement, for programs. A
    command with BUILD in it stands in the notes alone, as a person must complete it.
    """
    run = judgement.current
    if judgement.refused or run.turns:
        return judgement
    asked = [f for f in judgement.findings if judgement.exit_code_of(f) == EXIT_INCONCLUSIVE]
    can_add = run.plan and current.suffix != ".gz"
    rounds = [of if can_add and (of := more_of_current(f)) and of <= MOST else 0 for f in asked]
    left = [f for f, more in zip(asked, rounds, strict=True) if not more]
    every = count(len(asked), "inconclusive result")
    notes, commands = list[str](), list[str]()
    if any(rounds):
        commands = [f"{run_file.resume_command(run, current)} --rounds {run.planned_rounds + max(rounds)}"]
        notes = [f"To settle {len(asked) - len(left)} of {every}: {commands[0]}, and gate again."]
    if gate and (build := _in_turns(judgement, left)) is not None:
        command = shlex.join([*gate, "--settle", "5m", *build])
        told = " (BUILD: a Python that has the baseline's build, or its FILE.py:function)" if "BUILD" in build else ""
        notes.append(f"To settle {len(left)} of {every} in turns with the baseline: {command}{told}.")
    return replace(judgement, notes=(*judgement.notes, *notes), commands=tuple(commands))


def _in_turns(judgement: Judgement, left: Sequence[Finding]) -> Sequence[str] | None:
    """Return the options that `--settle` needs for open findings; None where it would measure nothing.

    The baseline's build must be given where its run names no build, or the build of the current run.
    """
    before, now = judgement.baseline, judgement.current
    alike = run_differences.controls(before, now)
    tested = [f.backend for f in left if f.backend not in alike and f.case.ranks == 1]
    if not tested or judgement.exit_code != EXIT_INCONCLUSIVE:
        return None
    known = [
        before.specs.get(name)
        and (before.specs[name], before.interpreters.get(name)) != (now.specs.get(name), now.interpreters.get(name))
        for name in tested
    ]
    return [*run_file.trust(before, now), *(() if all(known) else ("--a", "BUILD"))]


def more_of_current(finding: Finding) -> int | None:
    """Return the number of further rounds of the current run that would settle a finding; None where no number would.

    Where no test was possible, it is the number that is missing from ROUNDS.
    """
    decision = finding.decision
    if finding.unjudged:
        return max(ROUNDS - finding.rounds[1], 0)
    return decision.more_current if decision and not (decision.slow_rounds or decision.jumped) else None
