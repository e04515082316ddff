"""`attnbench history`: parse, read, write. Heavy imports stay inside."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import options
from attnbench.commands.output import Output, option, write
from attnbench.commands.shared import ends_with_its_reader, run_files_of
from attnbench.core.text import count

if TYPE_CHECKING:
    from attnbench.core.record import Run


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
    runs = _each_once(run for _, run in run_files_of(results))

    from attnbench.analysis.history.document import document

    if code := write(document(runs, join_units, every), wanted):
        raise typer.Exit(code)


def _each_once(runs: Iterable[Run]) -> list[Run]:
    """Return runs without those given again, as a copy, baseline or file beside its folder: they look like no noise."""
    found: list[Run] = []
    again = 0
    for run in runs:
        twin = next((i for i, other in enumerate(found) if _is_the_same(run, other)), None)
        again += twin is not None
        if twin is None:
            found.append(run)
        elif found[twin].reduced:
            found[twin] = run  # it has the samples
    if again:
        print(f"attnbench: left out: {count(again, 'file')} of a run that was given already", file=sys.stderr)
    return found


def _is_the_same(run: Run, other: Run) -> bool:
    """Return whether two are one run, of which a baseline keeps a part only."""
    if run.started != other.started:
        return False
    if run.reduced or other.reduced:
        return (run.suite, run.environment.device.uuid) == (other.suite, other.environment.device.uuid)
    return run == other
