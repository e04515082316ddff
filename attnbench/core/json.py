"""Frozen dataclasses as plain JSON values and back: the format of run files and of messages to and from workers.

Fields at their default are left out, and unknown fields are ignored, so that files of an older or a newer attnbench can
be read. For a class with `strict = True` an unknown field is an error, because the value would mean something else
without it. A value of another type than its field's is an error too, reported where the file is still known. JSON has
no NaN and no infinity; they are written as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cache
from json import dumps as dumps  # bound here, so that no kernel can replace it
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from attnbench.core.text import shortened

T = TypeVar("T")
PLAIN: Mapping[Any, str] = {float: "no number", int: "no whole number", str: "no text", bool: "neither true nor false"}


def to_json(value: Any) -> Any:
    """Return plain JSON values for a dataclass, or for a mapping or sequence of dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            if item != default:
                out[f.name] = to_json(item)
        return out
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return the dataclass `cls` from the values that `to_json` returned.

    Raises ValueError, which names a field that is missing, unknown (in strict classes) or of a wrong type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{_shortened(data)} is no {cls.__name__.lower()}")
    hints = _hints(cls)  # type: ignore[arg-type]
    if getattr(cls, "strict", False) and not data.keys() <= hints.keys():
        unknown = ", ".join(sorted(data.keys() - hints.keys()))
        raise ValueError(f"a newer attnbench's {cls.__name__.lower()}, with {unknown}")
    values = {name: _read_at(name, hints[name], value) for name, value in data.items() if name in hints}
    try:
        return cls(**values)
    except TypeError:
        lacking = [name for name in _required_fields(cls) if name not in values]
        if not lacking:
            raise
        name = cls.__name__.lower()
        article = "an" if name[0] in "aeiou" else "a"
        raise ValueError(f"{article} {name} without {', '.join(lacking)}") from None


@cache
def _hints(cls: Any) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _required_fields(cls: Any) -> list[str]:
    without = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is without and f.default_factory is without]


def _read_at(place: str, hint: Any, value: Any) -> Any:
    """Read a value as `_read` does, and name its place in an error."""
    try:
        return _read(hint, value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _read(hint: Any, value: Any) -> Any:
    """Return a JSON value as the type `hint`: a dataclass, Literal, tuple, Sequence, Mapping, plain type or T | None.

    Raises ValueError for a value of another type.
    """
    if hint in PLAIN:
        return _read_plain(hint, value)
    origin, kinds = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value)  # type: ignore[arg-type]
    if type(None) in kinds:
        (kind,) = (kind for kind in kinds if kind is not type(None))
        return None if value is None else _read(kind, value)
    if origin is Literal:
        if value not in kinds:
            raise ValueError(f"{_shortened(value)} is none of {', '.join(kinds)}")
        return value
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ValueError(f"{_shortened(value)} is no object with names")
        return {_read_plain(str, name): _read_at(name, kinds[1], item) for name, item in value.items()}
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shortened(value)} is no list")
    if origin is tuple and kinds[-1] is not Ellipsis and len(value) != len(kinds):
        raise ValueError(f"{_shortened(value)} is no list of {len(kinds)}")
    return tuple(_read(kinds[0], item) for item in value)


def _read_plain(hint: Any, value: Any) -> Any:
    if hint is int and type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and abs(value) >= 2**63:
        raise ValueError(f"{_shortened(value)} is beyond 64 bits")
    if hint is float and (type(value) in (float, int) or value in ("nan", "inf", "-inf")):
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{_shortened(value)} is {PLAIN[hint]}")
    # The text of an exception may have half of a surrogate pair, which no file can hold: U+FFFD replaces it.
    if hint is str:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _shortened(value: Any) -> str:
    """Return a value as JSON text of at most 43 characters, for an error line."""
    return shortened(dumps(value))
