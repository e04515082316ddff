"""The axes of a suite, as people write them, and their cases.

An axis is a value, a list or a range. The axes multiply; one that is left out has a single default value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from attnbench.core.axes import AXES, Axis
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.errors import UserError
from attnbench.core.lengths import MOST_SEQUENCES, Lengths, RaggedLengths
from attnbench.core.rules import NotOfCacheError
from attnbench.core.sizes import Window, parse_size
from attnbench.core.text import shortened

Item = str | int
MAX_CASES = 10_000
STRICT = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _to_text(value: Any, pair: str = "") -> str:
    """Return a scalar or a list from YAML as comma-separated text, the form of the command line.

    Raises ValueError for a list in a list. For an axis with values of two parts, `pair` is their separator in the
    message.
    """
    for inner in value if isinstance(value, list) else ():
        if isinstance(inner, list):
            given = shortened(yaml.safe_dump(inner, default_flow_style=True, width=math.inf).strip())
            if not pair or len(inner) != 2 or any(isinstance(side, list | dict) for side in inner):
                raise ValueError(f"{given} is a list in a list; give single values, as in [A, B]")
            text = pair.join(_OPEN.get(side, str(side)) for side in inner)
            raise ValueError(f"{given} is a list in a list; a pair is written {text}, several [{text}, ...]")
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _with_values(values: list[bool]) -> list[bool]:
    if not values:
        raise ValueError("an empty list; give true, false or both, or leave it out")
    return values


_OPEN = {None: "open", -1: "open", "none": "open"}  # an open side of a window, in the spelling of other tools
Text = Annotated[str, BeforeValidator(_to_text)]


class _Axes(BaseModel):
    """The values of each axis as people write them; None for an axis that is not given."""

    model_config = STRICT

    if TYPE_CHECKING:  # otherwise the table of axes gives the fields

        def __init__(self, **given: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...


def _type_of(axis: Axis) -> Any:
    """Return the type of the values of an axis in a suite."""
    if axis.switch:
        return bool | Annotated[list[bool], AfterValidator(_with_values)] | None
    return Annotated[str, BeforeValidator(partial(_to_text, pair=axis.pair))] | None


if TYPE_CHECKING:
    Axes = _Axes
else:
    Axes = create_model(
        "Axes",
        __base__=_Axes,
        __doc__=_Axes.__doc__,
        **{name: (_type_of(axis), Field(default=None, alias=axis.said or None)) for name, axis in AXES.items()},
    )


def overlay(below: Axes, above: Axes) -> Axes:
    """Return the axes of `below`, replaced by the axes that `above` gives."""
    return below.model_copy(update={n: v for n in Axes.model_fields if (v := getattr(above, n)) is not None})


def parsed(axes: Axes) -> dict[str, Sequence[Any]]:
    """Return axis -> its values, for every axis that is given. Raises UserError."""
    given = ((name, getattr(axes, name)) for name in AXES)
    return {name: AXES[name].parse(value) for name, value in given if value is not None}


_FIRST, _LAST = (
    ("dtype", "headdim", "band"),
    ("direction", "nheads", "nheads_k", "lengths", "seqlen", "seqlen_q", "batch"),
)
_PRODUCT = (  # the order of cases
    *_FIRST,
    *(name for name in AXES if name not in (*_FIRST, *_LAST, "causal", "window")),
    *_LAST,
)
# DeepSeek-V3's decode: the defaults of --latent, and the scale of all latent cases.
LATENT: Mapping[str, str] = {"headdim": "576-512", "nheads": "128", "nheads_k": "1"}
LATENT_SCALE = 192**-0.5
CHOSEN = "topk:2k"  # the mask of an indexer for which none is given


def expand(axes: Axes, tokens: Item | None, hidden: Item | None) -> list[Case]:
    """Return the product of the axes as cases.

    Without a batch in the axes it is tokens / seqlen, and at least 2 for ragged lengths; without query heads there are
    hidden / headdim. For a ragged batch seqlen is the mean length, unless the lengths are a list. Cases with pages or
    latent rows are left out where they would be a backward, or have more queries than keys after a shared prefix, and
    so are cases of another kind than softmax without a causal mask. Raises UserError.
    """
    (found,) = expand_all([axes], tokens, hidden)
    return [case for case in found if isinstance(case, Case)]


def expand_all(blocks: Iterable[Axes], tokens: Item | None, hidden: Item | None) -> Iterator[list[Case | str]]:
    """Yield the cases of each block, and for each case that `expand` leaves out the reason.

    Raises UserError, also for too many cases in all.
    """
    total = parse_size(str(tokens), "tokens") if tokens is not None else 16384
    width = parse_size(str(hidden), "hidden") if hidden is not None else 2048
    count = 0
    for axes in blocks:
        values = {name: (axis.usual,) for name, axis in AXES.items()} | parsed(axes)
        if axes.seqlen is None and not all(of and of.fixed for of in values["lengths"]):
            raise UserError("axes: seqlen is missing; give it there, as in seqlen: 1k,4k, or by --seqlen 1k,4k")
        if axes.causal is None and "softmax" not in values["kind"]:
            values["causal"] = (True,)
        bands = (_band(causal, window) for causal in values["causal"] for window in values["window"])
        values["band"] = list(dict.fromkeys(bands))
        product = [values[name] for name in _PRODUCT]
        count += math.prod(map(len, product))
        if count > MAX_CASES:
            raise UserError(f"that is {count} cases, more than the {MAX_CASES} that a run may have; give fewer sizes")
        yield [_case(dict(zip(_PRODUCT, each, strict=True)), total, width) for each in itertools.product(*product)]


def _case(at: Mapping[str, Any], total: int, width: int) -> Case | str:
    """Return the case of one value per axis; the reason for a case that a product leaves out. Raises UserError."""
    sk, sq = at["seqlen"], at["seqlen_q"]
    d, dv = at["headdim"]
    heads = at["nheads"] or max(1, width // d)
    batch = at["batch"]
    lengths = _lengths(at["lengths"], batch or max(2, total // (sk or 1)), sk, sq) if at["lengths"] else ()
    if lengths:
        batch, sq, sk = sizes_of(lengths)
    causal, window = at["band"]
    scale = at["softmax_scale"] or (LATENT_SCALE if at["latent"] else 0.0)
    indexes = at["kind"] == "indexer"
    mask = at["mask"] or (CHOSEN if indexes else "")
    values = {**at, "causal": causal, "window": window, "lengths": lengths, "softmax_scale": scale, "mask": mask}
    try:
        nheads_k = at["nheads_k"] or (1 if at["latent"] or indexes else heads)
        shape = Shape(batch or max(1, total // sk), sq or sk, sk, heads, nheads_k, d, dv)
        return Case(shape, **{axis.field: values[name] for name, axis in AXES.items() if axis.field})
    except NotOfCacheError as error:
        return str(error)
    except ValueError as error:
        raise UserError(str(error)) from None


def _lengths(ragged: RaggedLengths, batch: int, mean: int, seqlen_q: int | None) -> Lengths:
    """Return the lengths of a batch. Raises UserError where a pattern cannot have them."""
    if ragged.pattern and batch < 2:
        raise UserError(f"lengths: {ragged.text}: a batch of one sequence is dense; give --batch 2 or more")
    if ragged.pattern and batch > MOST_SEQUENCES:
        raise UserError(f"lengths: {ragged.text}: {batch} sequences; at most {MOST_SEQUENCES} in a batch")
    return ragged.resolve(batch, mean, seqlen_q)


def _band(causal: bool, window: Window | None) -> tuple[bool, Window]:
    """Return causal and window in the one form that stands for each mask.

    A window with 0 to the right is causal, and a causal mask without a limit to the left has no window.
    """
    left, right = window or (None, None)
    if causal or right == 0:
        return True, ((left, 0) if left is not None else (None, None))
    return False, (left, right)


def matching(axes: Axes) -> Callable[[Case], bool]:
    """Return whether a case has one of the values of every axis that is given, as a function. Raises UserError."""
    wanted = parsed(axes)
    windows, lengths = wanted.pop("window", None), wanted.pop("lengths", None)

    def matches(case: Case) -> bool:
        return (
            all(AXES[name].of(case) in values for name, values in wanted.items())
            and (windows is None or AXES["window"].of(case) in [_band(case.causal, window)[1] for window in windows])
            and (lengths is None or any(of.matches(case) if of else not case.is_ragged for of in lengths))
        )

    return matches
