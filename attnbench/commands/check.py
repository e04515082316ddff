"""`attnbench check`: whether results are right, in seconds, without timing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import live

cases = partial(typer.Option, rich_help_panel="The cases (each option replaces what they have)")


HELPS = {  # of axes
    "dtype": "bf16,fp16 by default; on a CPU fp32,bf16.",
    "direction": "fwd,bwd by default; also fwd_bwd.",
    "headdim": "64,128 by default.",
    "causal": "Only one of the two masks.",
}


@dataclass(frozen=True)
class Cases:
    """The options that choose the cases."""

    axes: Annotated[Mapping[str, Any], options.OfAxes(cases, HELPS)] = field(default_factory=dict)


@options.grouped
def check(
    *,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BACKENDS",
            help="Your own code, ./file.py:function\\[block_m=64,128] or pkg.mod:object; names, patterns.",
            autocompletion=complete.several(complete.backends),
        ),
    ] = None,
    backend: Annotated[list[str] | None, options.backend(help="The same.", rich_help_panel=None)] = None,
    chosen: Cases,
    wrong: Annotated[
        Path | None, cases(metavar="FILE", help="In their place, the cases of the wrong results in this run file.")
    ] = None,
    trust: options.Trust = False,
    device: options.Device = "auto",
    timeout: Annotated[
        str, options.how(metavar="TIME", help="Of one case: 30s, 5m; its process is then killed.")
    ] = "60s",
    allow_busy: options.AllowBusy = False,
    python: options.Python = None,
    output_to: output.Output,
) -> None:
    """Say whether a kernel is right: small shapes that tell, against the reference and tolerance of `run`, no timing.

    attnbench check ./mine.py:attention
    attnbench check ./mine.py:attention --headdim 64 --pass fwd --dtype bf16
    attnbench check 'sdpa-*' triton

    Exit code 0: right; 5: wrong; 1: a case failed, or nothing could be checked, or nothing of one of your functions. A
    function says that it does not support a case by raising NotImplementedError. After Ctrl-C (130) it shows what it
    has found.
    """
    wanted = output_to.wanted()
    from attnbench.analysis.check.document import document
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.check import check as checked
    from attnbench.run.suite import parse_options

    seconds = parse_duration(timeout, "--timeout")
    # Nothing is timed, so threads that wait may sleep. Beside other work those that spin cost four times the time.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with live(ProgressLine, "the check was complete") as line:
        run, interrupt = checked(
            [*(what or ()), *(backend or ())],
            parse_options({"axes": chosen.axes}),
            line.say,
            wrong=wrong,
            trust=trust,
            device=device,
            timeout=seconds,
            pythons=python or (),
            allow_busy=allow_busy,
        )
    code = output.write(document(run), wanted)
    raise typer.Exit(interrupt or code)
