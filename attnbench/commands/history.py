"""`attnbench history`: parse, read, write. Heavy imports stay inside."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands import options
from attnbench.commands.output import Output, option, write
from attnbench.commands.shared import read_runs, tell
from attnbench.core.text import count

which = partial(typer.Option, rich_help_panel="What to follow")
matters = partial(typer.Option, rich_help_panel="What counts as a change")


def _metrics() -> Iterable[str]:
    from attnbench.analysis.gate.margins import RULES

    return RULES


@options.grouped
def history(
    *,
    results: Annotated[
        list[Path], typer.Argument(metavar="RUN|DIR", help="Run files, or folders: all run files in them.")
    ],
    metric: Annotated[
        list[str] | None,
        options.metric_option(
            _metrics,
            rich_help_panel="What to follow",
            help="latency,memory_peak by default; also first_call and the gate's others; -m help lists them all.",
        ),
    ] = None,
    branch: Annotated[str | None, which(metavar="NAME", help="Only runs of this branch.")] = None,
    since: Annotated[
        str | None, which(metavar="DATE|COMMIT", help="Only runs from this date, or from this commit's first run, on.")
    ] = None,
    join_units: Annotated[
        bool, which("--join-units", metavar="", help="All units of a model are one; by default each stands apart.")
    ] = False,
    fail_on: Annotated[
        str | None,
        matters(metavar="PERCENT", help="Exit code 1 where a cell's latest level is worse than its first by more: 3%."),
    ] = None,
    acknowledged: Annotated[
        Path | None,
        matters(metavar="FILE", help="YAML: changes that are meant; from there on the new level counts."),
    ] = None,
    output_to: Output,
    every: Annotated[bool, option("--all", metavar="", help="Also the cells that did not change.")] = False,
) -> None:
    """Follow each cell over commits and dates: when did its latency or memory change? Needs no GPU.

    A creep of 0.5 % a commit passes every gate; over a dozen runs it is found here. Keep the run files of a nightly
    job on one machine, with five rounds each, and give them all. A step needs ten runs; docs/history.md.

    attnbench history nightly/
    attnbench history nightly/ --all --html history.html
    attnbench history nightly/ --fail-on 3% --acknowledged history-acknowledged.yml
    """
    from attnbench.analysis.gate.margins import parse
    from attnbench.analysis.history.acknowledged import acknowledged as read_acknowledged
    from attnbench.analysis.history.document import Request, document
    from attnbench.analysis.history.series import DEFAULT, of_branch
    from attnbench.analysis.history.series import since as from_then_on

    wanted = output_to.wanted()
    request = Request(
        join_units,
        tuple(metric or DEFAULT),
        tuple(read_acknowledged(acknowledged)) if acknowledged else (),
        None if fail_on is None else parse(fail_on, "--fail-on"),
    )
    runs = [run for _, run in read_runs(results)]
    if branch is not None:
        if unknown := sum(run.environment.branch is None for run in runs):
            tell(f"attnbench: left out: {count(unknown, 'run')} whose branch is not known; older runs do not record it")
        runs = of_branch(runs, branch)
    if since is not None:
        runs = from_then_on(runs, since)
    raise typer.Exit(write(document(runs, request, every), wanted))
