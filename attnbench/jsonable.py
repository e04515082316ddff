"""Frozen values as plain JSON and back: what workers and run files hold. Standard library only.

Fields at their default are left out and fields that are not known are dropped, so an old file and one of a newer
attnbench both read. Of a class with `strict` an unknown field is an error instead: without it, it is another value.
JSON has no NaN and no infinity; they are written as words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

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
    """A dataclass from what `to_json` made of it. ValueError or TypeError where that is not possible."""
    known, readers = _fields(cls)  # type: ignore[arg-type]
    values = dict(data)
    if not values.keys() <= known:
        unknown = values.keys() - known
        if getattr(cls, "strict", False):
            raise ValueError(f"a newer attnbench's {cls.__name__.lower()}, with {', '.join(sorted(unknown))}")
        for name in unknown:
            del values[name]
    for name, read in readers:
        if name in values:
            values[name] = read(values[name])
    return cls(**values)


@cache
def _fields(cls: Any) -> tuple[frozenset[str], tuple[tuple[str, Reader], ...]]:
    """All names, and how to read those that are not in JSON as they are here."""
    hints = get_type_hints(cls)
    readers = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(cls)}
    return frozenset(readers), tuple((name, read) for name, read in readers.items() if read is not _same)


def _reader(hint: Any) -> Reader:
    """What makes a value of that type: a dataclass, tuple or mapping of them, one of those or None, or plain JSON."""
    kinds = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return partial(from_json, cast("type[Any]", hint))
    if hint is float:
        return _number
    if type(None) in kinds:
        (kind,) = (kind for kind in kinds if kind is not type(None))
        read = _reader(kind)
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is tuple:
        read = _reader(kinds[0])
        plain = read is _same or read is _number  # samples are finite, and there are too many to look at each
        return tuple if plain else lambda value: tuple(map(read, value))
    if get_origin(hint) is Mapping:
        read = _reader(kinds[1])
        return lambda value: {key: read(one) for key, one in value.items()}
    return _same


def _number(value: Any) -> float:
    return float(value) if isinstance(value, str | int) else value


def _same(value: Any) -> Any:
    return value
