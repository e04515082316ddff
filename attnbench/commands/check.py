"""`attnbench check`: whether results are right, in seconds, without timing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import live

cases = options.Panel("The cases (each option replaces the default named in it)")
HELPS = {  # help texts of axes, where they differ from the table's
    "dtype": "bf16,fp16 by default; on a CPU fp32,bf16.",
    "direction": "fwd,bwd by default; also fwd_bwd.",
    "headdim": "64,128 by default.",
    "causal": "--causal: only causal masks; --full: only full masks.",
}


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.OnDevice):
    """The options of `attnbench check`."""

    what: list[str] | None = options.argument(
        "BACKENDS",
        "Your own code, ./file.py:function\\[block_m=64,128] or pkg.mod:object; names, patterns.",
        None,
        autocompletion=complete.several(complete.backends),
    )
    backend: list[str] | None = options.backend("Backends to check, in place of the argument BACKENDS.", options.plain)
    axes: Mapping[str, Any] = options.axes(cases, HELPS)
    wrong: Path | None = cases("FILE", "Check only the cases that were WRONG in this run file.")
    untrusted: bool = options.untrusted()
    trust: bool = options.trust()
    sanitize: bool = options.how.flag(
        "Run a few cases under NVIDIA's compute-sanitizer too: what it finds, as a race or a read of memory that was "
        "never written, makes a right result WRONG. Takes minutes."
    )
    timeout: str = options.how("TIME", "Longest time of one case: 30s, 5m; its process is then killed.", "60s")


@options.command
def check(given: Options) -> None:
    """Check whether a kernel is right, without timing: small shapes that show bugs, by the tolerance of `run`.

    attnbench check ./mine.py:attention
    attnbench check ./mine.py:attention --headdim 64 --pass fwd --dtype bf16
    attnbench check 'sdpa-*' triton

    Exit code 0: right; 5: wrong; 1: a case failed, nothing could be checked, one of your functions was not checked in
    any case, or a tool of --sanitize gave no answer. A function says that it does not support a case by raising
    NotImplementedError. After Ctrl-C (130) it shows what it has found.
    """
    wanted = given.wanted()
    from attnbench.analysis.check.document import document
    from attnbench.core.sizes import parse_duration
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.check import check as checked

    seconds = parse_duration(given.timeout, "--timeout")
    # Nothing is timed, so waiting threads may sleep. Beside other work, spinning threads would take four times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with live(ProgressLine, "the check was complete") as line:
        run, interrupt = checked(
            [*(given.what or ()), *(given.backend or ())],
            options.settings(given, backends=None),
            line.say,
            wrong=given.wrong,
            trust=given.trust,
            device=given.device,
            timeout=seconds,
            pythons=given.python or (),
            allow_busy=given.allow_busy,
            sanitize=given.sanitize,
            untrusted=given.untrusted,
        )
    code = output.write(document(run), wanted)
    raise typer.Exit(interrupt or code)
