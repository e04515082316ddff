"""`attnbench profile`: the kernels, memory and traffic of one call, of one backend or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live

CASE = "The case (one value each)"


@dataclass(frozen=True)
class OneCase:
    """The options that choose the case and the backends."""

    backend: Annotated[
        list[str] | None, options.backend(help="One, or several side by side: eager,triton.", rich_help_panel=CASE)
    ] = None
    axes: Annotated[Mapping[str, Any], options.OfAxes(partial(typer.Option, rich_help_panel=CASE), one=True)] = field(
        default_factory=dict
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a suite that these options replace, for run.suite.parse_options."""
        return {"backends": self.backend, "axes": self.axes}


@options.grouped
def profile(
    *,
    case: OneCase,
    device: Annotated[str, options.device(help="auto, cuda:N or cpu; with --ranks cuda:0-3 too.")] = "auto",
    ncu: Annotated[
        bool,
        options.how(
            "--ncu/--no-ncu", metavar="", show_default=False, help="HBM traffic by Nsight Compute (where on PATH)."
        ),
    ] = True,
    counters: Annotated[
        bool,
        options.how(
            "--counters/--no-counters",
            metavar="",
            show_default=False,
            help="How busy each unit was in each kernel, and what bounds it (Nsight Compute; half a minute a backend).",
        ),
    ] = False,
    allow_busy: options.AllowBusy = False,
    python: options.Python = None,
    keep: Annotated[
        Path | None,
        options.files(
            metavar="DIR",
            help="Write there a Chrome trace of one call (https://ui.perfetto.dev), with pyinstrument a flame graph of "
            "the host's work, with nsys an nsys-rep, and with --counters an ncu-rep.",
        ),
    ] = None,
    output_to: output.Output,
) -> None:
    """Profile one call: its kernels on a timeline, its memory, how close to the roofline, what it moves through HBM.

    attnbench profile -b triton --seqlen 8k --causal --keep traces/
    attnbench profile -b eager,sdpa-flash,triton --seqlen 4k --pass bwd
    attnbench profile -b sdpa-cudnn,triton --seqlen 16k --causal --counters
    attnbench profile -b ring-allgather-cudnn,ulysses-sdpa-cudnn --ranks 2 --seqlen 64k --batch 1 --causal

    Exit code 0: done; 1: there is no profile; 2: bad input, or output that cannot be written; 5: a result is wrong.
    """
    wanted = output_to.wanted()
    from attnbench.analysis.profile.document import document
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.profile import profile as profiles
    from attnbench.run.suite import parse_options

    settings = parse_options(case.settings)
    with live(ProgressLine, "the profile was complete") as line:
        outcome = profiles.profile(
            settings,
            line.say,
            device=device,
            keep=keep,
            traffic=ncu,
            counters=counters,
            pythons=python or (),
            allow_busy=allow_busy,
        )
    raise typer.Exit(output.write(document(outcome), wanted))
