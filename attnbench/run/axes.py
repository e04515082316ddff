"""The axes of a suite, as people write them, and the cases that they stand for.

An axis is a value, a list or a range. The axes multiply; one that is left out has a single default value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from attnbench.core import masks, step
from attnbench.core.case import CACHE_DTYPES, DATA, DIRECTIONS, DTYPES, LAYOUTS, Case, Shape, sizes_of
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.lengths import MOST_SEQUENCES, Lengths, RaggedLengths, describe, parse_lengths
from attnbench.core.sizes import (
    Window,
    format_size,
    parse_headdims,
    parse_numbers,
    parse_page_sizes,
    parse_size,
    parse_sizes,
    parse_windows,
)
from attnbench.core.text import shortened

Item = str | int
MAX_CASES = 10_000
MOST_RANKS = 64
STRICT = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _to_text(value: Any, pair: str = "") -> str:
    """Return a scalar or a list from YAML as comma-separated text, which is what the command line gives.

    Raises ValueError for a list in a list. Where an axis has values of two parts, `pair` is what separates these, for
    the message.
    """
    for inner in value if isinstance(value, list) else ():
        if isinstance(inner, list):
            given = shortened(yaml.safe_dump(inner, default_flow_style=True, width=math.inf).strip())
            if not pair or len(inner) != 2 or any(isinstance(side, list | dict) for side in inner):
                raise ValueError(f"{given} is a list in a list; give single values, as in [A, B]")
            text = pair.join(_OPEN.get(side, str(side)) for side in inner)
            raise ValueError(f"{given} is a list in a list; a pair is written {text}, several [{text}, ...]")
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


_OPEN = {None: "open", -1: "open", "none": "open"}  # an unlimited side of a window, as other tools write it
Text = Annotated[str, BeforeValidator(_to_text)]
Windows = Annotated[str, BeforeValidator(partial(_to_text, pair="/"))]
Headdims = Annotated[str, BeforeValidator(partial(_to_text, pair="-"))]


class Axes(BaseModel):
    """The values of each axis as people write them; None for an axis that is not given."""

    model_config = STRICT

    seqlen: Text | None = None
    seqlen_q: Text | None = None
    headdim: Headdims | None = None
    dtype: Text | None = None
    causal: bool | list[bool] | None = None
    direction: Text | None = Field(default=None, alias="pass")
    batch: Text | None = None
    nheads: Text | None = None
    nheads_k: Text | None = None
    window: Windows | None = None
    softcap: Text | None = None
    dropout: Text | None = None
    layout: Text | None = None
    data: Text | None = None
    lengths: Text | None = None
    page_size: Text | None = None
    cache_dtype: Text | None = None
    sink: bool | list[bool] | None = None
    alibi: bool | list[bool] | None = None
    mask: Text | None = None
    append: bool | list[bool] | None = None
    latent: bool | list[bool] | None = None
    softmax_scale: Text | None = None
    step: Text | None = None
    ranks: Text | None = None


def overlay(below: Axes, above: Axes) -> Axes:
    """Return the axes of `below`, replaced by those that `above` gives."""
    return below.model_copy(update={n: v for n in Axes.model_fields if (v := getattr(above, n)) is not None})


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Return the dtypes of a comma-separated text. Raises UserError."""
    return _parse_names(text, DTYPES, "dtype")


_OTHER_NAMES = {  # names of torch and flash-attn -> names here
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


def _parse_names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text. Raises UserError for one that is not known."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            meant = _OTHER_NAMES.get(name.lower().removeprefix("torch."))
            hint = f'; here it is "{meant}"' if meant in known else did_you_mean(name, known)
            raise UserError(f"{what}: unknown {what} {name!r}{hint}")
    return names


def _headdim_text(headdims: tuple[int, int]) -> str:
    return "-".join(map(str, dict.fromkeys(headdims)))


def _number_text(number: float) -> str:
    """Return a number with as many digits as are needed to read the same again."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _listed(causal: bool | list[bool]) -> list[bool]:
    return causal if isinstance(causal, list) else [causal]


def _window_text(window: Window | None) -> str:
    """Return a window as --window reads it, whatever the mask."""
    left, right = window or (None, None)
    if left is None and right is None:
        return "none"
    return "/".join("open" if side is None else str(side) for side in (left, right))


def _parse_steps(text: str) -> tuple[str, ...]:
    """Return the steps of a comma-separated text, "" for none. Raises UserError for one that cannot be read."""
    found = ("" if word.strip() == "none" else word.strip() for word in text.split(","))
    try:
        return tuple(str(step.parse(word)) if word else "" for word in found)
    except ValueError as error:
        raise UserError(str(error)) from None


class Axis(NamedTuple):
    """One axis: how its values are parsed, which one a case has, how one is written, and which counts if none is."""

    parse: Callable[[Any], Sequence[Any]]
    of: Callable[[Case], Any]
    text: Callable[[Any], str] = str
    usual: Any = None  # None where other axes decide


AXES: Mapping[str, Axis] = {  # by the fields of Axes
    "seqlen": Axis(partial(parse_sizes, what="seqlen"), lambda c: c.mean_seqlens[1], format_size),
    "seqlen_q": Axis(partial(parse_sizes, what="seqlen-q"), lambda c: c.mean_seqlens[0], format_size),
    "headdim": Axis(parse_headdims, lambda c: (c.shape.headdim, c.shape.headdim_v), _headdim_text, (128, 128)),
    "dtype": Axis(partial(_parse_names, known=DTYPES, what="dtype"), lambda c: c.dtype, usual="bf16"),
    "causal": Axis(_listed, lambda c: c.causal, lambda causal: str(causal).lower(), False),
    "direction": Axis(partial(_parse_names, known=DIRECTIONS, what="pass"), lambda c: c.direction, usual="fwd"),
    "batch": Axis(partial(parse_sizes, what="batch"), lambda c: c.shape.batch),
    "nheads": Axis(partial(parse_sizes, what="nheads"), lambda c: c.shape.nheads),
    "nheads_k": Axis(partial(parse_sizes, what="nheads-k"), lambda c: c.shape.nheads_k),
    "window": Axis(parse_windows, lambda c: c.window_size, _window_text),
    "softcap": Axis(partial(parse_numbers, what="softcap"), lambda c: c.softcap, _number_text, 0.0),
    "dropout": Axis(partial(parse_numbers, what="dropout", below=1), lambda c: c.dropout_p, _number_text, 0.0),
    "layout": Axis(partial(_parse_names, known=LAYOUTS, what="layout"), lambda c: c.layout, usual="native"),
    "data": Axis(partial(_parse_names, known=DATA, what="data"), lambda c: c.data, usual="normal"),
    "page_size": Axis(
        partial(parse_page_sizes, what="page-size"), lambda c: c.page_size, lambda n: str(n or "none"), 0
    ),
    "cache_dtype": Axis(
        partial(_parse_names, known=CACHE_DTYPES, what="cache-dtype"), lambda c: c.cache_dtype, usual="same"
    ),
    "sink": Axis(_listed, lambda c: c.sink, lambda sink: str(sink).lower(), False),
    "alibi": Axis(_listed, lambda c: c.alibi, lambda alibi: str(alibi).lower(), False),
    "mask": Axis(masks.parse_masks, lambda c: c.mask, lambda mask: mask or "none", ""),
    "append": Axis(_listed, lambda c: c.append, lambda append: str(append).lower(), False),
    "latent": Axis(_listed, lambda c: c.latent, lambda latent: str(latent).lower(), False),
    "softmax_scale": Axis(
        partial(parse_numbers, what="softmax-scale", zero=False), lambda c: c.scale, lambda n: str(n or "none"), 0.0
    ),
    "step": Axis(_parse_steps, lambda c: c.step, lambda text: text or "none", ""),
    "ranks": Axis(partial(parse_sizes, what="ranks"), lambda c: c.ranks, usual=1),
    "lengths": Axis(parse_lengths, lambda c: c.lengths, lambda lengths: describe(lengths) if lengths else "none"),
}


def parsed(axes: Axes) -> dict[str, Sequence[Any]]:
    """Return axis -> its values, of every axis that is given. Raises UserError."""
    given = ((name, getattr(axes, name)) for name in AXES)
    return {name: AXES[name].parse(value) for name, value in given if value is not None}


_PRODUCT = (  # the order in which cases come
    *("dtype", "headdim", "band", "mask", "softcap", "sink", "alibi", "dropout", "layout", "data"),
    *("page_size", "cache_dtype", "append", "latent", "softmax_scale", "step", "ranks", "direction"),
    *("nheads", "nheads_k", "lengths", "seqlen", "seqlen_q", "batch"),
)
# DeepSeek-V3's decode: what --latent gives where the options say nothing else, and the scale of any latent case.
LATENT: Mapping[str, str] = {"headdim": "576-512", "nheads": "128", "nheads_k": "1"}
LATENT_SCALE = 192**-0.5
FORWARD_ONLY = (
    "page-size, latent: forward only, and the queries are the last of their sequence; give --pass fwd, and a "
    "--seqlen-q that is not above --seqlen"
)


def expand(axes: Axes, tokens: Item | None, hidden: Item | None) -> list[Case]:
    """Return the product of the axes as cases.

    Where the axes have no batch, it is tokens / seqlen, and at least 2 of a ragged one; where they have no query heads,
    there are hidden / headdim. Of a ragged batch seqlen is the mean length, unless the lengths are a list. Cases with
    pages or latent rows are left out where they would be a backward, or have more queries than keys. Raises UserError.
    """
    (found,) = expand_all([axes], tokens, hidden)
    return found


def expand_all(blocks: Iterable[Axes], tokens: Item | None, hidden: Item | None) -> Iterator[list[Case]]:
    """Yield the cases of each block, as `expand` does. Raises UserError, also where they are too many together."""
    total = parse_size(str(tokens), "tokens") if tokens is not None else 16384
    width = parse_size(str(hidden), "hidden") if hidden is not None else 2048
    count = 0
    for axes in blocks:
        values = {name: (axis.usual,) for name, axis in AXES.items()} | parsed(axes)
        if axes.seqlen is None and not all(of and of.fixed for of in values["lengths"]):
            raise UserError("axes: seqlen is missing")
        bands = (_band(causal, window) for causal in values["causal"] for window in values["window"])
        values["band"] = list(dict.fromkeys(bands))
        product = [values[name] for name in _PRODUCT]
        count += math.prod(map(len, product))
        if count > MAX_CASES:
            raise UserError(f"that is {count} cases, more than the {MAX_CASES} that a run may have; give fewer sizes")
        found = (_case(dict(zip(_PRODUCT, each, strict=True)), total, width) for each in itertools.product(*product))
        yield [case for case in found if case]


def _case(at: Mapping[str, Any], total: int, width: int) -> Case | None:
    """Return the case of one value of each axis; None for one that a cache does not have. Raises UserError."""
    latent, page, sk, sq = at["latent"], at["page_size"], at["seqlen"], at["seqlen_q"]
    d, dv = at["headdim"]
    heads = at["nheads"] or max(1, width // d)
    heads_k = at["nheads_k"] or (1 if latent else heads)
    if heads % heads_k:
        raise UserError(
            f"nheads-k: {heads} query heads (headdim {d}) are not a multiple of {heads_k} key heads; "
            "choose a divisor, or give --nheads too"
        )
    batch = at["batch"]
    lengths = _lengths(at["lengths"], batch or max(2, total // (sk or 1)), sk, sq) if at["lengths"] else ()
    if lengths:
        batch, sq, sk = sizes_of(lengths)
    _check_together(at, is_ragged=bool(lengths), heads_k=heads_k)
    each = [of[1:] for of in lengths] or [(sq or sk, sk)]
    if (page or latent) and (at["direction"] != "fwd" or any(queries > keys for queries, keys in each)):
        return None
    shape = Shape(batch or max(1, total // sk), sq or sk, sk, heads, heads_k, d, dv)
    causal, window = at["band"]
    return Case(
        shape,
        at["dtype"],
        at["direction"],
        causal,
        window,
        softcap=at["softcap"],
        dropout_p=at["dropout"],
        layout=at["layout"],
        data=at["data"],
        lengths=lengths,
        page_size=page,
        scale=at["softmax_scale"] or (LATENT_SCALE if latent else 0.0),
        cache_dtype=at["cache_dtype"],
        sink=at["sink"],
        alibi=at["alibi"],
        mask=at["mask"],
        append=at["append"],
        latent=latent,
        step=at["step"],
        ranks=at["ranks"],
    )


def _check_together(at: Mapping[str, Any], *, is_ragged: bool, heads_k: int) -> None:
    """Raise UserError for values of axes that no case has together."""
    page, latent = at["page_size"], at["latent"]
    kinds = (("lengths", "a ragged batch", is_ragged), ("page-size", "pages", page), ("latent", "latent rows", latent))
    for option, what, is_given in kinds:
        if is_given and (at["dropout"] or at["layout"] != "native"):
            other = f"dropout {at['dropout']:g}" if at["dropout"] else f"layout {at['layout']}"
            raise UserError(f"{option}: {other} of {what} cannot be measured yet; leave out one of them")
    if at["sink"] and (other := _among(at, "dropout", "dtype")):
        raise UserError(f"sink: {other} with an attention sink cannot be measured; leave out one of them")
    if at["alibi"] and (other := _among(at, "dropout", "softcap", "latent", "dtype")):
        raise UserError(f"alibi: {other} with ALiBi cannot be measured; leave out one of them")
    if at["mask"]:
        _check_mask(at, is_ragged=is_ragged)
    if at["ranks"] > 1:
        _check_ranks(at, is_ragged=is_ragged)
    if latent and heads_k != 1:
        raise UserError(f"latent: all query heads share one row per token; leave out --nheads-k {heads_k}")
    if latent and at["headdim"][1] > at["headdim"][0]:
        raise UserError("latent: the values are a part of the keys; give --headdim 576-512, or leave it out")
    if at["cache_dtype"] != "same" and not page:
        raise UserError("cache-dtype: it is that of a cache of pages; give --page-size too")
    if at["append"] and (not page or latent or at["cache_dtype"] != "same"):
        raise UserError(
            "append: keys and values are appended to pages in the dtype of q; give --page-size, and leave out "
            "--latent and --cache-dtype"
        )
    if at["cache_dtype"] != "same" and at["dtype"] == "fp8":
        raise UserError("cache-dtype: with --dtype fp8 queries, keys and values are fp8; leave out --cache-dtype")


def _check_ranks(at: Mapping[str, Any], *, is_ragged: bool) -> None:
    """Raise UserError where the sequence of a case cannot be split over several devices."""
    ranks, seqlen = at["ranks"], at["seqlen"]
    if ranks > MOST_RANKS:
        raise UserError(f"ranks: {ranks}; at most {MOST_RANKS}, all on one machine")
    other = _among(at, "dropout", "sink", "alibi", "page_size", "latent", "dtype") or ("lengths" if is_ragged else "")
    other = other or (at["mask"] and f"mask {at['mask']}") or (at["layout"] != "native" and f"layout {at['layout']}")
    if other:
        raise UserError(f"ranks: {other} is not measured on several devices; leave out one of them")
    if at["seqlen_q"] not in (None, seqlen):
        raise UserError(f"ranks: what is split has as many queries as keys, not {at['seqlen_q']} and {seqlen}")
    if seqlen % ranks:
        raise UserError(f"ranks: {seqlen} tokens are no multiple of {ranks}; give other lengths, or 2, 4 or 8 ranks")


def _check_mask(at: Mapping[str, Any], *, is_ragged: bool) -> None:
    """Raise UserError where a case cannot have its mask by name."""
    other = _among(at, "dropout", "page_size", "latent", "dtype") or ("lengths" if is_ragged else "")
    if other:
        raise UserError(f"mask: {other} with {at['mask']} cannot be measured; leave out one of them")
    causal, window = at["band"]
    if problem := masks.problem(at["mask"], at["seqlen"], causal=causal, window=window):
        raise UserError(f"mask: {problem}; give --seqlen, --causal and --window so, or another mask")
    if at["seqlen_q"] and at["seqlen_q"] > at["seqlen"]:
        raise UserError(f"mask: {at['mask']} takes at most as many queries as keys; give a smaller --seqlen-q")


def _among(at: Mapping[str, Any], *names: str) -> str:
    """Return the first of the axes `names` that is given, as people write it, of the dtypes fp8; "" where none is."""
    for name in names:
        if name == "dtype" and at[name] == "fp8":
            return "fp8"
        if name != "dtype" and at[name]:
            option = name.replace("_", "-")
            return option if at[name] is True else f"{option} {at[name]:g}"
    return ""


def _lengths(ragged: RaggedLengths, batch: int, mean: int, seqlen_q: int | None) -> Lengths:
    """Return the lengths of a batch. Raises UserError where a pattern cannot have them."""
    if ragged.pattern and batch < 2:
        raise UserError(f"lengths: {ragged.text}: a batch of one sequence is dense; give --batch 2 or more")
    if ragged.pattern and batch > MOST_SEQUENCES:
        raise UserError(f"lengths: {ragged.text}: {batch} sequences; at most {MOST_SEQUENCES} in a batch")
    return ragged.resolve(batch, mean, seqlen_q)


def _band(causal: bool, window: Window | None) -> tuple[bool, Window]:
    """Return causal and window in the one form that each mask has.

    A window with 0 to the right is causal, and a causal mask that is not limited to the left has no window.
    """
    left, right = window or (None, None)
    if causal or right == 0:
        return True, ((left, 0) if left is not None else (None, None))
    return False, (left, right)


def matches(axes: Axes, case: Case) -> bool:
    """Whether a case has one of the values of every axis that is given."""
    wanted = parsed(axes)
    if "window" in wanted:
        wanted["window"] = [_band(case.causal, window)[1] for window in wanted["window"]]
    if "lengths" in wanted:
        ours = any(of.matches(case) if of else not case.is_ragged for of in wanted["lengths"])
        wanted["lengths"] = [case.lengths] if ours else []
    return all(AXES[name].of(case) in values for name, values in wanted.items())
