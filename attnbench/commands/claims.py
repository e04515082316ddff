"""`attnbench claims`: measure published figures again, or judge them by run files. Heavy imports stay inside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import command_line, measured, read_runs, words
from attnbench.core.errors import UserError

if TYPE_CHECKING:
    from attnbench.analysis.claims.claim_file import Setting
    from attnbench.run.run_suite import Outcome

WHICH = "Which claims"
what = partial(typer.Option, rich_help_panel=WHICH)
SUSTAINED = "1s"


@options.grouped
def claims(
    *,
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN|DIR", help="Run files to judge by, of one GPU or several; without any it measures."
        ),
    ] = None,
    paper: Annotated[
        list[str] | None,
        what(
            metavar="NAMES",
            help="Sources: names or patterns (--list shows them), or YAML files of your own. Default: all.",
            autocompletion=complete.several(complete.papers),
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None, what(metavar="NAMES", help="Claims printed of GPUs with one of these in their names: h100.")
    ] = None,
    backend: Annotated[
        list[str] | None, options.backend(help="Claims about these backends: names or patterns.", rich_help_panel=WHICH)
    ] = None,
    listed: Annotated[bool, what("--list", help="Show what is claimed; measure nothing.")] = False,
    device: options.Device = "auto",
    time_limit: options.TimeLimit = None,
    sustained: Annotated[
        str,
        options.how(metavar="TIME", help="Measure each cell this long without pauses too, as papers may have; 0: not."),
    ] = SUSTAINED,
    rounds: options.Rounds = 1,
    python: options.Python = None,
    allow_wrong: options.AllowWrong = False,
    allow_busy: options.AllowBusy = False,
    out: options.Out = None,
    dry_run: options.DryRun = False,
    output_to: output.Output,
) -> None:
    """Measure what papers and vendors print: reproduced, not reproduced (by how much), or cannot be tried here (why).

    A figure is judged on the GPU model that it was printed of, a ratio of two backends on any GPU. Settings are as
    printed: batch, heads, dtype, FLOPs convention. A claim is a few lines of YAML: docs/claims.md.

    attnbench claims
    attnbench claims --list
    attnbench claims --paper fa3,cudnn
    attnbench claims --gpu h100 -b fa3,sdpa-cudnn --time-limit 5m
    attnbench claims h100.jsonl h200.jsonl --html claims.html

    Exit code 0: done, whatever the verdicts; 1: nothing could be tried; 2: bad input, or output that cannot be written;
    5: a wrong result, unless --allow-wrong is given; 129, 130, 143: hung up, interrupted, terminated.
    """
    wanted = output_to.wanted()
    given = {"--out": out, "--python": python, "--time-limit": time_limit, "--dry-run": dry_run}
    given |= {"--rounds": rounds != 1, "--device": device != "auto", "--sustained": sustained != SUSTAINED}
    given |= {"--allow-wrong": allow_wrong, "--allow-busy": allow_busy}
    if results and listed:
        raise UserError("--list shows what is claimed, and run files judge it; leave out one of them")
    if (results or listed) and (measuring := [name for name, is_given in given.items() if is_given]):
        raise UserError(f"{' and '.join(measuring)}: of measuring; with run files or --list nothing is measured")

    from attnbench.analysis.claims.claim_file import load, selected
    from attnbench.analysis.claims.document import document, listing

    settings = selected(load(words(paper)), words(gpu), words(backend))
    if listed:
        raise typer.Exit(output.write(listing(settings), wanted))
    outcome = None
    if not results:
        outcome = _measured(
            settings, sustained, time_limit, device, rounds, python, out, dry_run, allow_wrong, allow_busy
        )
        if dry_run:
            from attnbench.analysis.report import planned

            raise typer.Exit(output.write(planned.document(outcome.run), wanted))
    runs = [outcome.run] if outcome else [run for _, run in read_runs(results or ())]
    code = output.write(document(settings, runs), wanted)
    raise typer.Exit((outcome and outcome.gravest) or code)


def _measured(
    settings: Sequence[Setting],
    sustained: str,
    time_limit: str | None,
    device: str,
    rounds: int,
    python: Sequence[str] | None,
    out: Path | None,
    dry_run: bool,
    allow_wrong: bool,
    allow_busy: bool,
) -> Outcome:
    """Measure the cases of claims; stderr says what goes on, which file it wrote, and what is left."""
    from attnbench.analysis.claims.claim_file import suite_of
    from attnbench.core.sizes import parse_duration
    from attnbench.run.run_suite import Request
    from attnbench.run.suite import parse_options

    seconds = 0.0 if sustained == "0" else parse_duration(sustained, "--sustained")
    request = Request(
        suite_of(settings, seconds),
        parse_options({"time_limit": time_limit}),
        device,
        rounds,
        out,
        dry_run=dry_run,
        pythons=tuple(python or ()),
        allow_wrong=allow_wrong,
        allow_busy=allow_busy,
        argv=command_line(),
    )
    return measured(request, "claims")
