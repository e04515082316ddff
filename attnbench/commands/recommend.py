"""`attnbench recommend`: which backend to use, from run files or from a short run. Heavy imports stay inside."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import command_line, measured, read_runs, tell, with_latencies
from attnbench.commands.tune import module_name, of_choice_file, plan_check
from attnbench.core.errors import EXIT_BY_SIGNAL
from attnbench.render.document import with_damage

if TYPE_CHECKING:
    from attnbench.core.record import Run
    from attnbench.render.document import Document
    from attnbench.run.run_suite import Outcome
    from attnbench.run.suite import Settings


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.ShortRun, options.WhichModel, options.WhatToMeasure):
    """The options of `attnbench recommend`: those of a short run, some of which also choose cells of run files."""

    results: list[Path] | None = options.argument(
        "RUN|DIR", "Run files, or folders, or one choice file; without any a short run is measured.", None
    )
    format: list[str] | None = output.formats(
        "table (default), md, html, json, csv; for programs, as of attnbench tune: choice=FILE.json, module=FILE.py. "
        "Several may be given, all but one to a file."
    )
    suite: str = options.suite("quick", "The suite of the short run: a shipped one, or a YAML file of your own.")
    bits: str | None = options.bits()
    every: bool = options.files.flag(
        "Show all machines, cases and columns in the table too, as md, html, json and csv do.", "--all"
    )


@options.command
def recommend(given: Options) -> None:
    """Say which backend to use: the fastest right one by case, its gain over PyTorch's default, the code to paste.

    From run files, of which the options choose cases and backends, it needs no GPU. Without files it measures the
    suite quick with your shapes first, as `attnbench run` does. Backends that are alike within the uncertainty are
    shown as a tie. Where there are many cases and machines, the table has those that tell most.

    attnbench recommend results/*.jsonl.gz
    attnbench recommend results/*.jsonl.gz --headdim 128 --causal --pass fwd
    attnbench recommend --seqlen 4k --causal --pass fwd,bwd
    attnbench recommend --seqlen 8k --nheads 32 --nheads-k 8 -b 'sdpa*,fa*,flex' --html use.html
    attnbench recommend --model gemma-2-9b --phase train --seqlen 4k

    Exit code 0: done; 1: nothing can be recommended; 2: bad input, or output that cannot be written; 129, 130, 143:
    hung up, interrupted, terminated.
    """
    wanted = given.wanted((*output.FORMATS, *output.CHOICES))
    name = module_name(wanted)
    if shown := of_choice_file(given, wanted, "every"):
        raise typer.Exit(output.write(shown, wanted))
    if given.results:
        given.refuse_measuring("suite", "tokens")
    from attnbench.analysis.recommend.asked_for import asked_for, competing, parse_bits

    bits = parse_bits(given.bits)
    settings = options.settings(given, **({"policy": {"bitwise": True}} if bits and not given.results else {}))
    outcome = None if given.results else _measured(given, settings, bits, plan_check(wanted))
    read, damage = read_runs(given.results or ())
    runs = [outcome.run] if outcome else with_latencies([run for _, run in read])
    from attnbench.analysis.recommend.document import document
    from attnbench.core.models import find
    from attnbench.results.cells import cells as cells_of

    cells, competes = cells_of(runs, by_machine=True), competing(None)
    if given.results:
        cells = asked_for(cells, settings)
        competes = competing(given.backend, cells)
    models = [*map(find, settings.models or ())]
    file = outcome.path if outcome else None

    def made(every: bool) -> Document:
        return with_damage(document(cells, competes, models, settings.tp or 1, file, every, bits), damage)

    from attnbench.analysis.choose.document import Choices

    writers = Choices(cells, competes, bits, name=name).writers(command_line(outputs=True))
    tables = [(name, path) for name, path in wanted if name == "table"]
    others = [(name, path) for name, path in wanted if name != "table"]
    codes = [output.write(made(True), others, writers) if others else 0, output.write(made(given.every), tables)]
    raise typer.Exit((outcome and outcome.gravest) or max(codes))


def _measured(
    given: Options, settings: Settings, bits: tuple[str, ...], check: Callable[[Run], object] | None
) -> Outcome:
    """Measure a short run; stderr shows the progress and names the run file."""
    from attnbench.run.run_suite import Request

    outcome = measured(options.request(Request, given, settings=settings, bits=bits, allow_wrong=True, check=check))
    if outcome.exit_code in EXIT_BY_SIGNAL:
        file = shlex.quote(str(outcome.path))
        tell(f"Interrupted; attnbench run --resume {file} goes on, attnbench recommend {file} follows")
        if not any(record.status == "ok" for record in outcome.run.records):
            raise typer.Exit(outcome.exit_code)
    return outcome
