"""`attnbench history`: parse, read, write. Heavy imports stay inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands import options
from attnbench.commands.output import Output, option, write
from attnbench.commands.shared import ends_with_its_reader, read_runs


@options.grouped
def history(
    *,
    results: Annotated[
        list[Path], typer.Argument(metavar="RUN|DIR", help="Run files, or folders: all run files in them.")
    ],
    join_units: Annotated[
        bool,
        typer.Option("--join-units", metavar="", help="All units of a model are one; by default each stands apart."),
    ] = False,
    output_to: Output,
    every: Annotated[bool, option("--all", metavar="", help="Also the cells that did not change.")] = False,
) -> None:
    """Follow each cell over commits and dates: when did its latency change? Needs no GPU.

    A creep of 0.5 % a commit passes every gate; over a dozen runs it is found here. Keep the run files of a nightly
    job on one machine, with five rounds each, and give them all. Six runs are the least; docs/history.md.

    attnbench history nightly/
    attnbench history nightly/ --all --html history.html
    """
    wanted = output_to.wanted()
    ends_with_its_reader()
    runs = [run for _, run in read_runs(results)]

    from attnbench.analysis.history.document import document

    if code := write(document(runs, join_units, every), wanted):
        raise typer.Exit(code)
