"""The options that choose what to measure, where and with which interpreters; `run` and `ab` share them.

The options that multiply have the names of the fields of run.axes.Axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

shape = partial(typer.Option, rich_help_panel="What to measure (lists multiply; each option replaces the suite's)")
how = partial(typer.Option, rich_help_panel="How to measure")

Suite = Annotated[
    str, shape(metavar="NAME|FILE", help="A shipped suite (`attnbench suites` lists them), or a YAML file of your own.")
]
Backend = Annotated[
    list[str] | None,
    shape(
        "--backend",
        "-b",
        metavar="NAMES",
        help="Names, patterns such as sdpa-*, and !name to leave one out. Your own code: ./file.py:function or "
        "pkg.mod:object. Default: every backend that works here.",
    ),
]
Seqlen = Annotated[
    str | None,
    shape(
        metavar="SIZES",
        help="Sequence lengths: 1k-64k (powers of two), 1k,3000,8k (a list), 1k-8k:1k (with a step); 1k is 1024.",
    ),
]
SeqlenQ = Annotated[
    str | None,
    shape(metavar="SIZES", help="Query lengths, if they differ from the key lengths: 1 is decoding."),
]
Headdim = Annotated[
    str | None, shape(metavar="SIZES", help="Head dimensions: 64,128. 192-128: 192 for q and k, 128 for v.")
]
Dtype = Annotated[str | None, shape(metavar="NAMES", help="bf16,fp16,fp32,fp8; fp8 is forward only.")]
Causal = Annotated[bool | None, shape("--causal/--full", help="Only one of the two masks. Default: both.")]
Direction = Annotated[
    str | None, shape("--pass", metavar="NAMES", help="fwd,bwd,fwd_bwd: forward, backward, or both timed as one.")
]
Batch = Annotated[str | None, shape(metavar="SIZES", help="Batch sizes, in place of --tokens.")]
Tokens = Annotated[
    str | None, shape(metavar="SIZE", help="Tokens in a batch: the batch size is tokens / seqlen. Default: 16k.")
]
Nheads = Annotated[str | None, shape(metavar="SIZES", help="Query heads. Default: 2048 / headdim.")]
NheadsK = Annotated[
    str | None, shape(metavar="SIZES", help="Key and value heads. Fewer than query heads: GQA; 1: MQA.")
]
Window = Annotated[
    str | None,
    shape(
        metavar="SIZES",
        help="Sliding windows: 1k (to the left, and to both sides if not causal), 512/0 or 512/512 (left/right), none.",
    ),
]
Softcap = Annotated[
    str | None, shape(metavar="NUMBERS", help="Limits of the scores: with 30, s becomes 30 tanh(s / 30); none,30.")
]
Dropout = Annotated[
    str | None, shape(metavar="NUMBERS", help="The share of probabilities that are dropped, as in training: none,0.1.")
]

AXES = (
    *("seqlen", "seqlen_q", "headdim", "dtype", "causal", "direction", "batch", "nheads", "nheads_k"),
    *("window", "softcap", "dropout"),
)
Device = Annotated[
    str, how("--device", metavar="DEVICE", help="auto, cuda:N, cpu, or fake (a simulated GPU, to try the commands).")
]
Python = Annotated[
    list[str] | None,
    how(
        "--python",
        metavar="NAME=PATH",
        help="Run a backend in an interpreter of its own: fa4=/opt/fa4/bin/python.",
    ),
]


def axes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a command's arguments that are axes; None stands for one that was not given."""
    return {name: given[name] for name in AXES}
