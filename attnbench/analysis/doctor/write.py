"""A diagnosis for a person, a line a check, and for other programs, with every fact and reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.doctor.aa_test import Trial, label
from attnbench.analysis.doctor.checks import Finding, signed
from attnbench.analysis.doctor.diagnose import Diagnosis
from attnbench.analysis.doctor.resolution import CONFIDENCE, POWER, ROUNDS
from attnbench.core.json import to_json
from attnbench.core.sizes import duration
from attnbench.results import case_names
from attnbench.results.metrics import percent

STYLES = {"ok": "green", "warning": "yellow", "unfit": "bold red"}
VERDICTS = {"ok": "fit to measure", "warning": "fit to measure, with warnings", "unfit": "unfit to measure"}
PROSE = 110  # characters; longer lines are hard to read


def render(console: Console, diagnosis: Diagnosis) -> None:
    """Prints a line a check, the A/A test case by case, and last the verdict with the one figure."""
    device = diagnosis.environment.device
    _print(console, Text.assemble(("attnbench doctor  ", "bold"), f"{device.name}, {device}"))
    check = max(len(f.check) for f in diagnosis.findings)
    for finding in diagnosis.findings:
        _finding(console, finding, check)
    trial = diagnosis.trial
    if trial and trial.resolutions():
        _print(console, Text())
        _trial(console, trial)
    _print(console, Text())
    _print(console, Text(f"{device.name}: {VERDICTS[diagnosis.level]}.", STYLES[diagnosis.level]))
    if trial and (worst := trial.worst()):
        one, rounds = percent(worst[1].one), percent(worst[1].rounds)
        figure = Text(f"Smallest difference that can be told apart here: {one}", "bold")
        _print(console, figure.append(f" by one reading each, {rounds} by {ROUNDS} rounds.", "not bold"))


def _finding(console: Console, finding: Finding, check: int) -> None:
    """Wrapped between words, all lines but the first below the finding."""
    indent = max(map(len, STYLES)) + check + 4
    text = Text(_printable(console, finding.found))
    if finding.todo:
        text.append("; to do: ").append(_printable(console, finding.todo), "bold")
    for i, line in enumerate(text.wrap(console, max(20, min(console.width, PROSE) - indent))):
        head = Text(finding.level.ljust(indent - check - 2), STYLES[finding.level]) if not i else Text()
        head.append(f"{finding.check if not i else '':{indent - len(head)}}", "not bold default")
        line.rstrip()
        _print(console, head + line)


def _trial(console: Console, trial: Trial) -> None:
    turns = sorted({len(c.a) for c in trial.cases}, reverse=True)
    how = f"{case_names.count(turns[0], 'turn')} of two processes in {duration(trial.seconds)}"
    _print(console, Text.assemble(("A/A test  ", "bold"), f"{trial.backend} against itself, {how}"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("case")
    for heading in ("sd of a reading", f"b from a, {CONFIDENCE:.0%} interval", "one reading tells", f"{ROUNDS} rounds"):
        table.add_column(heading, justify="right")
    for case, r in trial.resolutions():
        apart = f"{signed(r.difference)} ({signed(r.low)} to {signed(r.high)})"
        style = "yellow" if r.differs else ""
        table.add_row(label(case), percent(r.noise), Text(apart, style), percent(r.one), percent(r.rounds))
    console.print(table)


def json_text(diagnosis: Diagnosis) -> str:
    """One object: the verdict, the findings, and all that they were drawn from. Seconds, bytes, hertz; 0.01 is 1 %."""
    worst = diagnosis.trial.worst() if diagnosis.trial else None
    figure = None
    if worst:
        figure = {"one_reading": worst[1].one, "rounds": worst[1].rounds, "of_rounds": ROUNDS}
        figure |= {"confidence": CONFIDENCE, "power": POWER}
    whole = {
        "verdict": diagnosis.level,
        "exit_code": diagnosis.exit_code,
        "smallest_difference": figure,
        "findings": [vars(finding) for finding in diagnosis.findings],
        "environment": diagnosis.environment,
        "facts": diagnosis.facts,
        "trial": _trial_json(diagnosis.trial) if diagnosis.trial else None,
    }
    return json.dumps(to_json(whole), indent=2, allow_nan=False)


def _trial_json(trial: Trial) -> Mapping[str, Any]:
    resolutions = {case.key: r for case, r in trial.resolutions()}
    cases = []
    for c in trial.cases:
        r = resolutions.get(c.case.key)
        own = {"case": c.case, "a": c.a, "b": c.b, "differences": c.differences}
        cases.append({**own, "resolution": None if r is None else {**vars(r), "differs": r.differs}})
    meanwhile = {name: getattr(trial, name) for name in ("limits", "others", "ecc_errors", "host_bound")}
    return {"backend": trial.backend, "seconds": trial.seconds, "cases": cases, "failed": trial.failed, **meanwhile}


def _printable(console: Console, text: str) -> str:
    """Without what the console's encoding lacks: a finding may quote anything."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)
