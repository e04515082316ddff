"""The arguments of the API: their types, and their conversion to axes and settings of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from attnbench.core.axes import AXES
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.files import can_name_a_file
from attnbench.core.text import shortened

if TYPE_CHECKING:
    from attnbench.run.suite import Settings

Values = Any  # values of an axis: one, a list, or a text as the command line takes
DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "torch.float8_e4m3fn": "fp8"}

Kind = tuple[str, tuple[type, ...]]  # the name of a kind of argument, for messages, and its types
TEXT: Kind = ("a text", (str,))
PATH: Kind = ("a path", (str, Path))
WHOLE: Kind = ("a whole number", (Integral,))
NUMBER: Kind = ("a number", (Real,))
SWITCH: Kind = ("True or False", (bool,))
LIST: Kind = ("a list", (Sequence,))
MAPPING: Kind = ("a dict", (Mapping,))
NONE: Kind = ("None", (type(None),))


def check_types(given: Mapping[str, Any], kinds: Mapping[str, Sequence[Kind]]) -> None:
    """Raise UserError for an argument that has none of the types of its `kinds`. A bool is no number."""
    for name, of in kinds.items():
        value, types = given[name], tuple(type_ for _, types in of for type_ in types)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            what = " or ".join(words for words, _ in of)
            raise UserError(f"{name}: {shortened(repr(value))} is not {what}")
        if PATH in of and isinstance(value, str | Path) and not can_name_a_file(str(value)):
            raise UserError(f"{name}: no file can have the name {shortened(repr(str(value)))}")


def check_texts(name: str, given: Iterable[Any] | None, what: str = "a text") -> None:
    """Raise UserError for an item of a list, or a key of a dict, that is no text."""
    for one in given or ():
        if not isinstance(one, str):
            raise UserError(f"{name}: {shortened(repr(one))} is not {what}")


def path_of(given: Any, name: str = "path") -> Path:
    """Return an argument as a path, without a ~ for the home folder. Raises UserError for any other value."""
    check_types({name: given}, {name: (PATH,)})
    return Path(os.path.expanduser(given))


def has_items(given: Any) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is an iterable of items; an array without dimensions is a single number."""
    return isinstance(given, Iterable) and bool(getattr(given, "ndim", 1))


def texts_of(name: str, given: Any) -> Sequence[str]:
    """Return an argument that is a text or a list of texts as a list. Raises UserError for anything else."""
    check_types({name: given}, {name: (TEXT, LIST)})
    texts = [given] if isinstance(given, str) else given
    check_texts(name, texts)
    return texts


def margin_of(given: Any) -> float:
    """Return a margin as a share: 0.03 for 0.03 and for "3%". Raises UserError for any other value."""
    from attnbench.analysis.gate.margins import parse

    if isinstance(given, str):
        return parse(given, "margin")
    check_types({"margin": given}, {"margin": (NUMBER, TEXT)})
    if not 0 <= given < 1:  # excludes nan too
        raise UserError(f'margin: {given!r} is not from 0 to below 1; write 0.03 or "3%"')
    return float(given)


def settings(axes: Mapping[str, Values], **others: Any) -> Settings:
    """Return the settings of a suite that arguments replace, without axes that are None. Raises UserError for an
    unknown axis or value.
    """
    from attnbench.run.suite import parse_options

    given = {name: value for name, value in axes.items() if value is not None}
    for name in given:
        if name not in AXES or not AXES[name].has_option:
            of_option = next((known for known, axis in AXES.items() if axis.option == name), None)
            hint = (
                f"; it is {of_option} here"
                if of_option
                else did_you_mean(name, [n for n in AXES if AXES[n].has_option])
            )
            raise UserError(f"there is no axis {name!r}{hint}")
    return parse_options({"axes": {name: _as_option(name, value) for name, value in given.items()}, **others})


def _as_option(name: str, value: Values) -> Any:
    """Return an axis's values as its option takes them: text with commas, or a flag. Raises UserError for none."""
    axis = AXES[name]
    if isinstance(value, tuple) and axis.pair:
        return axis.pair.join("open" if side in (None, -1) else str(side) for side in value)
    several = has_items(value) and not isinstance(value, str | bytes | Mapping)
    values = [*value] if several else [value]
    if not values:
        raise UserError(f"{name}: no value is given; leave it out, or give one")
    if axis.switch:
        flags = [_flag(name, one) for one in values]
        return flags if several else flags[0]
    if several:
        return ",".join(str(_as_option(name, one)) for one in values)
    return DTYPES.get(str(value), str(value))


def _flag(name: str, value: Any) -> bool:
    """Return a flag. Raises UserError for any other value: the text "False" would count as true."""
    if type(value).__name__ not in ("bool", "bool_"):  # Python's or numpy's
        raise UserError(f"{name}: {shortened(repr(value))} is neither True nor False")
    return bool(value)
