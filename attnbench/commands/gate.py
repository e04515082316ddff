"""`attnbench gate`: parse, judge, write. Heavy imports stay inside functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import (
    CUT_OFF,
    command_line,
    live,
    read_runs,
    read_with_damage,
    tell,
    undecided,
    words,
)
from attnbench.core.errors import EXIT_CANNOT_WRITE, EXIT_INCONCLUSIVE, EXIT_PASS, UserError, one_of

if TYPE_CHECKING:
    from attnbench.analysis.ab.settle import Request as Settle
    from attnbench.analysis.gate.findings import Judgement, Request

FORMATS = ("table", "md", "html", "json", "junit", "github")

what = options.Panel("What to compare")
matters = options.Panel("What counts as a change")
when_open = options.Panel("What stays open")


@dataclass(frozen=True, kw_only=True)
class HowToJudge:
    """The options of `attnbench gate` and `attnbench ab` that say what to compare, and what counts as a change."""

    metric: list[str] | None = options.metrics(
        what,
        options.gate_metrics,
        "latency,memory_peak,relative_error,first_call by default; cycles (latency times clock) is free of the clock; "
        "-m help lists them all.",
    )
    expect: list[str] | None = what(
        "NAMES", "Intended differences: torch, driver, gpu, a backend or library (fa2, triton)."
    )
    margin: list[str] | None = matters(
        "[METRIC=]MARGIN", "The change that matters: 3% (of latency, the default), relative_error=20%."
    )
    margins: Path | None = matters("FILE", "YAML: margins per metric, and per cell.")
    inconclusive: str = matters(
        "pass|fail", "Whether inconclusive cells make the gate end with exit code 3 (fail).", "fail"
    )
    missing: str = matters(
        "pass|fail", "Whether a cell that the current run lacks counts as a regression (fail).", "fail"
    )
    allow_wrong: bool = matters.flag(
        "Accept a wrong result, unless it was right in the baseline. Without this option a wrong result gives exit "
        "code 5."
    )

    def judged_by(self) -> Request:
        """Return the request of these options to a gate. Raises UserError for unknown names and wrong margins."""
        from attnbench.analysis.gate.findings import CHOICES, Request
        from attnbench.analysis.gate.margins import DEFAULT, margins

        return Request(
            tuple(self.metric or DEFAULT),
            margins(self.margin or (), self.margins),
            tuple(words(self.expect)),
            one_of("--inconclusive", self.inconclusive, CHOICES),
            one_of("--missing", self.missing, CHOICES),
            self.allow_wrong,
        )

    def again(self) -> list[str]:
        """Return the options that were given, as words of a command line."""
        given = options.changed(self, [field.name for field in fields(HowToJudge)])
        each = (
            (option, one) for option, value in given.items() for one in (value if isinstance(value, list) else [value])
        )
        return [option if one is True else f"{option}={one}" for option, one in each]


@dataclass(frozen=True, kw_only=True)
class GateOutput(output.Output):
    """The options of a judgement's output, also as JUnit XML and GitHub's annotations."""

    format: list[str] | None = output.formats(
        "table (default), md, html, json, junit, github (annotations and step summary; added by itself where GitHub "
        "runs it). Several may be given, each to a file: -f junit=gate.xml."
    )
    every: bool = options.files.flag("List unchanged cells too.", "--all")

    def wanted(self, known: Sequence[str] = FORMATS) -> list[tuple[str, Path | None]]:
        """Return the outputs to write, as Output.wanted does; GitHub's annotations may be printed beside a table.

        In a GitHub workflow they are added where a table is printed.
        """
        formats = self.format or []
        others = [text for text in formats if text != "github"]
        wanted = output.Output(format=others, html=self.html, json=self.json).wanted(known)
        if "github" in formats:
            if ("table", None) in wanted and "table" not in formats:  # the table is only there by default
                wanted.remove(("table", None))
            wanted.append(("github", None))
        elif ("table", None) in wanted and "github" not in dict(wanted) and os.environ.get("GITHUB_ACTIONS") == "true":
            wanted.append(("github", None))
        return wanted


@dataclass(frozen=True, kw_only=True)
class Options(GateOutput, HowToJudge):
    """The options of `attnbench gate`: how to judge, what to write, and how to settle open cells."""

    baseline: list[Path] = options.argument(
        "BASELINE...",
        "What to compare with: run files, a baseline's name, or a folder of baselines. Three runs show the spread "
        "between runs.",
    )
    current: Path = options.argument("CURRENT", "The run file to judge.")
    settle: str | None = when_open(
        "TIME",
        "Measure inconclusive cells in turns with the baseline's build, as attnbench ab does, for this time at most, "
        "as in 5m.",
    )
    a: str | None = when_open(
        "BUILD",
        "With --settle: the baseline's build, a Python that has it or FILE.py:function. Default: what the baseline "
        "names.",
    )
    b: str | None = when_open("BUILD", "With --settle: the build of CURRENT. Default: what CURRENT names.")
    trust: bool = when_open.flag(
        "With --settle: also run code and interpreters that only the run files name. Give it only for files whose "
        "author you trust."
    )

    def settles(self) -> Settle | None:
        """Return the request to settle cells, None without --settle. Raises UserError for a wrong time or build."""
        if self.settle is None:
            if idle := [*options.changed(self, ("a", "b", "trust"))]:
                raise UserError(f"{idle[0]} is an option of --settle; add --settle TIME, as in 5m")
            return None
        from attnbench.analysis.ab.settle import Request
        from attnbench.core.sizes import parse_duration

        asked = Request(parse_duration(self.settle, "--settle"), self.a, self.b, self.trust, command_line())
        asked.check()
        return asked


@options.command
def gate(given: Options) -> None:
    """Judge a run against a baseline, cell by cell: improved, unchanged, regressed, or too noisy to tell.

    Measure both with --rounds 5. Exit code 0: pass; 1: regression; 2: bad input; 3: inconclusive; 4: not comparable;
    5: a wrong result in CURRENT, unless --allow-wrong is given. The method, and the file of --margins: docs/gate.md.

    attnbench gate baseline.jsonl results/now.jsonl
    attnbench gate baselines results/now.jsonl
    attnbench gate old.jsonl new.jsonl --expect torch --margin 5% -f md=comment.md -f junit=gate.xml
    attnbench gate main now.jsonl --settle 5m --a /venvs/main/bin/python
    """
    from attnbench.analysis.baseline.baseline_files import pick
    from attnbench.analysis.gate.findings import judge
    from attnbench.analysis.gate.more_rounds import with_command
    from attnbench.core.text import some
    from attnbench.results.given_again import went_on_apart, without_copies

    request, settles = given.judged_by(), given.settles()
    wanted, current = given.wanted(), given.current
    now, damage = read_with_damage(current, cut=True)
    chosen = [path for name in given.baseline for path in pick(name, now)]
    if chosen != given.baseline:
        tell(f"attnbench: baseline: {some(map(str, chosen))}")
    runs, of_baseline = read_runs(chosen)
    if of_baseline:
        path, what = next(iter(of_baseline.items()))
        raise UserError(f"{path}: {what}, and the baseline lacks what is lost; restore the file, or measure again")
    judgement = judge(runs[0][1], now, request, [run for _, run in runs[1:]])
    gone = judgement.only_missing() if damage != CUT_OFF else []  # a run that is cut off fails anyway
    if damage and request.missing == "fail" and (gone or judgement.exit_code in (EXIT_PASS, EXIT_INCONCLUSIVE)):
        raise undecided(current, damage, some(gone) or "a wrong result")
    if any(len(without_copies([pair, (current, now)])) == 1 for pair in runs):
        tell(f"attnbench: {current} is judged against itself, or a copy or a part of it, which shows no change")
    else:
        for line in (line for pair in runs for line in went_on_apart([pair, (current, now)])):
            tell(f"attnbench: {line}")
    interrupt = 0
    if settles:
        from attnbench.analysis.ab.settle import settle
        from attnbench.render.progress.ab_progress import AbProgress

        path = next(path for path, run in runs if run is judgement.baseline)
        with live(AbProgress, "anything was settled") as watcher:
            judgement, interrupt = settle(judgement, (path, current), settles, watcher)
    again = () if settles else ("attnbench", "gate", *map(str, (*given.baseline, current)), *given.again())
    shown = with_command(judgement, current, again)
    code = write(shown, wanted, given.every, damage={current: damage} if damage else {})
    raise typer.Exit(interrupt or code)


def write(
    judgement: Judgement,
    wanted: output.Wanted,
    every: bool,
    command: str = "gate",
    damage: Mapping[Path, str] | None = None,
) -> int:
    """Write a judgement, with the damage of its files, in the formats `wanted`, and return the exit code."""
    from attnbench.analysis.gate import github, junit
    from attnbench.analysis.gate.document import document_of

    document = output.with_damage(document_of(judgement, every, command), damage or {})
    writers = {"junit": partial(junit.render, judgement), "github": partial(github.workflow_commands, judgement)}
    code = output.write(document, wanted, writers)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and "github" in dict(wanted):
        from attnbench.render import markdown

        try:
            short = output.with_damage(document_of(judgement, command=command), damage or {})
            github.append_summary(markdown.render(short), Path(summary))
        except UserError as error:
            tell(f"attnbench: {error}")
            code = code or EXIT_CANNOT_WRITE
    return code
