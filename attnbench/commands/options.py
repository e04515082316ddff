"""Groups of options: a group is a dataclass, and `grouped` makes it options of a command.

The axes of WhatToMeasure have the names of the fields of run.axes.Axes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, get_type_hints

import typer

from attnbench.commands import complete
from attnbench.commands.shared import one_of
from attnbench.core.case import CACHE_DTYPES, DATA, DIRECTIONS, DTYPES, LAYOUTS
from attnbench.core.lengths import PATTERNS
from attnbench.core.masks import MASKS
from attnbench.core.models import PHASES

shape = partial(typer.Option, rich_help_panel="What to measure (lists multiply; each option replaces the suite's)")
how = partial(typer.Option, rich_help_panel="How to measure")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which each parameter that is a group of options is replaced by the group's fields.

    The command itself gets the group with the values that were given. A group is a dataclass with options for fields.
    """
    groups: dict[str, Any] = {}
    parameters = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            types = get_type_hints(groups[name], include_extras=True)
            for field in dataclasses.fields(groups[name]):
                option = inspect.Parameter(
                    field.name, parameter.kind, default=field.default, annotation=types[field.name]
                )
                parameters.append(option)
        else:
            parameters.append(parameter)

    def with_groups(**given: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group) if field.name in given]
            given[name] = group(**{field: given.pop(field) for field in fields})
        command(**given)

    with_groups.__name__, with_groups.__doc__ = command.__name__, command.__doc__
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups


def metric_option(known: Callable[[], Iterable[str]], **settings: Any) -> Any:
    """Return the option --metric of a command that takes the metrics `known`; its value is a list of their names.

    With `-m help` it lists them and ends the command, whatever else is given.
    """

    def names(given: list[str] | None) -> list[str]:
        from attnbench.results.metrics import METRICS

        metrics = {name: METRICS[name] for name in known()}
        asked = [name.strip() for text in given or () for name in text.split(",")]
        if "help" in asked:
            for metric in metrics.values():
                print(f"{metric.name:22} {metric.doc}")
            raise typer.Exit
        return [one_of("--metric", name, tuple(metrics)) for name in dict.fromkeys(asked)]

    return typer.Option(
        "--metric",
        "-m",
        metavar="NAMES",
        callback=names,
        is_eager=True,  # before a missing argument is said
        autocompletion=complete.several(lambda: (*known(), "help")),
        **settings,
    )


@dataclasses.dataclass(frozen=True)
class WhatToMeasure:
    """The options that choose what to measure."""

    suite: Annotated[
        str,
        shape(
            metavar="NAME|FILE",
            help="A shipped suite (`attnbench suites` lists them), or a YAML file of your own.",
            autocompletion=complete.one(complete.suites),
        ),
    ] = "default"
    backend: Annotated[
        list[str] | None,
        shape(
            "--backend",
            "-b",
            metavar="NAMES",
            help="Names, patterns such as sdpa-*, and !name to leave one out. Your own code: ./file.py:function or "
            "pkg.mod:object, also './file.py:f\\[block=64,128]'. Default: every backend that works here.",
            autocompletion=complete.several(complete.backends),
        ),
    ] = None
    seqlen: Annotated[
        str | None,
        shape(
            metavar="SIZES",
            help="Sequence lengths: 1k-64k (powers of two), 1k,3000,8k (a list), 1k-8k:1k (with a step); 1k is 1024.",
        ),
    ] = None
    seqlen_q: Annotated[
        str | None,
        shape(metavar="SIZES", help="Query lengths, if they differ from the key lengths: 1 is decoding."),
    ] = None
    headdim: Annotated[
        str | None, shape(metavar="SIZES", help="Head dimensions: 64,128. 192-128: 192 for q and k, 128 for v.")
    ] = None
    dtype: Annotated[
        str | None,
        shape(
            metavar="NAMES",
            help="bf16,fp16,fp32,fp8; few backends have a backward in fp8.",
            autocompletion=complete.several(DTYPES),
        ),
    ] = None
    causal: Annotated[bool | None, shape("--causal/--full", help="Only one of the two masks. Default: both.")] = None
    direction: Annotated[
        str | None,
        shape(
            "--pass",
            metavar="NAMES",
            help="fwd,bwd,fwd_bwd: forward, backward, or both timed as one.",
            autocompletion=complete.several(DIRECTIONS),
        ),
    ] = None
    batch: Annotated[str | None, shape(metavar="SIZES", help="Batch sizes, in place of --tokens.")] = None
    tokens: Annotated[
        str | None, shape(metavar="SIZE", help="Tokens in a batch: the batch size is tokens / seqlen. Default: 16k.")
    ] = None
    nheads: Annotated[str | None, shape(metavar="SIZES", help="Query heads. Default: 2048 / headdim.")] = None
    nheads_k: Annotated[
        str | None, shape(metavar="SIZES", help="Key and value heads. Fewer than query heads: GQA; 1: MQA.")
    ] = None
    window: Annotated[
        str | None,
        shape(
            metavar="SIZES",
            help="Sliding windows: 1k (to the left, and to both sides if not causal), 512/0 or 512/512 (left/right), "
            "none.",
        ),
    ] = None
    softcap: Annotated[
        str | None, shape(metavar="NUMBERS", help="Limits of the scores: with 30, s becomes 30 tanh(s / 30); none,30.")
    ] = None
    dropout: Annotated[
        str | None,
        shape(metavar="NUMBERS", help="The share of probabilities that are dropped, as in training: none,0.1."),
    ] = None
    layout: Annotated[
        str | None,
        shape(
            metavar="NAMES",
            help="How q, k and v lie in memory: native (as each backend likes them, copies untimed), bshd, bhsd, "
            "packed (views of one tensor). But for native, what a backend copies is timed.",
            autocompletion=complete.several(LAYOUTS),
        ),
    ] = None
    data: Annotated[
        str | None,
        shape(
            metavar="NAMES",
            help="The values of the inputs: normal, outliers (a large channel, and keys that take much of the "
            "attention), uniform, zeros, decaying (with the distance). The time depends on them.",
            autocompletion=complete.several(DATA),
        ),
    ] = None
    lengths: Annotated[
        str | None,
        shape(
            metavar="NAMES",
            help="Ragged batches: uniform, longtail, bimodal, zipf, documents, of --seqlen tokens in the mean, in "
            "shuffled order or longtail/ascending, longtail/descending. Or a list, 4k+2*1k+1x16k, or 2q2k_32q1s16k.",
            autocompletion=complete.several(("none", *PATTERNS)),
        ),
    ] = None
    page_size: Annotated[
        str | None,
        shape(
            metavar="SIZES",
            help="k and v lie in a cache of pages of so many tokens, shuffled, as a server keeps them: none,16,64. The "
            "queries are the last of each sequence: --seqlen-q 1 is decoding, 2k a chunk of a prefill. Forward only.",
        ),
    ] = None
    cache_dtype: Annotated[
        str | None,
        shape(
            metavar="NAMES",
            help="The numbers of that cache: same (as q), fp8 (e4m3, with one factor each for k and v).",
            autocompletion=complete.several(CACHE_DTYPES),
        ),
    ] = None
    sink: Annotated[
        bool | None,
        shape("--sink/--no-sink", help="An attention sink: a learnt logit of each head joins the softmax (gpt-oss)."),
    ] = None
    alibi: Annotated[
        bool | None,
        shape("--alibi/--no-alibi", help="ALiBi: scores fall with the distance of query and key, by a slope a head."),
    ] = None
    mask: Annotated[
        str | None,
        shape(
            metavar="NAMES",
            help="Masks beside causal and window: none, prefix:1k, sink_tokens:4, strided:256, dilated:2, random:0.1 "
            "(of blocks of 128).",
            autocompletion=complete.several(MASKS),
        ),
    ] = None
    append: Annotated[
        bool | None,
        shape(
            "--append/--no-append",
            help="A call first writes the keys and values of its queries into the cache, as a server's step does.",
        ),
    ] = None
    latent: Annotated[
        bool | None,
        shape(
            "--latent/--no-latent",
            help="MLA with absorbed weights: all query heads share one row per token, and v is its first part. By "
            "default DeepSeek-V3's: --headdim 576-512 --nheads 128 --softmax-scale 0.0722.",
        ),
    ] = None
    softmax_scale: Annotated[
        str | None,
        shape(metavar="NUMBERS", help="The factor on the scores before the softmax; none is 1 / sqrt(headdim)."),
    ] = None
    ranks: Annotated[
        str | None,
        shape(
            metavar="NUMBERS",
            help="Devices over which each sequence is split: 1,2,4. 1 is one device. With -b 'ring-*,ulysses-*'; "
            "--device cuda:0-3 names them.",
        ),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a suite that these options replace, for run.suite.parse_options."""
        axes = dataclasses.asdict(self)
        del axes["suite"]
        return {"backends": axes.pop("backend"), "tokens": axes.pop("tokens"), "axes": axes}


@dataclasses.dataclass(frozen=True)
class WhichModel:
    """The options that take heads, dims and windows from models."""

    model: Annotated[
        str | None,
        shape(
            "--model",
            metavar="NAMES",
            help="Heads, head dims, windows and softcap of models: llama-3.1-8b,gemma-2-9b; `attnbench models` lists "
            "them. Each kind of layer is a case.",
            autocompletion=complete.several(complete.models),
        ),
    ] = None
    tp: Annotated[
        int | None, shape("--tp", metavar="N", help="With --model: the heads of one of N devices (tensor parallel).")
    ] = None
    phase: Annotated[
        str | None,
        shape(
            "--phase",
            metavar="NAME",
            help="With --model: prefill (default: as many queries as keys, forward), decode (one query, batch 1 unless "
            "--batch is given), mixed (a chunk of 2k of one sequence beside decoding), train (forward and backward).",
            autocompletion=complete.one(PHASES),
        ),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a suite that these options replace, for run.suite.parse_options."""
        return {"models": self.model, "tp": self.tp, "phase": self.phase}


AllowBusy = Annotated[
    bool,
    how(
        "--allow-busy",
        metavar="",
        help="Measure also on a GPU that other processes use; what is shown then says first not to believe it.",
    ),
]
Trust = Annotated[
    bool,
    how(
        "--trust",
        metavar="",
        help="Run the code and interpreters that the given run file names, also where none would be chosen here.",
    ),
]
Device = Annotated[
    str,
    how(
        "--device",
        metavar="DEVICE",
        help="auto, cuda:N, cpu, or fake (a simulated GPU, to try the commands).",
        autocompletion=complete.one(("auto", "cpu", "cuda", "fake")),
    ),
]
Python = Annotated[
    list[str] | None,
    how(
        "--python",
        metavar="NAME=PATH",
        help="Run a backend in an interpreter of its own: fa4=/opt/fa4/bin/python.",
    ),
]
