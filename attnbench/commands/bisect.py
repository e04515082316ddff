"""`attnbench bisect`: parse, build and measure, write. Heavy imports stay inside."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import command_line, live, one_of, tell, words

builds = partial(typer.Option, rich_help_panel="The commits and their builds")

METRICS = ("latency", "cycles")


@options.grouped
def bisect(
    *,
    commits: Annotated[
        str,
        typer.Argument(metavar="GOOD..BAD", help="The last commit that is known as fast, and one that is slow."),
    ],
    cell: Annotated[
        str,
        builds(metavar="NAME", help="The cell, as the gate prints it, or a glob that fits it alone: '* 4k d128 *'."),
    ] = "*",
    build: Annotated[
        str,
        builds(
            metavar="COMMAND", help="For a shell, in a worktree of each commit; where it fails, the commit is skipped."
        ),
    ] = "",
    python: Annotated[
        str,
        builds(metavar="PATH", help="The Python that it leaves in the worktree, v/bin/python; -b says what it runs."),
    ] = "",
    code: Annotated[
        str,
        builds(metavar="FILE.py:FUNCTION", help="In place of --python: code in the worktree, which needs no build."),
    ] = "",
    build_limit: Annotated[str, builds(metavar="TIME", help="Of one build.")] = "1h",
    metric: Annotated[
        str,
        options.how(
            "--metric", "-m", metavar="NAME", help="latency, or cycles (latency times clock), free of the clock."
        ),
    ] = "latency",
    margin: Annotated[str, options.how(metavar="CHANGE", help="BAD must be slower than GOOD by more.")] = "1%",
    expect: Annotated[
        str, options.how(metavar="NAMES", help="What is meant to differ between the builds, as in gate: torch.")
    ] = "",
    what: options.WhatToMeasure,
    device: options.Device = "auto",
    time_limit: Annotated[str, options.time_limit(help="Of all A/Bs together; builds do not count.")] = "1h",
    seed: options.Seed = None,
    allow_busy: options.AllowBusy = False,
    output_to: output.Output,
    out: Annotated[
        Path | None,
        options.out(
            help="For the run files; a new folder in results/ by default. A/Bs that are there already are not measured "
            "again, so the same command with it goes on after an interruption.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Find the commit that made a cell slower: A/Bs of commits along first parents, halving from GOOD to BAD.

    Each commit is built by your command in a worktree of its own, and measured in turns with GOOD as ab does. A commit
    that does not build, or of which nothing is decided, is skipped. The answer is checked by one more A/B, against the
    commit before it.

    Exit code 0: found; 2: bad input; 3: not found: no slowdown, or commits are left; 1, 4, 5: as the gate of GOOD and
    BAD.

    attnbench bisect v1.2..main --code kernel.py:attention --seqlen 4k --headdim 128 --causal --pass fwd
    attnbench bisect v1.2..main --build 'make venv' --python v/bin/python -b fa2 --cell 'fa2 4k d128 causal fwd *'
    """
    from attnbench.analysis.bisect import run_bisect
    from attnbench.analysis.bisect.document import document
    from attnbench.analysis.gate.margins import parse
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.bisect_progress import BisectProgress
    from attnbench.run.suite import parse_options

    wanted = output_to.wanted()
    request = run_bisect.Request(
        commits=commits,
        cell=cell,
        code=code,
        python=python,
        build=build,
        build_limit=parse_duration(build_limit, "--build-limit"),
        metric=one_of("--metric", metric, METRICS),
        margin=parse(margin, "--margin"),
        expect=tuple(words([expect])),
        suite=what.suite,
        settings=parse_options({**what.settings, "policy": {"seed": seed}}),
        device=device,
        time_limit=parse_duration(time_limit, "--time-limit"),
        out=out,
        argv=command_line(),
        allow_busy=allow_busy,
    )
    with live(BisectProgress, "anything was measured") as watcher:
        outcome = run_bisect.bisect(request, watcher)
    ended = output.write(document(outcome), wanted)
    if outcome.ended:
        tell(f"The same command with --out {outcome.folder} goes on.")
    raise typer.Exit(ended)
