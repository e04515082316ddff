"""The axes of a suite, as people write them -> cases.

A size, a list or a range each; what is left out has one value. They multiply.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from attnbench.core.case import DIRECTIONS, DTYPES, Case, Shape
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.sizes import Window, parse_headdims, parse_numbers, parse_size, parse_sizes, parse_windows

Item = str | int
MAX_CASES = 10_000
STRICT = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _listed(value: Any, pair: str = "") -> str:
    """A scalar or a list, as one comma-separated text: what the command line gives anyway.

    ValueError for a list in it: a pair, if anything, and `pair` is what stands between its sides.
    """
    for inner in value if isinstance(value, list) else ():
        if isinstance(inner, list):
            given = yaml.safe_dump(inner, default_flow_style=True).strip()
            if not pair or len(inner) != 2 or any(isinstance(side, list | dict) for side in inner):
                raise ValueError(f"{given} is a list in a list; give single values, as in [A, B]")
            said = pair.join(_OPEN.get(side, str(side)) for side in inner)
            raise ValueError(f"{given} is a list in a list; a pair is written {said}, several [{said}, ...]")
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


_OPEN = {None: "open", -1: "open", "none": "open"}  # sides of a window, as they are written elsewhere
Text = Annotated[str, BeforeValidator(_listed)]
Windows = Annotated[str, BeforeValidator(partial(_listed, pair="/"))]
Headdims = Annotated[str, BeforeValidator(partial(_listed, pair="-"))]


class Axes(BaseModel):
    """Values per axis as people write them; None where an axis is not given."""

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


def overlay(below: Axes, above: Axes) -> Axes:
    return below.model_copy(update={n: v for n in Axes.model_fields if (v := getattr(above, n)) is not None})


def expand(axes: Axes, tokens: Item | None, hidden: Item | None) -> list[Case]:
    """`tokens` and `hidden` set the batch and the query heads of axes that have none."""
    if axes.seqlen is None:
        raise UserError("axes: seqlen is missing")
    seqlens = parse_sizes(axes.seqlen, "seqlen")
    seqlens_q = parse_sizes(axes.seqlen_q, "seqlen-q") if axes.seqlen_q else (None,)
    headdims = parse_headdims(axes.headdim or "128")
    dtypes = _words(axes.dtype or "bf16", DTYPES, "dtype")
    directions = _words(axes.direction or "fwd", DIRECTIONS, "pass")
    causal = axes.causal if isinstance(axes.causal, list) else [bool(axes.causal)]
    batches = parse_sizes(axes.batch, "batch") if axes.batch else (None,)
    nheads = parse_sizes(axes.nheads, "nheads") if axes.nheads else (None,)
    nheads_k = parse_sizes(axes.nheads_k, "nheads-k") if axes.nheads_k else (None,)
    windows = parse_windows(axes.window) if axes.window else (None,)
    softcaps = parse_numbers(axes.softcap, "softcap") if axes.softcap else (0.0,)
    dropouts = parse_numbers(axes.dropout, "dropout", below=1) if axes.dropout else (0.0,)
    total = parse_size(str(tokens), "tokens") if tokens is not None else 16384
    width = parse_size(str(hidden), "hidden") if hidden is not None else 2048
    masks = list(dict.fromkeys(_mask(mask, window) for mask in causal for window in windows))
    options = list(itertools.product(masks, softcaps, dropouts))
    count = math.prod(map(len, (dtypes, headdims, options, directions, nheads, nheads_k, seqlens, seqlens_q, batches)))
    if count > MAX_CASES:
        raise UserError(f"that is {count} cases, more than the {MAX_CASES} that a run may have; give fewer sizes")
    cases = []
    for dtype, (d, dv), ((mask, window), softcap, dropout_p), direction, n, nk, sk, sq, b in itertools.product(
        dtypes, headdims, options, directions, nheads, nheads_k, seqlens, seqlens_q, batches
    ):
        heads = n or max(1, width // d)
        heads_k = nk or heads
        if heads % heads_k:
            raise UserError(
                f"nheads-k: {heads} query heads (headdim {d}) are not a multiple of {heads_k} key heads; "
                "choose a divisor, or give --nheads too"
            )
        shape = Shape(b or max(1, total // sk), sq or sk, sk, heads, heads_k, d, dv)
        cases.append(Case(shape, dtype, direction, mask, window, softcap, dropout_p))  # type: ignore[arg-type]
    return cases


def _mask(causal: bool, window: Window | None) -> tuple[bool, Window]:
    """One way to say each mask: with 0 on the right it is causal, and causal without a left side has no window."""
    left, right = window or (None, None)
    if causal or right == 0:
        return True, ((left, 0) if left is not None else (None, None))
    return False, (left, right)


def matches(axes: Axes, case: Case) -> bool:
    """Whether a case has one of the values of every axis given."""
    s = case.shape
    values: list[tuple[Any, Any]] = [
        (axes.seqlen and parse_sizes(axes.seqlen), s.seqlen_k),
        (axes.seqlen_q and parse_sizes(axes.seqlen_q), s.seqlen_q),
        (axes.headdim and parse_headdims(axes.headdim), (s.headdim, s.headdim_v)),
        (axes.dtype and _words(axes.dtype, DTYPES, "dtype"), case.dtype),
        (axes.direction and _words(axes.direction, DIRECTIONS, "pass"), case.direction),
        (axes.batch and parse_sizes(axes.batch), s.batch),
        (axes.nheads and parse_sizes(axes.nheads), s.nheads),
        (axes.nheads_k and parse_sizes(axes.nheads_k), s.nheads_k),
        (axes.window and [_mask(case.causal, w)[1] for w in parse_windows(axes.window)], case.window_size),
        (axes.softcap and parse_numbers(axes.softcap, "softcap"), case.softcap),
        (axes.dropout and parse_numbers(axes.dropout, "dropout"), case.dropout_p),
        (axes.causal if isinstance(axes.causal, list) else axes.causal is not None and [axes.causal], case.causal),
    ]
    return all(value in allowed for allowed, value in values if allowed)


_ELSEWHERE = {  # what torch and flash-attn call them
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


def _words(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(w.strip() for w in text.split(",")))
    for word in found:
        if word not in known:
            meant = _ELSEWHERE.get(word.lower().removeprefix("torch."))
            hint = f'; here it is "{meant}"' if meant in known else did_you_mean(word, known)
            raise UserError(f"{what}: unknown {what} {word!r}{hint}")
    return found
