"""`attnbench gate`: parse, judge, write. Heavy imports stay inside functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import output
from attnbench.commands.shared import ends_with_its_reader, read
from attnbench.core.errors import EXIT_CANNOT_WRITE, UserError, did_you_mean

if TYPE_CHECKING:
    from attnbench.analysis.gate.judge import Choice, Judgement, Request

FORMATS = ("table", "md", "html", "json", "junit", "github")

what = partial(typer.Option, rich_help_panel="What to compare")
matters = partial(typer.Option, rich_help_panel="What counts as a change")

# Options of `attnbench ab` too.
Metric = Annotated[
    list[str] | None,
    what(
        "--metric",
        "-m",
        metavar="NAMES",
        help="latency,memory_peak,error,first_call by default; cycles (latency times clock) is free of the clock.",
    ),
]
Expect = Annotated[
    list[str] | None,
    what(metavar="NAMES", help="What is meant to differ: torch, driver, gpu, a backend or library (fa2, triton)."),
]
Margin = Annotated[
    list[str] | None,
    matters(metavar="[METRIC=]MARGIN", help="The change that matters: 3% (of latency, the default), error=20%."),
]
MarginsFile = Annotated[
    Path | None, matters(metavar="FILE", help="YAML: margins per metric, and per cell (docs/gate.md).")
]
Inconclusive = Annotated[
    str, matters(metavar="pass|fail", help="Whether inconclusive cells make the gate end with exit code 3 (fail).")
]
Missing = Annotated[
    str, matters(metavar="pass|fail", help="Whether a cell that the current run lacks counts as a regression (fail).")
]
Format = Annotated[
    list[str] | None,
    output.option(
        "--format",
        "-f",
        metavar="FORMAT[=FILE]",
        help="table (default), md, html, json, junit, github (annotations and step summary; added by itself where "
        "GitHub runs it). Several may be given, each to a file: -f junit=gate.xml.",
    ),
]
Every = Annotated[bool, output.option("--all", metavar="", help="List what is unchanged too.")]


def gate(
    baseline: Annotated[
        Path,
        typer.Argument(
            metavar="BASELINE", help="What to compare with: a run file, a baseline's name, or a folder of baselines."
        ),
    ],
    current: Annotated[Path, typer.Argument(metavar="CURRENT", help="The run file to judge.")],
    metric: Metric = None,
    expect: Expect = None,
    margin: Margin = None,
    margins: MarginsFile = None,
    inconclusive: Inconclusive = "fail",
    missing: Missing = "fail",
    format: Format = None,
    html: output.Html = None,
    json: output.Json = False,
    every: Every = False,
) -> None:
    """Judge a run against a baseline, cell by cell: improved, unchanged, regressed, or too noisy to tell.

    Measure both with --rounds 5. Exit code 0: pass; 1: regression; 2: bad input; 3: inconclusive; 4: not comparable.

    attnbench gate baseline.jsonl results/now.jsonl
    attnbench gate baselines results/now.jsonl
    attnbench gate old.jsonl new.jsonl --expect torch --margin 5% -f md=comment.md -f junit=gate.xml
    """
    from attnbench.analysis.baseline.baseline_files import pick
    from attnbench.analysis.gate.judge import judge

    request = request_of(metric, expect, margin, margins, inconclusive, missing)
    wanted = outputs(format, html, json)
    now = read(current)
    chosen = pick(baseline, now)
    if chosen != baseline:
        print(f"attnbench: baseline: {chosen}", file=sys.stderr)
    judgement = judge(read(chosen), now, request)
    raise typer.Exit(write(judgement, wanted, every))


def request_of(
    metric: Sequence[str] | None,
    expect: Sequence[str] | None,
    margin: Sequence[str] | None,
    margins: Path | None,
    inconclusive: str,
    missing: str,
) -> Request:
    """Return what the options ask a gate for. Raises UserError for unknown names and wrong margins."""
    from attnbench.analysis.gate.judge import Request
    from attnbench.analysis.gate.margins import DEFAULT, RULES
    from attnbench.analysis.gate.margins import margins as margins_of

    names = tuple(dict.fromkeys(_split(metric))) or DEFAULT
    for name in names:
        if name not in RULES:
            raise UserError(f"--metric: no metric {name!r} to gate{did_you_mean(name, RULES)}")
    return Request(
        names,
        margins_of(margin or (), margins),
        tuple(_split(expect)),
        _choice("--inconclusive", inconclusive),
        _choice("--missing", missing),
    )


def _split(texts: Sequence[str] | None) -> list[str]:
    return [name.strip() for text in texts or () for name in text.split(",") if name.strip()]


def _choice(option: str, word: str) -> Choice:
    if word == "pass":
        return "pass"
    if word == "fail":
        return "fail"
    raise UserError(f"{option}: {word!r} is neither pass nor fail")


def outputs(formats: Sequence[str] | None, html: Path | None, json: bool) -> list[tuple[str, Path | None]]:
    """Return what is to be written, as output.outputs does; GitHub's annotations may be printed beside a table.

    In a GitHub workflow they are added where a table is printed.
    """
    formats = list(formats or ())
    wanted = output.outputs([text for text in formats if text != "github"], html, json, FORMATS)
    if "github" in formats:
        if ("table", None) in wanted and "table" not in formats:  # nobody asked for the table
            wanted.remove(("table", None))
        wanted.append(("github", None))
    elif ("table", None) in wanted and "github" not in dict(wanted) and os.environ.get("GITHUB_ACTIONS") == "true":
        wanted.append(("github", None))
    return wanted


def write(judgement: Judgement, wanted: output.Wanted, every: bool) -> int:
    """Write a judgement to where `outputs` says. Return its exit code, or that of what could not be written for 0."""
    from attnbench.analysis.gate import github, junit
    from attnbench.analysis.gate.document import document_of

    ends_with_its_reader()
    document = document_of(judgement, every)
    writers = {"junit": partial(junit.render, judgement), "github": partial(github.workflow_commands, judgement)}
    unwritten = output.write(document, wanted, writers)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and "github" in dict(wanted):
        from attnbench.report import markdown

        try:
            github.append_summary(markdown.render(document_of(judgement)), Path(summary))
        except UserError as error:
            print(f"attnbench: {error}", file=sys.stderr)
            unwritten = EXIT_CANNOT_WRITE
    return judgement.exit_code or unwritten
