"""The axes of a suite, as people write them, and the cases that they stand for.

An axis is a value, a list or a range. The axes multiply; one that is left out has a single default value.
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


def _to_text(value: Any, pair: str = "") -> str:
    """Return a scalar or a list from YAML as comma-separated text, which is what the command line gives.

    Raises ValueError for a list in a list. Where an axis has values of two parts, `pair` is what separates these, for
    the message.
    """
    for inner in value if isinstance(value, list) else ():
        if isinstance(inner, list):
            given = yaml.safe_dump(inner, default_flow_style=True).strip()
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


def overlay(below: Axes, above: Axes) -> Axes:
    """Return the axes of `below`, replaced by those that `above` gives."""
    return below.model_copy(update={n: v for n in Axes.model_fields if (v := getattr(above, n)) is not None})


def expand(axes: Axes, tokens: Item | None, hidden: Item | None) -> list[Case]:
    """Return the product of the axes as cases.

    Where the axes have no batch, it is tokens / seqlen; where they have no query heads, there are hidden / headdim.
    Raises UserError.
    """
    if axes.seqlen is None:
        raise UserError("axes: seqlen is missing")
    seqlens = parse_sizes(axes.seqlen, "seqlen")
    seqlens_q = parse_sizes(axes.seqlen_q, "seqlen-q") if axes.seqlen_q else (None,)
    headdims = parse_headdims(axes.headdim or "128")
    dtypes = _parse_names(axes.dtype or "bf16", DTYPES, "dtype")
    directions = _parse_names(axes.direction or "fwd", DIRECTIONS, "pass")
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
    """Return causal and window in the one form that each mask has.

    A window with 0 to the right is causal, and a causal mask that is not limited to the left has no window.
    """
    left, right = window or (None, None)
    if causal or right == 0:
        return True, ((left, 0) if left is not None else (None, None))
    return False, (left, right)


def matches(axes: Axes, case: Case) -> bool:
    """Whether a case has one of the values of every axis that is given."""
    s = case.shape
    values: list[tuple[Any, Any]] = [
        (axes.seqlen and parse_sizes(axes.seqlen), s.seqlen_k),
        (axes.seqlen_q and parse_sizes(axes.seqlen_q), s.seqlen_q),
        (axes.headdim and parse_headdims(axes.headdim), (s.headdim, s.headdim_v)),
        (axes.dtype and _parse_names(axes.dtype, DTYPES, "dtype"), case.dtype),
        (axes.direction and _parse_names(axes.direction, DIRECTIONS, "pass"), case.direction),
        (axes.batch and parse_sizes(axes.batch), s.batch),
        (axes.nheads and parse_sizes(axes.nheads), s.nheads),
        (axes.nheads_k and parse_sizes(axes.nheads_k), s.nheads_k),
        (axes.window and [_mask(case.causal, w)[1] for w in parse_windows(axes.window)], case.window_size),
        (axes.softcap and parse_numbers(axes.softcap, "softcap"), case.softcap),
        (axes.dropout and parse_numbers(axes.dropout, "dropout"), case.dropout_p),
        (axes.causal if isinstance(axes.causal, list) else axes.causal is not None and [axes.causal], case.causal),
    ]
    return all(value in allowed for allowed, value in values if allowed)


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
