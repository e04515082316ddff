"""The axes of cases, as one table: their options, parsers, texts and usual values, and how names and tables show them.

Suites, options, names, titles, table columns and commands that repeat a measurement are made from this table.
core/rules.py says which values exclude each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any

from attnbench.core import masks, step
from attnbench.core.case import CACHE_DTYPES, DATA, DIRECTIONS, DTYPES, KINDS, LAYOUTS, Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.lengths import PATTERNS, describe, parse_lengths, spell
from attnbench.core.sizes import (
    Window,
    format_size,
    parse_headdims,
    parse_numbers,
    parse_optional_sizes,
    parse_sizes,
    parse_windows,
)
from attnbench.core.text import count

_OTHER_NAMES = {  # names in torch and flash-attn -> names here
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8",
    "e4m3": "fp8",
    "forward": "fwd",
    "backward": "bwd",
}


def parse_names(text: str, what: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a comma-separated text. Raises UserError for an unknown name."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            meant = _OTHER_NAMES.get(name.lower().removeprefix("torch."))
            hint = f'; here it is "{meant}"' if meant in known else did_you_mean(name, known)
            raise UserError(f"{what}: unknown {what} {name!r}{hint}")
    return names


def _parse_flag(given: bool | list[bool], **_: str) -> list[bool]:
    return given if isinstance(given, list) else [given]


def _parse_steps(text: str, **_: str) -> tuple[str, ...]:
    """Return the steps of a comma-separated text, "" for "none". Raises UserError for a step that cannot be read."""
    found = ("" if word.strip() == "none" else word.strip() for word in text.split(","))
    try:
        return tuple(str(step.parse(word)) if word else "" for word in found)
    except ValueError as error:
        raise UserError(str(error)) from None


def _flag_text(flag: bool) -> str:
    return str(flag).lower()


def _or_none(value: Any) -> str:
    return str(value or "none")


def _number_text(number: float) -> str:
    """Return a number with as many digits as are needed to read the same number back."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _window_text(window: Window | None) -> str:
    """Return a window as --window reads it, whatever the mask."""
    left, right = window or (None, None)
    if left is None and right is None:
        return "none"
    return "/".join("open" if side is None else str(side) for side in (left, right))


def headdim(case: Case) -> str:
    """Return "128", or "192-128" where values have another headdim than queries and keys."""
    return _headdim_text((case.shape.headdim, case.shape.headdim_v))


def _headdim_text(headdims: tuple[int, int]) -> str:
    return "-".join(map(str, dict.fromkeys(headdims)))


def has_grouped_heads(case: Case) -> bool:
    """Return whether query heads share key and value heads."""
    return case.shape.nheads != case.shape.nheads_k


def heads(case: Case) -> str:
    """Return "16", or "32/8" where there are fewer key heads than query heads."""
    s = case.shape
    return f"{s.nheads}/{s.nheads_k}" if has_grouped_heads(case) else str(s.nheads)


def counted_heads(case: Case) -> str:
    """Return "1 head", "16 heads", or "32/8 heads" where there are fewer key heads than query heads."""
    return f"{heads(case)} heads" if has_grouped_heads(case) else count(case.shape.nheads, "head")


def _long_heads(case: Case) -> str:
    s = case.shape
    return count(s.nheads, "head") + (f", {count(s.nheads_k, 'key head')}" if has_grouped_heads(case) else "")


@cache
def mask(case: Case) -> str:
    """Return "full", "causal", "window (1023, 0)", "causal window (1023, open)", "causal prefix:1k" or "dilated:2"."""
    left, right = ("open" if side is None else str(side) for side in case.window_size)
    window = f"window ({left}, {right})" if case.window_size != (None, None) else ""
    return " ".join(filter(None, ("causal" if case.causal else "", window, masks.without_folder(case.mask)))) or "full"


@cache
def mask_rank(case: Case) -> tuple[bool, bool, bool, str]:
    """Return the sort key of masks: full, causal, then windows, then masks by name."""
    return (bool(case.mask), case.window_size != (None, None), case.causal, mask(case))


def lengths_differ(case: Case) -> bool:
    """Return whether the numbers of queries and keys differ."""
    return case.shape.seqlen_q != case.shape.seqlen_k


def seqlen(case: Case) -> int:
    """Return seqlen_k; for a ragged batch its mean, rounded down."""
    return case.mean_seqlens[1]


def pattern(case: Case) -> str:
    """Return the lengths of a ragged batch in a few words, such as "longtail"; "" for a dense batch."""
    return describe(case.lengths) if case.is_ragged else ""


_FIELDS = {f.name: f.default for f in dataclasses.fields(Case)}


def extra(case: Case, name: str, field: str) -> str:
    """Return a field as "softcap 30"; "" where the case has the usual value."""
    value = getattr(case, field)
    if value == _FIELDS[field]:
        return ""
    if isinstance(value, bool):
        return name
    return f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis: a field of a case, or a size of its shape."""

    name: str  # the name of the field of `run.axes.Axes`
    help: str  # the help of its option for a list
    one: str  # the help of its option for one value
    parser: Callable[..., Sequence[Any]]  # parses what a person writes; `what` names the option in errors
    of: Callable[[Case], Any]  # returns the value of a case
    value: Callable[[Case], Any]  # returns the key by which cases are sorted
    label: Callable[[Case], str]  # returns the text in a title; "" where a title does not need it
    short: Callable[[Case], str] | None = None  # returns the text in a column or row; None: as `label`
    text: Callable[[Any], str] = str  # returns a value as a person writes it
    usual: Any = None  # the value where none is given; None where other axes decide
    field: str = ""  # the field of Case; "" for a size of its shape
    # Title -> value, for the columns of tables; none for a size.
    columns: Mapping[str, Callable[[Case], Any]] = dataclasses.field(default_factory=dict)
    is_extra: bool = False  # names of cases show a value that is not usual: "softcap 30"
    kind: str = ""  # the name that support tables give to cases with a value that is not usual: "sinks"
    said: str = ""  # its name in suites and options, if that is not `name`
    metavar: str = "SIZES"
    words: Sequence[str] = ()  # values that a shell completes
    examples: Sequence[Any] = ()  # values as a person may write them, at least one of them not usual; tests try them
    switch: str = ""  # the option of a flag: "--causal/--full"
    pair: str = ""  # the separator of a value with two parts
    has_option: bool = True
    needs_limit: bool = True  # whether a backend must declare an extra axis, in its Limits and Paste

    @property
    def option(self) -> str:
        """The name of its option, without the dashes."""
        return (self.said or self.name).replace("_", "-")

    def parse(self, given: Any) -> Sequence[Any]:
        """Return the values that a person wrote. Raises UserError, which names the option."""
        return self.parser(given, what=self.option)

    def brief(self, case: Case) -> str:
        """Return the text of a case in a column or row."""
        return (self.short or self.label)(case)


def _size(name: str, help: str, one: str, of: Callable[[Case], Any], **other: Any) -> Axis:
    """Return the axis of a size of the shape."""
    return Axis(**{"name": name, "help": help, "one": one, "of": of, "parser": parse_sizes, "value": of, **other})


def _field(name: str, help: str, one: str, field: str = "", **other: Any) -> Axis:
    """Return the axis of a field of Case. What is not given follows from the field's type, its default and `words`."""
    field = field or name
    default, words = _FIELDS[field], other.get("words", ())
    of = attrgetter(field)
    made: dict[str, Any] = {"of": of, "value": of, "columns": {field: of}, "usual": default}
    made |= {"label": partial(extra, name=name, field=field), "is_extra": "label" not in other}
    if isinstance(default, bool):
        made |= {
            "switch": f"--{name}/--no-{name}",
            "parser": _parse_flag,
            "text": _flag_text,
            "examples": (True, False),
        }
    elif isinstance(default, float):
        made |= {"metavar": "NUMBERS", "parser": parse_numbers, "text": _number_text}
    elif words:
        made |= {"metavar": "NAMES", "parser": partial(parse_names, known=words), "examples": words}
        made["value"] = lambda case: words.index(of(case))
    return Axis(**{"name": name, "help": help, "one": one, "field": field, **made, **other})


_TABLE = (  # in the order of options and columns
    _size(
        "seqlen",
        "Sequence lengths: 1k-64k (powers of two), 1k,3000,8k (a list), 1k-8k:1k (with a step); k = 1024.",
        "8k by default; k = 1024.",
        seqlen,
        text=format_size,
        label=lambda c: f"seqlen {format_size(seqlen(c))}",
        short=lambda c: format_size(seqlen(c)),
        examples=("1k", "3000", "1"),
    ),
    _size(
        "seqlen_q",
        "Query lengths, if they differ from the key lengths: 1 is decoding.",
        "Query length, where it differs from the key length.",
        lambda c: c.mean_seqlens[0],
        text=format_size,
        value=lambda c: c.shape.seqlen_q if lengths_differ(c) else 0,
        label=lambda c: f"seqlen_q {format_size(c.shape.seqlen_q)}" if lengths_differ(c) else "",
        short=lambda c: f"q{format_size(c.shape.seqlen_q)}",
        examples=("1", "2k"),
    ),
    _size(
        "headdim",
        "Head dimensions: 64,128. 192-128: 192 for q and k, 128 for v.",
        "128 by default.",
        lambda c: (c.shape.headdim, c.shape.headdim_v),
        parser=parse_headdims,
        text=_headdim_text,
        usual=(128, 128),
        pair="-",
        label=lambda c: f"headdim {headdim(c)}",
        short=lambda c: f"d{headdim(c)}",
        examples=("64", "576-512", "64-128"),
    ),
    _field(
        "dtype",
        "bf16,fp16,fp32,fp8; few backends have a backward in fp8.",
        "bf16 (default), fp16, fp32 or fp8.",
        words=DTYPES,
        usual="bf16",
        label=attrgetter("dtype"),
    ),
    _field(
        "direction",
        "fwd,bwd,fwd_bwd: forward, backward, or both timed as one.",
        "fwd (default), bwd or fwd_bwd.",
        words=DIRECTIONS,
        usual="fwd",
        said="pass",
        label=attrgetter("direction"),
    ),
    _field(
        "causal",
        "--causal: only causal masks; --full: only full masks. Default: both.",
        "The mask; full by default.",
        switch="--causal/--full",
        value=mask_rank,
        label=mask,
    ),
    _size(
        "batch",
        "Batch sizes, in place of --tokens.",
        "16k / seqlen by default.",
        attrgetter("shape.batch"),
        label=lambda c: f"batch {c.shape.batch}",
        short=lambda c: f"b{c.shape.batch}",
        examples=("3", "1"),
    ),
    _size(
        "nheads",
        "Query heads. Default: 2048 / headdim.",
        "Query heads. 2048 / headdim by default.",
        attrgetter("shape.nheads"),
        value=lambda c: (c.shape.nheads, c.shape.nheads_k),
        label=_long_heads,
        short=lambda c: f"h{heads(c)}",
        examples=("16", "3"),
    ),
    _size(
        "nheads_k",
        "Key and value heads. Fewer than query heads: GQA; 1: MQA.",
        "Key and value heads: fewer than --nheads is GQA.",
        attrgetter("shape.nheads_k"),
        label=_long_heads,
        examples=("1", "4"),
    ),
    _field(
        "window",
        "Sliding windows: 1k (to the left, and to both sides if not causal), 512/0 or 512/512 (left/right), none.",
        "Sliding window: 1k, or left/right: 512/0.",
        "window_size",
        parser=parse_windows,
        text=_window_text,
        usual=None,
        pair="/",
        columns={"window_left": lambda c: c.window_size[0], "window_right": lambda c: c.window_size[1]},
        is_extra=False,  # the title of causal shows it
        examples=("256", "0/256", "256/open"),
    ),
    _field(
        "softcap",
        "Limits of the scores: with 30, a score s becomes 30 tanh(s / 30); for example none,30 measures both.",
        "Limit of the scores: with 30, a score s becomes 30 tanh(s / 30).",
        examples=("30",),
    ),
    _field(
        "dropout",
        "The share of probabilities that are dropped, as in training; for example none,0.1 measures both.",
        "The share of probabilities that are dropped, as in training: 0.1.",
        "dropout_p",
        parser=partial(parse_numbers, below=1),
        examples=("0.1",),
    ),
    _field(
        "layout",
        "How q, k and v lie in memory: native (as each backend likes them, copies untimed), bshd, bhsd, packed (views "
        "of one tensor). A backend's copies are timed in all but native.",
        "native (default), bshd, bhsd or packed.",
        words=LAYOUTS,
        needs_limit=False,
    ),
    _field(
        "data",
        "The values of the inputs: normal, outliers (a large channel, and keys that take much of the attention), "
        "uniform, zeros, decaying (attention falls with the distance of query and key). The time depends on them.",
        "normal (default), outliers, uniform, zeros or decaying.",
        words=DATA,
        needs_limit=False,
    ),
    _field(
        "sink",
        "An attention sink: a learnt logit of each head joins the softmax (gpt-oss).",
        "A learnt logit of each head joins the softmax.",
        kind="sinks",
    ),
    _field(
        "alibi",
        "ALiBi: scores fall with the distance of query and key, by a slope per head.",
        "Scores fall with the distance of query and key, by a slope per head.",
        kind="ALiBi",
    ),
    _field(
        "mask",
        "Masks beside causal and window: none, prefix:N (all see the first N keys), sink_tokens:N (the first N keys up "
        "to the query), strided:N (the nearest N keys and every Nth), dilated:N (every Nth key), random:P (probability "
        "of each 128 x 128 block), FILE.py:FUNCTION.",
        "prefix:1k, strided:256, random:0.1, ...",
        words=(*masks.MASKS,),
        parser=masks.parse_masks,
        text=_or_none,
        is_extra=False,  # the title of causal shows it
        examples=("prefix:64", "sink_tokens:4", "dilated", "random:0.1"),
        kind="masks by name",
    ),
    _field(
        "deterministic",
        "The variant of a library that gives the same gradients in each launch, bit by bit; slower in some. --bitwise "
        "shows which libraries need it.",
        "The variant of a library that gives the same gradients in each launch.",
        columns={"deterministic_variant": attrgetter("deterministic")},  # the verdict on bits is "deterministic"
    ),
    _field(
        "page_size",
        "k and v lie in a cache of pages of so many tokens, shuffled, as a server keeps them: none,16,64. The queries "
        "are the last of each sequence: --seqlen-q 1 is decoding, 2k a chunk of a prefill. Forward only.",
        "k and v in a cache of pages of so many tokens.",
        parser=parse_optional_sizes,
        text=_or_none,
        examples=("16",),
        kind="pages",
        needs_limit=False,
    ),
    _field(
        "cache_dtype",
        "The dtype of the cache of pages: same (as q), fp8 (e4m3, with one factor each for k and v).",
        "The dtype of the cache of pages: same (as q), fp8.",
        words=CACHE_DTYPES,
        kind="fp8 pages",
        needs_limit=False,
    ),
    _field(
        "append",
        "A call first writes the keys and values of its queries into the cache, as a server's step does.",
        "A call first writes the keys and values of its queries into the cache.",
        needs_limit=False,
    ),
    _field(
        "latent",
        "MLA with absorbed weights: all query heads share one row per token, and v is its first part. By default "
        "DeepSeek-V3's: --headdim 576-512 --nheads 128 --softmax-scale 0.0722.",
        "MLA with absorbed weights, DeepSeek-V3's sizes.",
        kind="MLA",
        needs_limit=False,
    ),
    _field(
        "shared_prefix",
        "Tokens at the beginning of all sequences of a batch, such as a system prompt, whose pages they share: 0,8k. "
        "With --page-size; the queries come after them.",
        "Tokens at the beginning of all sequences, whose pages they share.",
        metavar="SIZES",
        parser=partial(parse_optional_sizes, none=("none", "0")),
        text=lambda tokens: format_size(tokens) if tokens else "none",
        label=lambda c: f"shared_prefix {format_size(c.shared_prefix)}" if c.shared_prefix else "",
        is_extra=True,
        examples=("64",),
        needs_limit=False,
    ),
    _field(
        "softmax_scale",
        "The factor on the scores before the softmax; none is 1 / sqrt(headdim).",
        "The factor on the scores; 1 / sqrt(headdim) by default.",
        "scale",
        parser=partial(parse_numbers, zero=False),
        text=_or_none,
        columns={"softmax_scale": attrgetter("softmax_scale")},
        examples=("0.5",),
        needs_limit=False,
    ),
    _field(
        "lengths",
        "Ragged batches: uniform, longtail, bimodal, zipf, documents, of --seqlen tokens in the mean, in shuffled "
        "order or longtail/ascending, longtail/descending. Or a list: 4k+2*1k+1x16k is 4k, twice 1k, and 1 query on "
        "16k keys; 2q2k_32q1s16k (vLLM's form) is 2 of 2k, and 32 of 1 query on 16k keys.",
        "A ragged batch: uniform, longtail, ... or a list, 4k+2*1k.",
        words=("none", *PATTERNS),
        parser=lambda text, **_: parse_lengths(text),
        text=lambda lengths: describe(lengths) if lengths else "none",
        usual=None,
        columns={"lengths": lambda c: spell(c.lengths)},
        value=pattern,
        label=pattern,
        examples=("uniform", "longtail/ascending", "4k+2*1k", "2q2k_32q1s16k"),
        kind="ragged batches",
    ),
    _field(
        "ranks",
        "Devices over which each sequence is split: 1,2,4. 1 is one device. With -b 'ring-*,ulysses-*'; --device "
        "cuda:0-3 names them.",
        "Devices that split the sequence; the timeline shows the first.",
        metavar="NUMBERS",
        parser=parse_sizes,
        examples=("2", "3"),
        needs_limit=False,
    ),
    _field(
        "kind",
        "Kinds of attention: softmax, gdn (gated delta rule: Qwen3-Next), kda (Kimi Linear), indexer (DeepSeek-V3.2: "
        "chooses 2k keys, or --mask topk:N). Delta rules have --nheads value heads and --nheads-k query and key heads, "
        "and a state: --seqlen 1 is decoding.",
        "softmax (default), gdn, kda or indexer.",
        words=KINDS,
        label=lambda c: "" if c.is_softmax else c.kind,
        is_extra=True,
        needs_limit=False,
    ),
    _field(
        "step",
        "",
        "",
        parser=_parse_steps,
        text=_or_none,
        columns={"model_step": attrgetter("step")},
        label=lambda c: step.parse(c.step).title if c.step else "",
        is_extra=True,
        has_option=False,  # `attnbench step` has options of its own
        examples=("prefill tiny 2/2 arch=llama hidden=512 intermediate=1024 vocab=1024",),
        kind="step",
        needs_limit=False,
    ),
)
AXES: Mapping[str, Axis] = {axis.name: axis for axis in _TABLE}
EXTRAS = tuple(
    sorted((axis.name for axis in _TABLE if axis.is_extra), key=lambda name: [*_FIELDS].index(AXES[name].field))
)
LIMITED = tuple(name for name in EXTRAS if AXES[name].needs_limit)
