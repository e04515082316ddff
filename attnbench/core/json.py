"""Frozen values as plain JSON and back: what workers and run files hold. Standard library only.

Fields at their default are left out and fields that are not known are dropped, so an old file and one of a newer
attnbench both read. Of a class with `strict` an unknown field is an error instead: without it, it is another value.
A value that is not of its field's type is an error too: it would be one later, where nobody knows the file any more.
JSON has no NaN and no infinity; they are written as words.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]


def to_json(value: Any) -> Any:
    """A dataclass, or a mapping or sequence of them, as plain JSON values."""
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
    """A dataclass from what `to_json` made of it. ValueError that says which field is missing or not of its type."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{_quoted(data)} is no {cls.__name__.lower()}")
    readers = _fields(cls)  # type: ignore[arg-type]
    if getattr(cls, "strict", False) and not data.keys() <= readers.keys():
        unknown = ", ".join(sorted(data.keys() - readers.keys()))
        raise ValueError(f"a newer attnbench's {cls.__name__.lower()}, with {unknown}")
    values = {}
    for name, value in data.items():
        if name in readers:
            try:
                values[name] = readers[name](value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    try:
        return cls(**values)
    except TypeError:
        lacking = [name for name in _required(cls) if name not in values]
        if not lacking:
            raise
        raise ValueError(f"a {cls.__name__.lower()} without {', '.join(lacking)}") from None


def _required(cls: Any) -> list[str]:
    without = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is without and f.default_factory is without]


@cache
def _fields(cls: Any) -> Mapping[str, Reader]:
    """How to read each field."""
    hints = get_type_hints(cls)
    return {f.name: _reader(hints[f.name]) for f in dataclasses.fields(cls)}


def _reader(hint: Any) -> Reader:
    """What makes a value of that type, or raises: a dataclass, tuple or mapping of them, or None, or plain JSON."""
    kinds = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return partial(from_json, cast("type[Any]", hint))
    if get_origin(hint) is Literal:
        return partial(_one_of, kinds)
    if type(None) in kinds:
        (kind,) = (kind for kind in kinds if kind is not type(None))
        read = _reader(kind)
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is Sequence:
        return partial(_tuple, _reader(kinds[0]), None)
    if get_origin(hint) is tuple:
        number = None if kinds[-1] is Ellipsis else len(kinds)
        return _numbers if kinds[0] is float else partial(_tuple, _reader(kinds[0]), number)
    if get_origin(hint) is Mapping:
        return partial(_mapping, _reader(kinds[1]))
    return _PLAIN[hint]


def _number(value: Any) -> float:
    if type(value) in (float, int) or value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"{_quoted(value)} is no number")


def _numbers(value: Any) -> tuple[float, ...]:
    """Samples: there may be many."""
    _list(value)
    return tuple(value) if set(map(type, value)) <= {float} else tuple(map(_number, value))


def _whole(value: Any) -> int:
    if type(value) is int or (type(value) is float and value.is_integer()):
        return int(value)
    raise ValueError(f"{_quoted(value)} is no whole number")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{_quoted(value)} is no text")


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{_quoted(value)} is neither true nor false")


_PLAIN: Mapping[Any, Reader] = {float: _number, int: _whole, str: _text, bool: _truth}


def _one_of(known: tuple[str, ...], value: Any) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{_quoted(value)} is none of {', '.join(known)}")


def _tuple(read: Reader, number: int | None, value: Any) -> tuple[Any, ...]:
    _list(value)
    if number not in (None, len(value)):
        raise ValueError(f"{_quoted(value)} is no list of {number}")
    return tuple(map(read, value))


def _list(value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_quoted(value)} is no list")


def _mapping(read: Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{_quoted(value)} is no object with names")
    found = {}
    for key, one in value.items():
        try:
            found[key] = read(one)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def _quoted(value: Any) -> str:
    """As JSON has it, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
