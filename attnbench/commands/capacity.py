"""`attnbench capacity`: the longest sequence or the largest batch that fits and is right."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import live, read_runs, results_line, tell
from attnbench.core.errors import UserError, one_of
from attnbench.core.text import count
from attnbench.render.document import with_damage

if TYPE_CHECKING:
    from attnbench.core.record import Search
    from attnbench.run.session import Recording

OF = ("seqlen", "batch")
HELPS = {  # help texts of axes, where they differ from the table's
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


CASES = ("of", "axes", "model", "tp", "phase")  # the fields of Options that choose the search


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.OnDevice, options.WhichModel):
    """The options of `attnbench capacity`."""

    results: list[Path] | None = options.argument(
        "RUN|DIR", "Files of earlier searches, to show; nothing is run.", None
    )
    backend: list[str] | None = options.backend(
        "Names, patterns, your own code ./file.py:function. Default: every backend that works here."
    )
    of: str = options.shape("NAME", "What grows: seqlen or batch.", "seqlen", autocompletion=complete.one(OF))
    axes: Mapping[str, Any] = options.axes(helps=HELPS)
    call_limit: str = options.how("TIME", "A size is too slow where one call takes longer.", "10s")
    memory: str | None = options.how(
        "SIZE", "Use this much memory of each device: 24g, 512m; on a CPU the check included. Default: all."
    )
    time_limit: str | None = options.how("TIME", "Begin no step after this time, as in 10m; --resume goes on.")
    allow_wrong: bool = options.allow_wrong()
    trust: bool = options.trust()
    dry_run: bool = options.dry_run("Show where each search would start; run nothing.")
    out: Path | None = options.out()
    resume: Path | None = options.files(
        "FILE", "Go on with the searches of a file that are not done; -b names its own code where that lies now."
    )


@options.command
def capacity(given: Options) -> None:
    """Find the longest sequence, or the largest batch, that fits and is right, by backend, pass and dtype.

    Sizes are doubled and bisected to a sixteenth of an octave (4.4 %), each checked against the reference. The result
    names what stops the next size: memory, a wrong result, a refusal, or a call that takes longer than --call-limit.

    attnbench capacity -b 'sdpa-*,fa*' --time-limit 10m
    attnbench capacity --model llama-3.1-8b --phase train -b fa4,cudnn
    attnbench capacity --of batch --seqlen 8k -b triton
    attnbench capacity --ranks 1,2,4 -b ulysses-fa3 --memory 8g
    attnbench capacity results/*-capacity-*.jsonl --html capacity.html
    attnbench capacity --device fake -b fake

    Exit code 0: done; 1: nothing fits, or nothing could be run; 2: bad input, or output that cannot be written; 5: a
    wrong result; 129, 130, 143: hung up, interrupted, terminated; --resume goes on.
    """
    wanted = given.wanted()
    from attnbench.analysis.capacity.document import document, plan_document

    measuring = ("resume", "out", "dry_run", "python", "time_limit", "memory", "device", "call_limit")
    if given.results and options.changed(given, ("backend", *CASES, *measuring)):
        raise UserError("with files of earlier searches nothing is run; leave out the options of a search")
    if given.resume and options.changed(given, (*CASES, "out", "memory", "call_limit", "device", "python")):
        raise UserError(f"--resume uses the settings of {given.resume}; leave out the others")
    if given.results:
        read, damage = read_runs(given.results)
        runs = [run for _, run in read if run.search]
        others = [path for path, run in read if not run.search]
        if wrong := [path for path in others if path in given.results or not runs]:
            raise UserError(f"{wrong[0]} is no search of attnbench capacity; attnbench report shows it")
        if others:
            tell(f"attnbench: left out: {count(len(others), 'run')} without a search, which attnbench report shows")
        shown = with_damage(document(runs, given.allow_wrong), damage)
        raise typer.Exit(output.write(shown, wanted))
    ended = _searched(given)
    shown = plan_document(ended.measured) if given.dry_run else document([ended.measured], given.allow_wrong)
    code = output.write(shown, wanted)
    raise typer.Exit(ended.interrupt or code)


def _search(given: Options) -> Search:
    """Return the search that the options describe. Raises UserError for options that do not go together."""
    from attnbench.core.record import Search
    from attnbench.core.sizes import parse_duration

    of = one_of("--of", given.of, OF)
    if of in given.axes:
        other = "batch" if of == "seqlen" else "seqlen"
        said = {"seqlen": "the length", "batch": "the batch"}
        raise UserError(f"--{of}: {said[of]} is what is searched; give --of {other} to search {said[other]}")
    if (call_limit := parse_duration(given.call_limit, "--call-limit")) <= 0:
        raise UserError("--call-limit: it is not above 0")
    named = f"{given.model} {given.phase or 'prefill'}" if given.model else ""
    return Search("batch" if of == "batch" else "seqlen", call_limit, _parse_bytes(given.memory), named)


def _parse_bytes(text: str | None) -> int | None:
    """Return 2 * 2**30 for "2g". Raises UserError."""
    if text is None:
        return None
    units = {"m": 2**20, "g": 2**30}
    number, unit = text.strip()[:-1], text.strip()[-1:].lower()
    if unit not in units or not re.fullmatch("0*[1-9][0-9]{0,5}", number):
        raise UserError(f"--memory: {text!r} is not a size in MiB or GiB, as in 512m or 24g")
    return int(number) * units[unit]


def _searched(given: Options) -> Recording:
    """Search, or go on with a search."""
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run import capacity as searches

    limit = parse_duration(given.time_limit, "--time-limit") if given.time_limit else None
    settings = options.settings(given, time_limit=None)
    request = options.request(searches.Request, given, settings=settings, search=_search(given), time_limit=limit)
    with live(ProgressLine, "anything was measured") as line:
        if given.resume:
            ended = searches.resume(given.resume, request, line.say)
        else:
            ended = searches.search_capacity(request, line.say)
    if not given.dry_run:
        tell(results_line(ended.path))
    if ended.interrupt:
        tell(f"attnbench: interrupted; attnbench capacity --resume {shlex.quote(str(ended.path))} goes on")
    return ended
