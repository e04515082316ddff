"""`attnbench ab`: parse, measure, judge, write. Heavy imports stay inside functions."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands import options
from attnbench.commands.gate import GateOutput, HowToJudge, write
from attnbench.commands.shared import command_line, live, tell

BUILDS = "The two builds"
builds = partial(typer.Option, rich_help_panel=BUILDS)


@options.grouped
def ab(
    *,
    a: Annotated[
        str,
        builds(
            "--a",
            metavar="BUILD",
            help="The baseline: a Python that has it (/venvs/main/bin/python), or code: a backend's name, "
            "./file.py:function, pkg.mod:object.",
        ),
    ],
    b: Annotated[str, builds("--b", metavar="BUILD", help="What to judge: a Python or code, as --a.")],
    what: options.WhatToMeasure,
    python: Annotated[
        list[str] | None, options.python(help="The Python of --a or --b, where they are code.", rich_help_panel=BUILDS)
    ] = None,
    device: options.Device = "auto",
    time_limit: Annotated[str, options.time_limit(help="90s, 10m, 1h for all of it.")] = "10m",
    seed: options.Seed = None,
    allow_busy: options.AllowBusy = False,
    judging: HowToJudge,
    output_to: GateOutput,
    out: Annotated[
        Path | None, options.out(help="For a.jsonl and b.jsonl; two new files in results/ by default.", metavar="DIR")
    ] = None,
) -> None:
    """Measure two builds in turns, A B B A, in fresh processes, until every cell is settled; then judge as gate does.

    Drift of the machine is in both and cancels. What -b names may differ; all else must be alike, or named by --expect.

    Exit code 0: pass; 1: regression; 2: bad input; 3: inconclusive; 4: not comparable; 5: a wrong result of B, unless
    --allow-wrong is given. It stops at the first look after which more rounds cannot change that code.

    attnbench ab --a /venvs/main/bin/python --b /venvs/pr/bin/python -b fa2 --seqlen 1k-16k
    attnbench ab --a old.py:attention --b new.py:attention --suite quick --margin 2%
    attnbench ab --a sdpa-flash --b triton --causal --pass fwd --time-limit 5m
    """
    from attnbench.analysis.ab import run_ab
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.ab_progress import AbProgress
    from attnbench.run.suite import parse_options

    judged_by = judging.request()
    wanted = output_to.wanted()
    request = run_ab.Request(
        a=a,
        b=b,
        judged_by=judged_by,
        suite=what.suite,
        settings=parse_options({**what.settings, "time_limit": time_limit, "policy": {"seed": seed}}),
        device=device,
        time_limit=parse_duration(time_limit, "--time-limit"),
        pythons=tuple(python or ()),
        out=out,
        allow_busy=allow_busy,
        argv=command_line(),
    )
    with live(AbProgress, "anything was measured") as watcher:
        outcome = run_ab.ab(request, watcher)
    code = 0
    if outcome.judgement:
        code = write(outcome.judgement, wanted, output_to.every, "ab")
    else:
        tell("attnbench: interrupted before a pair of turns was measured")
    if outcome.paths and outcome.judgement:
        again = ["attnbench", "gate", *map(str, outcome.paths), *judging.given()]
        tell(f"Judge again: {shlex.join(again)}")
    raise typer.Exit(outcome.exit_code or code)
