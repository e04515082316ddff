"""`attnbench profile`: the kernels, memory and traffic of one call, of one backend or several."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import live
from attnbench.core.case import CACHE_DTYPES, DATA, DIRECTIONS, DTYPES, LAYOUTS
from attnbench.core.lengths import PATTERNS
from attnbench.core.masks import MASKS

one = partial(typer.Option, rich_help_panel="The case (one value each)")
how = partial(typer.Option, rich_help_panel="How")
files = partial(typer.Option, rich_help_panel="Files and output")


@dataclass(frozen=True)
class OneCase:
    """The options that choose the case and the backends."""

    backend: Annotated[
        list[str] | None,
        one(
            "--backend",
            "-b",
            metavar="NAMES",
            help="One, or several side by side: eager,triton.",
            autocompletion=complete.several(complete.backends),
        ),
    ] = None
    seqlen: Annotated[str | None, one(metavar="SIZE", help="8k by default; k = 1024.")] = None
    seqlen_q: Annotated[str | None, one(metavar="SIZE", help="Query length where it differs.")] = None
    headdim: Annotated[str | None, one(metavar="SIZE", help="128 by default.")] = None
    dtype: Annotated[
        str | None,
        one(metavar="NAME", help="bf16 (default), fp16, fp32 or fp8.", autocompletion=complete.one(DTYPES)),
    ] = None
    causal: Annotated[bool | None, one("--causal/--full", metavar="", help="The mask; full by default.")] = None
    direction: Annotated[
        str | None,
        one("--pass", metavar="NAME", help="fwd (default), bwd or fwd_bwd.", autocompletion=complete.one(DIRECTIONS)),
    ] = None
    batch: Annotated[str | None, one(metavar="SIZE", help="16k / seqlen by default.")] = None
    nheads: Annotated[str | None, one(metavar="SIZE", help="Query heads. 2048 / headdim by default.")] = None
    nheads_k: Annotated[str | None, one(metavar="SIZE", help="Key and value heads: fewer than --nheads is GQA.")] = None
    window: Annotated[str | None, one(metavar="SIZE", help="Sliding window: 1k, or left/right: 512/0.")] = None
    softcap: Annotated[str | None, one(metavar="NUMBER", help="Scores become 30 tanh(score / 30): 30.")] = None
    dropout: Annotated[str | None, one(metavar="NUMBER", help="Of the probabilities, as in training: 0.1.")] = None
    layout: Annotated[
        str | None,
        one(metavar="NAME", help="native (default), bshd, bhsd or packed.", autocompletion=complete.one(LAYOUTS)),
    ] = None
    data: Annotated[
        str | None,
        one(
            metavar="NAME",
            help="normal (default), outliers, uniform, zeros or decaying.",
            autocompletion=complete.one(DATA),
        ),
    ] = None
    lengths: Annotated[
        str | None,
        one(
            metavar="NAME",
            help="A ragged batch: uniform, longtail, ... or a list, 4k+2*1k.",
            autocompletion=complete.one(PATTERNS),
        ),
    ] = None
    page_size: Annotated[str | None, one(metavar="SIZE", help="k and v in a cache of pages of so many tokens.")] = None
    cache_dtype: Annotated[
        str | None,
        one(metavar="NAME", help="Of that cache: same (as q), fp8.", autocompletion=complete.one(CACHE_DTYPES)),
    ] = None
    sink: Annotated[
        bool | None, one("--sink/--no-sink", metavar="", help="A learnt logit of each head joins the softmax.")
    ] = None
    alibi: Annotated[
        bool | None, one("--alibi/--no-alibi", metavar="", help="Scores fall with distance, by a slope of each head.")
    ] = None
    mask: Annotated[
        str | None,
        one(metavar="NAME", help="prefix:1k, strided:256, random:0.1, ...", autocompletion=complete.one(MASKS)),
    ] = None
    append: Annotated[
        bool | None, one("--append/--no-append", metavar="", help="A call writes its keys and values there first.")
    ] = None
    latent: Annotated[
        bool | None, one("--latent/--no-latent", metavar="", help="MLA with absorbed weights, DeepSeek-V3's sizes.")
    ] = None
    softmax_scale: Annotated[str | None, one(metavar="NUMBER", help="1 / sqrt(headdim) by default.")] = None
    ranks: Annotated[
        str | None, one(metavar="N", help="Devices that split the sequence; the timeline is of the first.")
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a suite that these options replace, for run.suite.parse_options."""
        axes = asdict(self)
        return {"backends": axes.pop("backend"), "axes": axes}


@options.grouped
def profile(
    *,
    case: OneCase,
    device: Annotated[
        str, how("--device", metavar="DEVICE", help="auto, cuda:N or cpu; with --ranks cuda:0-3 too.")
    ] = "auto",
    ncu: Annotated[
        bool,
        how("--ncu/--no-ncu", metavar="", show_default=False, help="HBM traffic by Nsight Compute (where on PATH)."),
    ] = True,
    counters: Annotated[
        bool,
        how(
            "--counters/--no-counters",
            metavar="",
            show_default=False,
            help="How busy each unit was in each kernel, and what bounds it (Nsight Compute; half a minute a backend).",
        ),
    ] = False,
    allow_busy: options.AllowBusy = False,
    python: Annotated[
        list[str] | None, how("--python", metavar="NAME=PATH", help="The interpreter of a backend's worker.")
    ] = None,
    keep: Annotated[
        Path | None,
        files(
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
    from attnbench.report.progress.progress_line import ProgressLine
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
