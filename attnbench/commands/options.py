"""The options that choose what to measure and where, as `run` and `ab` have them.

The names of what multiplies are those of axes.Axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

shape = partial(typer.Option, rich_help_panel="What to measure (lists multiply; each replaces the suite's)")

Suite = Annotated[str, shape(metavar="NAME|FILE", help="A shipped suite (attnbench suites lists them) or a YAML file.")]
Backend = Annotated[
    list[str] | None,
    shape(
        "--backend",
        "-b",
        metavar="NAMES",
        help="Names, globs (sdpa-*), !name to leave one out; your own code: ./file.py:function, pkg.mod:object.",
    ),
]
Seqlen = Annotated[
    str | None,
    shape(metavar="SIZES", help="1k-64k (powers of two), 1k,3000,8k (a list), 1k-8k:1k (with a step); k = 1024."),
]
SeqlenQ = Annotated[
    str | None, shape(metavar="SIZES", help="Query length where it differs: 1 for decode, others for cross attention.")
]
Headdim = Annotated[str | None, shape(metavar="SIZES", help="64,128 or 192-128 (queries and keys 192, values 128).")]
Dtype = Annotated[str | None, shape(metavar="NAMES", help="bf16,fp16,fp32,fp8 (forward only).")]
Causal = Annotated[bool | None, shape("--causal/--full", metavar="", help="One mask only; both by default.")]
Direction = Annotated[str | None, shape("--pass", metavar="NAMES", help="fwd,bwd,fwd_bwd.")]
Batch = Annotated[str | None, shape(metavar="SIZES", help="Batch sizes, in place of --tokens.")]
Tokens = Annotated[str | None, shape(metavar="SIZE", help="Batch = tokens / seqlen. 16k by default.")]
Nheads = Annotated[str | None, shape(metavar="SIZES", help="Query heads. 2048 / headdim by default.")]
NheadsK = Annotated[
    str | None, shape(metavar="SIZES", help="Key and value heads: fewer than --nheads is GQA, 1 is MQA.")
]
Window = Annotated[
    str | None,
    shape(metavar="SIZES", help="Sliding window: 1k (keys to the left; both sides if not causal), 512/0, 512/512."),
]
Softcap = Annotated[str | None, shape(metavar="NUMBERS", help="Scores become 30 tanh(score / 30): none,30.")]
Dropout = Annotated[str | None, shape(metavar="NUMBERS", help="Of the probabilities, as in training: none,0.1.")]

AXES = (
    *("seqlen", "seqlen_q", "headdim", "dtype", "causal", "direction", "batch", "nheads", "nheads_k"),
    *("window", "softcap", "dropout"),
)
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        rich_help_panel="How",
        help="auto, cuda:N, cpu, or fake (simulated, for a try).",
    ),
]


def axes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's arguments those that are axes; None where not given."""
    return {name: given[name] for name in AXES}
