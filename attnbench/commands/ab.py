"""`attnbench ab`: parse, measure, judge, write. Heavy imports stay inside functions."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.commands import options
from attnbench.commands.gate import GateOutput, HowToJudge, write
from attnbench.commands.shared import live, tell

builds = options.Panel("The two builds", 1)


@dataclass(frozen=True, kw_only=True)
class Options(GateOutput, HowToJudge, options.WhatToMeasure):
    """The options of `attnbench ab`."""

    a: str = builds(
        "BUILD",
        "The baseline: a Python that has it (/venvs/main/bin/python), or code: a backend's name, ./file.py:function, "
        "pkg.mod:object.",
        dataclasses.MISSING,
    )
    b: str = builds("BUILD", "What to judge: a Python or code, as --a.", dataclasses.MISSING)
    python: list[str] | None = builds("NAME=PATH", "The Python of --a or --b, where they are code.")
    device: str = options.device()
    time_limit: str = options.how("TIME", "Longest time of the whole measurement: 90s, 10m, 1h.", "10m")
    seed: int | None = options.seed()
    allow_busy: bool = options.allow_busy()
    out: Path | None = options.out("The folder of a.jsonl and b.jsonl. Default: two new files in results/.", "DIR")


@options.command
def ab(given: Options) -> None:
    """Measure two builds in turns, A B B A, in fresh processes, until every cell is settled; then judge as gate does.

    Drift of the machine is in both and cancels. What -b names may differ; all else must be alike, or named by --expect.

    Exit code 0: pass; 1: regression; 2: bad input; 3: inconclusive; 4: not comparable; 5: a wrong result of B, unless
    --allow-wrong is given. It stops at the first look after which more rounds cannot change that code. The method:
    docs/ab.md; the file of --margins: docs/gate.md.

    attnbench ab --a /venvs/main/bin/python --b /venvs/pr/bin/python -b fa2 --seqlen 1k-16k
    attnbench ab --a old.py:attention --b new.py:attention --suite quick --margin 2%
    attnbench ab --a sdpa-flash --b triton --causal --pass fwd --time-limit 5m
    """
    from attnbench.analysis.ab import run_ab
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.ab_progress import AbProgress

    judged_by = given.judged_by()
    wanted = given.wanted()
    request = options.request(
        run_ab.Request,
        given,
        judged_by=judged_by,
        settings=options.settings(given, policy={"seed": given.seed}),
        time_limit=parse_duration(given.time_limit, "--time-limit"),
    )
    with live(AbProgress, "anything was measured") as watcher:
        outcome = run_ab.ab(request, watcher)
    code = 0
    if outcome.judgement:
        code = write(outcome.judgement, wanted, given.every, "ab")
    else:
        tell("attnbench: interrupted before a pair of turns was measured")
    if outcome.paths and outcome.judgement:
        again = ["attnbench", "gate", *map(str, outcome.paths), *given.again()]
        tell(f"Judge again: {shlex.join(again)}")
    raise typer.Exit(outcome.exit_code or code)
