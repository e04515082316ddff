"""`attnbench run`: measures, shows, and says how to go on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live
from attnbench.core.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

if TYPE_CHECKING:
    from rich.console import Console

    from attnbench.run.run_suite import Outcome

how = partial(typer.Option, rich_help_panel="How")
instruments = partial(typer.Option, rich_help_panel="Instruments")
files = partial(typer.Option, rich_help_panel="Files and output")


def run(
    suite: options.Suite = "default",
    backend: options.Backend = None,
    seqlen: options.Seqlen = None,
    seqlen_q: options.SeqlenQ = None,
    headdim: options.Headdim = None,
    dtype: options.Dtype = None,
    causal: options.Causal = None,
    direction: options.Direction = None,
    batch: options.Batch = None,
    tokens: options.Tokens = None,
    nheads: options.Nheads = None,
    nheads_k: options.NheadsK = None,
    window: options.Window = None,
    softcap: options.Softcap = None,
    dropout: options.Dropout = None,
    device: options.Device = "auto",
    time_limit: Annotated[
        str | None, how(metavar="TIME", help="90s, 10m, 1h: leaves out the dearest jobs; --resume measures them later.")
    ] = None,
    rounds: Annotated[int, how(metavar="N", help="The whole plan N times, each in fresh processes.")] = 1,
    timer: Annotated[
        str | None,
        instruments(metavar="NAME", help="events (default), graph (CUDA graph replay) or cupti (kernel spans)."),
    ] = None,
    l2: Annotated[
        str | None,
        instruments("--l2", metavar="STATE", help="Of the cache, before each sample: cold (default) or warm."),
    ] = None,
    cross_check: Annotated[
        bool,
        instruments("--cross-check", metavar="", help="A quarter of the cells by all three, in turns: do they agree?"),
    ] = False,
    sustained: Annotated[
        str | None,
        instruments(metavar="TIME", help="10s: also each cell without pauses, until power and clock are steady."),
    ] = None,
    isolate_power: Annotated[
        bool, instruments("--isolate-power", metavar="", help="Wait before each cell until clock and power are back.")
    ] = False,
    fresh_caches: Annotated[
        bool,
        how(
            "--fresh-caches", metavar="", help="Each cell in a new process without compiled kernels: cold first calls."
        ),
    ] = False,
    seed: Annotated[int | None, how(metavar="N", help="Of the inputs and the order of the jobs.")] = None,
    python: Annotated[
        list[str] | None,
        how("--python", metavar="NAME=PATH", help="The interpreter of a backend's worker: each may have its own."),
    ] = None,
    peak: Annotated[
        list[str] | None,
        how("--peak", metavar="DTYPE=TFLOPS", help="bf16=989: the datasheet peak of a GPU that is not on file."),
    ] = None,
    out: Annotated[Path | None, files(metavar="FILE", help="The run file. A new one in results/ by default.")] = None,
    resume: Annotated[
        Path | None, files(metavar="FILE", help="Measure what this run file lacks, with the options it was begun with.")
    ] = None,
    dry_run: Annotated[
        bool, files("--dry-run", metavar="", help="Show the plan and its forecast; measure and write nothing.")
    ] = False,
    format: output.Format = None,
    html: output.Html = None,
    json: Annotated[bool, files("--json", metavar="", help="The results (or the plan) as JSON on stdout.")] = False,
) -> None:
    """Measure every attention implementation that works here, over your shapes; save the figures and show them.

    attnbench run --seqlen 1k-64k
    attnbench run -b 'sdpa-*' -b '!sdpa-math' --headdim 128 --causal --pass fwd
    attnbench run -b ./mine.py:my_attention,sdpa-flash --nheads 8 --nheads-k 2
    attnbench run --causal --window none,1k --softcap none,30 --seqlen 8k
    attnbench run --suite flash-paper --time-limit 5m --dry-run
    attnbench run --suite quick --cross-check --sustained 10s

    Exit code 0: done; 1: nothing could be measured; 2: bad input; 130: interrupted (--resume goes on).
    """
    axes = options.axes(locals())
    wanted = output.outputs(format, html, json)
    from attnbench.report.progress.run_progress import RunProgress
    from attnbench.run import run_suite as runs
    from attnbench.run.suite import parse_options

    policy = {
        "seed": seed,
        "timer": timer,
        "l2": l2,
        "cross_check": 0.25 if cross_check else None,
        "sustained_s": sustained,
        "isolate_power": isolate_power or None,
        "caches": "fresh" if fresh_caches else None,
    }
    chosen = {"axes": axes, "tokens": tokens, "backends": backend, "time_limit": time_limit, "policy": policy}
    request = runs.Request(
        suite=suite,
        settings=parse_options(chosen),
        device=device,
        rounds=rounds,
        out=out,
        resume=resume,
        dry_run=dry_run,
        pythons=tuple(python or ()),
        peak=tuple(peak or ()),
        argv=tuple(sys.argv[1:]),
    )
    with live(RunProgress, "anything was measured") as watcher:
        outcome = runs.run_suite(request, watcher)
    if dry_run:
        from attnbench.analysis.summary import planned

        raise typer.Exit(output.write(planned.document(outcome.run), wanted))
    from rich.console import Console

    from attnbench.analysis.summary.document import complete, document
    from attnbench.results.cells import cells as cells_of

    cells, formats = cells_of([outcome.run]), {name for name, _ in wanted}
    printed = next(name for name, file in wanted if not file)
    console = Console(stderr=printed != "table", highlight=False)
    if printed == "table":
        console.print()
    shown = complete(document(cells, [outcome.run]), formats, cells, [outcome.run], [outcome.path or Path("run.jsonl")])
    unwritten = output.write(shown, wanted)
    _epilogue(console, outcome)
    raise typer.Exit(outcome.exit_code or unwritten)


def _epilogue(console: Console, outcome: Outcome) -> None:
    """Forecast against actual, where the files are, and how to go on."""
    from attnbench.analysis.summary.forecast import forecast_line
    from attnbench.core.text import count
    from attnbench.results.run_file import missing

    console.print()
    if line := forecast_line(outcome.run):
        console.print(line, markup=False, style="dim")
    console.print(f"Results: {outcome.path}", markup=False, soft_wrap=True)
    if left := [job for job in missing(outcome.run) if job.skip is None or job.resumable]:
        if outcome.exit_code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
            console.print(f"Interrupted; what was measured is kept. Go on with the {count(len(left), 'job')} left:")
        else:
            console.print(f"{count(len(left), 'job')} did not fit the time limit. To measure what is left:")
        console.print(f"  attnbench run --resume {outcome.path}", markup=False, soft_wrap=True)
