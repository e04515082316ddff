"""`attnbench capacity`: the longest sequence or the largest batch that fits and is right."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import command_line, live, one_of, read_runs, results_line, tell
from attnbench.core.errors import UserError

if TYPE_CHECKING:
    from attnbench.core.record import Run, Search

OF = ("seqlen", "batch")
HELPS = {  # of axes
    "seqlen": "With --of batch: the sequence length. Default: 4k.",
    "batch": "With --of seqlen: the batch. Default: 1.",
    "headdim": "Head dimensions: 64,128. Default: 128; on a CPU 64.",
    "dtype": "bf16 by default; on a CPU fp32.",
    "causal": "Default: causal.",
    "direction": "fwd,fwd_bwd by default; fwd_bwd is training.",
    "nheads": "Query heads. Default: 2048 / headdim.",
    "nheads_k": "Key and value heads.",
    "window": "Sliding windows, as of `attnbench run`.",
    "ranks": "Devices that split each sequence: 1,2,4. With -b 'ring-*,ulysses-*'.",
}


@dataclass(frozen=True)
class Shapes:
    """The options that choose the cases."""

    backend: Annotated[
        list[str] | None,
        options.backend(
            help="Names, patterns, your own code ./file.py:function. Default: every backend that works here."
        ),
    ] = None
    of: Annotated[
        str, options.shape(metavar="NAME", help="What grows: seqlen or batch.", autocompletion=complete.one(OF))
    ] = "seqlen"
    axes: Annotated[Mapping[str, Any], options.OfAxes(helps=HELPS)] = field(default_factory=dict)


@options.grouped
def capacity(
    *,
    results: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN|DIR", help="Files of earlier searches, to show; nothing is run.")
    ] = None,
    what: Shapes,
    which: options.WhichModel,
    call_limit: Annotated[
        str, options.how(metavar="TIME", help="A size is too slow where one call takes longer.")
    ] = "10s",
    memory: Annotated[
        str | None,
        options.how(
            metavar="SIZE",
            help="Search what fits in so much of each device: 24g, 512m; on a CPU the check is in it. Default: all.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None, options.time_limit(help="Begin no step after this time, as in 10m; --resume goes on.")
    ] = None,
    device: options.Device = "auto",
    python: options.Python = None,
    allow_wrong: options.AllowWrong = False,
    allow_busy: options.AllowBusy = False,
    dry_run: Annotated[bool, options.dry_run(help="Show where each search would start; run nothing.")] = False,
    out: options.Out = None,
    resume: Annotated[Path | None, options.resume(help="Go on with the searches of a file that are not done.")] = None,
    trust: options.Trust = False,
    output_to: output.Output,
) -> None:
    """Find the longest sequence, or the largest batch, that fits and is right, by backend, pass and dtype.

    Sizes are doubled and bisected to a sixteenth of an octave (4.4 %), each checked against the reference. What stops
    the next size is told: memory, a wrong result, a refusal, or a call that takes longer than --call-limit.

    attnbench capacity -b 'sdpa-*,fa*' --time-limit 10m
    attnbench capacity --model llama-3.1-8b --phase train -b fa4,cudnn
    attnbench capacity --of batch --seqlen 8k -b triton
    attnbench capacity --ranks 1,2,4 -b ulysses-fa3 --memory 8g
    attnbench capacity results/*-capacity-*.jsonl --html capacity.html
    attnbench capacity --device fake -b fake

    Exit code 0: done; 1: nothing fits, or nothing could be run; 2: bad input, or output that cannot be written; 5: a
    wrong result; 129, 130, 143: hung up, interrupted, terminated; --resume goes on.
    """
    wanted = output_to.wanted()
    from attnbench.analysis.capacity.document import document, plan_document
    from attnbench.core.sizes import parse_duration

    measuring = resume or out or dry_run or python or time_limit or memory or device != "auto" or call_limit != "10s"
    if results and (measuring or what != Shapes() or which != options.WhichModel()):
        raise UserError("with files of earlier searches nothing is run; leave out the options of a search")
    limit = parse_duration(time_limit, "--time-limit") if time_limit else None
    interrupt = 0
    if results:
        runs = [run for _, run in read_runs(results)]
    else:
        if resume and (out or what != Shapes() or which.model or memory or call_limit != "10s"):
            raise UserError(f"--resume uses the settings of {resume}; leave out the others")
        search = _search(what, which, parse_duration(call_limit, "--call-limit"), memory)
        run, interrupt = _searched(
            what, which, search, device, limit, python or [], out, resume, dry_run, allow_busy, trust
        )
        runs = [run]
    code = output.write(plan_document(runs[0]) if dry_run else document(runs, allow_wrong), wanted)
    raise typer.Exit(interrupt or code)


def _search(what: Shapes, which: options.WhichModel, call_limit: float, memory: str | None) -> Search:
    """Return what is searched. Raises UserError for options that do not go together."""
    from attnbench.core.record import Search

    of = one_of("--of", what.of, OF)
    if of == "seqlen" and "seqlen" in what.axes:
        raise UserError("--seqlen: the length is what is searched; give --of batch to search the batch")
    if of == "batch" and "batch" in what.axes:
        raise UserError("--batch: it is what is searched; give --of seqlen to search the length")
    if call_limit <= 0:
        raise UserError("--call-limit: it is not above 0")
    named = f"{which.model} {which.phase or 'prefill'}" if which.model else ""
    return Search("batch" if of == "batch" else "seqlen", call_limit, _parse_bytes(memory), named)


def _parse_bytes(text: str | None) -> int | None:
    """Return 2 * 2**30 for "2g". Raises UserError."""
    if text is None:
        return None
    units = {"m": 2**20, "g": 2**30}
    number, unit = text.strip()[:-1], text.strip()[-1:].lower()
    if unit not in units or not number.isascii() or not number.isdigit() or not 0 < int(number[:9]) < 10**6:
        raise UserError(f"--memory: {text!r} is not a size in MiB or GiB, as in 512m or 24g")
    return int(number[:9]) * units[unit]


def _searched(
    what: Shapes,
    which: options.WhichModel,
    search: Search,
    device: str,
    time_limit: float | None,
    python: list[str],
    out: Path | None,
    resume: Path | None,
    dry_run: bool,
    allow_busy: bool,
    trust: bool,
) -> tuple[Run, int]:
    """Search, or go on with a search; return its run, and the exit code of an interrupt, else 0."""
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run import capacity as searches
    from attnbench.run.suite import parse_options

    settings = parse_options({"backends": what.backend, "axes": what.axes, **which.settings})
    with live(ProgressLine, "anything was measured") as line:
        if resume:
            ended = searches.resume(
                resume, line.say, time_limit=time_limit, dry_run=dry_run, allow_busy=allow_busy, trust=trust
            )
        else:
            request = searches.Request(
                settings, search, device, time_limit, tuple(python), out, dry_run, command_line(), allow_busy
            )
            ended = searches.search_capacity(request, line.say)
    if not dry_run:
        tell(results_line(ended.path))
    if ended.interrupt:
        tell(f"attnbench: interrupted; attnbench capacity --resume {shlex.quote(str(ended.path))} goes on")
    return ended.measured, ended.interrupt
