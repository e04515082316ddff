"""`attnbench gate`: parse, judge, write. Heavy imports stay inside."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands.shared import collect_no_garbage, ends_with_its_reader, one_of, put, read
from attnbench.core.errors import EXIT_BAD_INPUT, UserError, did_you_mean

if TYPE_CHECKING:
    from attnbench.analysis.gate.gate import Choice, Judgement, Request

THEN = ("scipy.special", "attnbench.analysis.gate.write_terminal")
FORMATS = ("table", "md", "json", "junit", "github")

what = partial(typer.Option, rich_help_panel="What to compare")
matters = partial(typer.Option, rich_help_panel="What counts as a change")
output = partial(typer.Option, rich_help_panel="Files and output")

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
    str, matters(metavar="pass|fail", help="Whether what can be told neither way ends with exit code 3.")
]
Missing = Annotated[
    str, matters(metavar="pass|fail", help="Whether a cell that the current run lacks is a regression.")
]
Format = Annotated[
    list[str] | None,
    output(
        "--format",
        "-f",
        metavar="FORMAT[=FILE]",
        help="table (default), md, json, junit, github (annotations and step summary; added by itself where "
        "GitHub runs it). Several may be given, each to a file: -f junit=gate.xml.",
    ),
]
Every = Annotated[bool, output("--all", metavar="", help="List what is unchanged too.")]


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
    every: Every = False,
) -> None:
    """Judge a run against a baseline, cell by cell: improved, unchanged, regressed, or too noisy to tell.

    Measure both with --rounds 5. Exit code 0: pass; 1: regression; 2: bad input; 3: inconclusive; 4: not comparable.

    attnbench gate baseline.jsonl results/now.jsonl
    attnbench gate baselines results/now.jsonl
    attnbench gate old.jsonl new.jsonl --expect torch --margin 5% -f md=comment.md -f junit=gate.xml
    """
    from attnbench.analysis.baseline.files import pick
    from attnbench.analysis.gate.gate import judge
    from attnbench.results.batch import ahead_of

    request = request_of(metric, expect, margin, margins, inconclusive, missing)
    wanted = outputs(format or ())
    collect_no_garbage()
    ahead = ahead_of(request.metrics)
    now = read(current, ahead, THEN)
    chosen = pick(baseline, now)
    if chosen != baseline:
        print(f"attnbench: baseline: {chosen}", file=sys.stderr)
    judgement = judge(read(chosen, ahead, THEN), now, request)
    raise typer.Exit(write(judgement, wanted, every))


def request_of(
    metric: Sequence[str] | None,
    expect: Sequence[str] | None,
    margin: Sequence[str] | None,
    margins: Path | None,
    inconclusive: str,
    missing: str,
) -> Request:
    from attnbench.analysis.gate.gate import Request
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


def outputs(options: Sequence[str]) -> list[tuple[str, Path | None]]:
    """(format, file or None for standard output), GitHub's added in a workflow."""
    found: list[tuple[str, Path | None]] = []
    for option in options:
        name, _, file = option.partition("=")
        one_of("--format", name, FORMATS)
        found.append((name, Path(file) if file else None))
        if file:
            _check(name, Path(file), [path for _, path in found[:-1]])
    if all(file for _, file in found):
        found.insert(0, ("table", None))
    printed = {name for name, file in found if not file} - {"github"}
    if len(printed) > 1:
        raise UserError(
            f"--format: {' and '.join(sorted(printed))} cannot both be printed; write one to a file: md=FILE"
        )
    by_itself = printed == {"table"} and "github" not in {name for name, _ in found}
    if by_itself and os.environ.get("GITHUB_ACTIONS") == "true":
        found.append(("github", None))
    return found


def _check(name: str, file: Path, others: Sequence[Path | None]) -> None:
    """Said at once, not after all was measured."""
    if file.resolve() in [other.resolve() for other in others if other] and not file.is_char_device():
        raise UserError(f"--format: {file} is given twice; one would overwrite the other")
    there = file if file.exists() else file.parent
    if file.is_dir() or not file.parent.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"--format {name}={file}: cannot be written; choose another place")


def write(judgement: Judgement, wanted: Sequence[tuple[str, Path | None]], every: bool) -> int:
    """To where `outputs` says, files first. Gives the exit code: bad input's for a pass that could not be written."""
    code = judgement.exit_code
    ends_with_its_reader()
    for name, file in sorted(wanted, key=lambda output: output[1] is None):
        try:
            _write(judgement, name, file, every)
            sys.stdout.flush()
        except (UserError, OSError) as error:
            said = error if isinstance(error, UserError) else f"cannot write: {error.strerror}"
            print(f"attnbench: {said}", file=sys.stderr)
            code = code or EXIT_BAD_INPUT
    return code


def _write(judgement: Judgement, name: str, file: Path | None, every: bool) -> None:
    if name == "github":
        from attnbench.analysis.gate import write_github

        put(write_github.render(judgement), file)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            write_github.summarize(judgement, Path(summary))
    elif name == "table" and not file:
        from rich.console import Console

        from attnbench.analysis.gate import write_terminal

        write_terminal.render(Console(highlight=False), judgement, every)
    else:
        put(_renderers(every)[name](judgement), file)


def _renderers(every: bool) -> dict[str, Callable[[Judgement], str]]:
    from attnbench.analysis.gate import write_export, write_junit, write_markdown, write_terminal

    return {
        "table": partial(write_terminal.text, every=every),
        "md": partial(write_markdown.render, every=every),
        "json": write_export.json_text,
        "junit": write_junit.render,
    }
