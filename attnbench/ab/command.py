"""`attnbench ab`: parse, measure, judge, write. Heavy imports stay inside."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from attnbench.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, Terminated
from attnbench.gate.command import (
    Every,
    Expect,
    Format,
    Inconclusive,
    Margin,
    MarginsFile,
    Metric,
    Missing,
    output,
    outputs,
    request_of,
    write,
)

if TYPE_CHECKING:
    from attnbench.report.gate.live import Live

builds = partial(typer.Option, rich_help_panel="The two builds")
how = partial(typer.Option, rich_help_panel="How")

CHOOSES_CASES = "What to measure"  # the panel of `attnbench run` whose options choose backends and cases


def with_axes_of(run: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options with which `run` chooses what to measure, in place of its **axes."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(run, include_extras=True)
        own_hints = get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters
        theirs = [
            p.replace(annotation=hints[name], kind=p.KEYWORD_ONLY)
            for name, p in inspect.signature(run).parameters.items()
            if name not in own and str(hints[name].__metadata__[0].rich_help_panel).startswith(CHOOSES_CASES)
        ]
        mine = [
            p.replace(annotation=own_hints[name], kind=p.KEYWORD_ONLY)
            for name, p in own.items()
            if p.kind is not p.VAR_KEYWORD
        ]

        @wraps(command)
        def wrapper(**given: Any) -> None:
            command(**given)

        first = [p for p in mine if p.default is p.empty]
        all_of_them = [*first, *theirs, *(p for p in mine if p not in first)]
        wrapper.__signature__ = inspect.Signature(all_of_them)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in all_of_them}
        return wrapper

    return decorated


def ab(
    a: Annotated[
        str,
        builds(
            "--a",
            metavar="BUILD",
            help="The baseline: an interpreter that has it (/venvs/main/bin/python), or code: a backend's name, "
            "./file.py:function, pkg.mod:object.",
        ),
    ],
    b: Annotated[str, builds("--b", metavar="BUILD", help="What to judge: of the same sort.")],
    python: Annotated[
        list[str] | None,
        builds("--python", metavar="NAME=PATH", help="Where --a and --b are code: the interpreter of one of them."),
    ] = None,
    device: Annotated[str, how(metavar="DEVICE", help="auto, cuda:N, cpu, or fake (simulated, for a try).")] = "auto",
    time_limit: Annotated[str, how(metavar="TIME", help="90s, 10m, 1h for all of it.")] = "10m",
    seed: Annotated[int | None, how(metavar="N", help="Of the inputs and the order of the cells.")] = None,
    metric: Metric = None,
    expect: Expect = None,
    margin: Margin = None,
    margins: MarginsFile = None,
    inconclusive: Inconclusive = "fail",
    missing: Missing = "fail",
    format: Format = None,
    every: Every = False,
    out: Annotated[
        Path | None, output("--out", metavar="DIR", help="For a.jsonl and b.jsonl. Two new files in results/ else.")
    ] = None,
    **axes: Any,
) -> None:
    """Measure two builds in turns, A B B A, in fresh processes, until every cell is decided; then judge as gate does.

    What drifts is in both, and falls out. What -b names may differ; all else must be alike, or named by --expect.

    Exit code 0: pass; 1: regression; 2: bad input; 3: inconclusive; 4: not comparable.

    attnbench ab --a /venvs/main/bin/python --b /venvs/pr/bin/python -b fa2 --seqlen 1k-16k
    attnbench ab --a old.py:attention --b new.py:attention --suite quick --margin 2%
    attnbench ab --a sdpa-flash --b triton --causal --pass fwd --time-limit 5m
    """
    from rich.console import Console

    from attnbench.ab import measure
    from attnbench.sizes import parse_duration
    from attnbench.suite import settings

    judged_by = request_of(metric, expect, margin, margins, inconclusive, missing)
    wanted = outputs(format or ())
    suite, tokens, backends = (axes.pop(name) for name in ("suite", "tokens", "backend"))
    options = {"axes": axes, "tokens": tokens, "backends": backends, "time_limit": time_limit, "policy": {"seed": seed}}
    request = measure.Request(
        a,
        b,
        judged_by,
        suite,
        settings(options),
        device,
        parse_duration(time_limit, "--time-limit"),
        tuple(python or ()),
        out,
        tuple(sys.argv[1:]),
    )
    with _live(Console(stderr=True, highlight=False)) as live:
        outcome = measure.ab(request, live)
    if outcome.judgement:
        write(outcome.judgement, wanted, every)
    else:
        print("attnbench: interrupted before a pair of turns was measured", file=sys.stderr)
    if outcome.paths and outcome.judgement:
        again = {
            "--metric": metric,
            "--expect": expect,
            "--margin": margin,
            "--margins": [margins] if margins else None,
            "--inconclusive": [inconclusive],
            "--missing": [missing],
        }
        words = [f"{option}={value}" for option, values in again.items() for value in values or () if value != "fail"]
        print(f"Judge again: {shlex.join(['attnbench', 'gate', *map(str, outcome.paths), *words])}", file=sys.stderr)
    raise typer.Exit(outcome.exit_code)


@contextmanager
def _live(console: Any) -> Iterator[Live]:
    """Interrupted before the first turn, it says so and ends with its exit code."""
    from attnbench.report.gate.live import Live

    live = Live(console)
    try:
        yield live
    except (KeyboardInterrupt, Terminated) as end:
        live.close()
        print("attnbench: interrupted before anything was measured", file=sys.stderr)
        sys.exit(EXIT_TERMINATED if isinstance(end, Terminated) else EXIT_INTERRUPTED)
    finally:
        live.close()
