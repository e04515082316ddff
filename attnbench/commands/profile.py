"""`attnbench profile`: the kernels, memory and traffic of one call, of one backend or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live

case = options.Panel("The case (one value each)")


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.OnDevice):
    """The options of `attnbench profile`."""

    backend: list[str] | None = options.backend("One, or several side by side: eager,triton.", case)
    axes: Mapping[str, Any] = options.axes(case, one=True)
    device: str = options.device("auto, cuda:N or cpu; with --ranks cuda:0-3 too.")
    ncu: bool = options.how.flag(
        "HBM traffic by Nsight Compute (where on PATH).", "--ncu/--no-ncu", default=True, show_default=False
    )
    counters: bool = options.how.flag(
        "How busy each unit was in each kernel, and what bounds it (Nsight Compute; half a minute a backend).",
        "--counters/--no-counters",
        show_default=False,
    )
    keep: Path | None = options.files(
        "DIR",
        "The folder for a Chrome trace of one call (https://ui.perfetto.dev), with pyinstrument a flame graph of the "
        "host's work, with nsys an nsys-rep, and with --counters an ncu-rep.",
    )


@options.command
def profile(given: Options) -> None:
    """Profile one call: its kernels on a timeline, its memory, how close to the roofline, what it moves through HBM.

    attnbench profile -b triton --seqlen 8k --causal --keep traces/
    attnbench profile -b eager,sdpa-flash,triton --seqlen 4k --pass bwd
    attnbench profile -b sdpa-cudnn,triton --seqlen 16k --causal --counters
    attnbench profile -b ring-allgather-cudnn,ulysses-sdpa-cudnn --ranks 2 --seqlen 64k --batch 1 --causal

    Exit code 0: done; 1: there is no profile; 2: bad input, or output that cannot be written; 5: a result is wrong.
    """
    wanted = given.wanted()
    from attnbench.analysis.profile.document import document
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.profile import profile as profiles

    settings = options.settings(given)
    with live(ProgressLine, "the profile was complete") as line:
        outcome = profiles.profile(
            settings,
            line.say,
            device=given.device,
            keep=given.keep,
            traffic=given.ncu,
            counters=given.counters,
            pythons=given.python or (),
            allow_busy=given.allow_busy,
        )
    raise typer.Exit(output.write(document(outcome), wanted))
