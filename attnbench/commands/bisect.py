"""`attnbench bisect`: parse, build and measure, write. Heavy imports stay inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live, tell, words
from attnbench.core.errors import one_of

builds = options.Panel("The commits and their builds")

METRICS = ("latency", "cycles")


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.WhatToMeasure):
    """The options of `attnbench bisect`."""

    commits: str = options.argument("GOOD..BAD", "The last commit that is known as fast, and one that is slow.")
    cell: str = builds("NAME", "The cell, as the gate prints it, or a glob that fits it alone: '* 4k d128 *'.", "*")
    build: str = builds(
        "COMMAND", "A shell command that builds the worktree of a commit; where it fails, the commit is skipped.", ""
    )
    python: str = builds("PATH", "The Python that --build makes in the worktree, v/bin/python; -b names a backend.", "")
    code: str = builds("FILE.py:FUNCTION", "In place of --python: code in the worktree, which needs no build.", "")
    build_limit: str = builds("TIME", "Longest time of one build.", "1h")
    metric: str = options.how(
        "NAME", "latency, or cycles (latency times clock), free of the clock.", "latency", "--metric", "-m"
    )
    margin: str = options.how("CHANGE", "How much slower BAD must be than GOOD.", "1%")
    expect: str = options.how("NAMES", "Intended differences between the builds, as in gate: torch.", "")
    device: str = options.device()
    time_limit: str = options.how("TIME", "Longest time of all A/Bs together; builds do not count.", "1h")
    seed: int | None = options.seed()
    allow_busy: bool = options.allow_busy()
    out: Path | None = options.out(
        "The folder of the run files. Default: a new one in results/. A/Bs that it has already are not measured again: "
        "after an interruption the same command with this folder goes on.",
        "DIR",
    )


@options.command
def bisect(given: Options) -> None:
    """Find the commit that made a cell slower, by a binary search with A/Bs between GOOD and BAD, along first parents.

    Each commit is built by your command in a worktree of its own, and measured in turns with GOOD as ab does. A commit
    that does not build, or about which nothing is decided, is skipped. The answer is checked by one more A/B, against
    the commit before it.

    Exit code 0: found; 2: bad input; 3: not found: no slowdown, or commits are left; 1, 4, 5: as the gate of GOOD and
    BAD.

    attnbench bisect v1.2..main --code kernel.py:attention --seqlen 4k --headdim 128 --causal --pass fwd
    attnbench bisect v1.2..main --build 'make venv' --python v/bin/python -b fa2 --cell 'fa2 4k d128 causal fwd *'
    """
    from attnbench.analysis.bisect import run_bisect
    from attnbench.analysis.bisect.document import document
    from attnbench.analysis.gate.margins import parse
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.ab_progress import BisectProgress

    wanted = given.wanted()
    request = options.request(
        run_bisect.Request,
        given,
        build_limit=parse_duration(given.build_limit, "--build-limit"),
        metric=one_of("--metric", given.metric, METRICS),
        margin=parse(given.margin, "--margin"),
        expect=tuple(words([given.expect])),
        settings=options.settings(given, time_limit=None, policy={"seed": given.seed}),
        time_limit=parse_duration(given.time_limit, "--time-limit"),
    )
    with live(BisectProgress, "anything was measured") as watcher:
        outcome = run_bisect.bisect(request, watcher)
    ended = output.write(document(outcome), wanted)
    if outcome.ended:
        tell(f"The same command with --out {outcome.folder} goes on.")
    raise typer.Exit(ended)
