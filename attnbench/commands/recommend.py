"""`attnbench recommend`: which backend to use, from run files or from a short run. Heavy imports stay inside."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import ends_with_its_reader, live, read, tell
from attnbench.core.errors import EXIT_BY_SIGNAL, EXIT_NOTHING_MEASURED, UserError

if TYPE_CHECKING:
    from attnbench.core.record import Run
    from attnbench.results.cells import Cell
    from attnbench.run.run_suite import Outcome
    from attnbench.run.suite import Settings

SUITE = "quick"

files = partial(typer.Option, rich_help_panel="Files and output")


@dataclass(frozen=True)
class Shapes(options.WhatToMeasure):
    """What to recommend for: the shapes of a short run, or those of the run files that are asked for."""

    suite: Annotated[
        str,
        options.shape(
            metavar="NAME|FILE",
            help="Of the short run: a shipped suite, or a YAML file of your own.",
            autocompletion=complete.one(complete.suites),
        ),
    ] = SUITE


@options.grouped
def recommend(
    *,
    results: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Run files; without any a short run is measured.")
    ] = None,
    what: Shapes,
    device: options.Device = "auto",
    time_limit: Annotated[
        str | None,
        options.how(metavar="TIME", help="Stop the short run after this time, as in 90s or 10m."),
    ] = None,
    rounds: Annotated[
        int, options.how(metavar="N", help="Measure everything N times, each time in new processes: fewer ties.")
    ] = 1,
    python: options.Python = None,
    out: Annotated[
        Path | None, files(metavar="FILE", help="The run file of the short run. Default: a new file in results/.")
    ] = None,
    output_to: output.Output,
) -> None:
    """Say which backend to use: the fastest right one by case, its gain over PyTorch's default, the code to paste.

    From run files, of which the options choose cases and backends, it needs no GPU. Without files it measures the
    suite quick with your shapes first, as `attnbench run` does. What ties within the uncertainty is shown as a tie.

    attnbench recommend results/*.jsonl.gz
    attnbench recommend results/*.jsonl.gz --headdim 128 --causal --pass fwd
    attnbench recommend --seqlen 4k --causal --pass fwd,bwd
    attnbench recommend --seqlen 8k --nheads 32 --nheads-k 8 -b 'sdpa*,fa*,flex' --html use.html

    Exit code 0: done; 1: nothing can be recommended; 2: bad input, or output that cannot be written; 129, 130, 143:
    hung up, interrupted, terminated.
    """
    wanted = output_to.wanted()
    from attnbench.run.suite import parse_options

    measuring = {"--suite": what.suite != SUITE, "--device": device != "auto", "--time-limit": time_limit is not None}
    measuring |= {
        "--rounds": rounds != 1,
        "--python": bool(python),
        "--out": out is not None,
        "--tokens": what.tokens is not None,
    }
    if results and (given := [name for name, is_given in measuring.items() if is_given]):
        raise UserError(f"{' and '.join(given)}: of a short run; with run files nothing is measured, leave it out")
    settings = parse_options({**what.settings, "time_limit": time_limit})
    ends = 0
    if results:
        runs, competes = [read(path) for path in results], _patterns(what.backend)
    else:
        outcome = _measured(what.suite, settings, device, rounds, out, python or ())
        runs, competes, ends = [outcome.run], _patterns(None), outcome.exit_code
        tell(f"Results: {outcome.path}")
    ends_with_its_reader()
    from attnbench.analysis.recommend.document import document

    cells = _chosen(runs, settings, competes) if results else _all_cells(runs)
    shown = document(cells, competes)
    unwritten = output.write(shown, wanted)
    useless = EXIT_NOTHING_MEASURED * (not any(row["use"] for row in shown.rows))
    raise typer.Exit((ends if ends in EXIT_BY_SIGNAL else 0) or unwritten or useless)


def _measured(
    suite: str, settings: Settings, device: str, rounds: int, out: Path | None, python: Sequence[str]
) -> Outcome:
    """Measure a short run, with a line on stderr that says what goes on."""
    from attnbench.report.progress.run_progress import RunProgress
    from attnbench.run import run_suite as runs

    request = runs.Request(
        suite, settings, device, rounds, out, pythons=tuple(python), allow_wrong=True, argv=tuple(sys.argv[1:])
    )
    with live(RunProgress, "anything was measured") as progress:
        return runs.run_suite(request, progress)


def _all_cells(runs: Sequence[Run]) -> list[Cell]:
    from attnbench.results.cells import cells

    return cells(runs)


def _chosen(runs: Sequence[Run], settings: Settings, competes: Callable[[str], bool]) -> list[Cell]:
    """Return the cells of the cases that were asked for. Raises UserError where there are none, or no such backend."""
    from attnbench.results.case_names import backend_rank
    from attnbench.run.axes import matches

    every = _all_cells(runs)
    found = [cell for cell in every if matches(settings.axes, cell.case)]
    if every and not found:
        raise UserError("no case of these run files has the shapes that were asked for; attnbench report shows theirs")
    names = sorted({cell.backend for cell in found}, key=backend_rank)
    if names and not any(map(competes, names)):
        raise UserError(f"--backend: these run files have none of them for these shapes, but {', '.join(names)}")
    return found


def _patterns(given: Sequence[str] | None) -> Callable[[str], bool]:
    """Return whether a backend is one of --backend: names, patterns, and those to leave out with "!"."""
    words = [word.strip() for text in given or () for word in text.split(",") if word.strip()]
    left_out = [word[1:] for word in words if word.startswith("!")]
    kept = [word for word in words if not word.startswith("!")] or ["*"]

    def competes(backend: str) -> bool:
        return any(fnmatch.fnmatch(backend, word) for word in kept) and not any(
            fnmatch.fnmatch(backend, word) for word in left_out
        )

    return competes
