"""Frozen dataclasses as plain JSON values and back: the format of run files and of messages to and from workers.

Fields at their default are left out, and fields that are not known are ignored, so the file of an older or a newer
attnbench can be read. For a class with `strict = True` an unknown field is an error: the value would be another one
without it. A value that is not of its field's type is an error too, so that it is reported while the file is still
known. JSON has no NaN and no infinity; they are written as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]  # returns the field's value for a JSON value, or raises ValueError


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
    """Return the dataclass `cls` for what `to_json` returned.

    Raises ValueError that names the field that is missing, unknown (strict classes) or not of its type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{_shortened(data)} is no {cls.__name__.lower()}")
    readers = _field_readers(cls)  # type: ignore[arg-type]
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
        lacking = [name for name in _required_fields(cls) if name not in values]
        if not lacking:
            raise
        raise ValueError(f"a {cls.__name__.lower()} without {', '.join(lacking)}") from None


def _required_fields(cls: Any) -> list[str]:
    without = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is without and f.default_factory is without]


@cache
def _field_readers(cls: Any) -> Mapping[str, Reader]:
    hints = get_type_hints(cls)
    return {f.name: _reader_for(hints[f.name]) for f in dataclasses.fields(cls)}


def _reader_for(hint: Any) -> Reader:
    """Return the reader for a type: a dataclass, Literal, tuple, Sequence, Mapping, a plain type, or one with None."""
    kinds = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return partial(from_json, cast("type[Any]", hint))
    if get_origin(hint) is Literal:
        return partial(_read_literal, kinds)
    if type(None) in kinds:
        (kind,) = (kind for kind in kinds if kind is not type(None))
        read = _reader_for(kind)
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is Sequence:
        return partial(_read_tuple, _reader_for(kinds[0]), None)
    if get_origin(hint) is tuple:
        length = None if kinds[-1] is Ellipsis else len(kinds)
        return _read_floats if kinds[0] is float else partial(_read_tuple, _reader_for(kinds[0]), length)
    if get_origin(hint) is Mapping:
        return partial(_read_mapping, _reader_for(kinds[1]))
    return _PLAIN_READERS[hint]


def _read_float(value: Any) -> float:
    if type(value) in (float, int) or value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"{_shortened(value)} is no number")


def _read_floats(value: Any) -> tuple[float, ...]:
    """Return a tuple of floats; samples are many, so the usual list of floats is not read one by one."""
    _require_list(value)
    return tuple(value) if set(map(type, value)) <= {float} else tuple(map(_read_float, value))


def _read_int(value: Any) -> int:
    if type(value) is int or (type(value) is float and value.is_integer()):
        return int(value)
    raise ValueError(f"{_shortened(value)} is no whole number")


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{_shortened(value)} is no text")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{_shortened(value)} is neither true nor false")


_PLAIN_READERS: Mapping[Any, Reader] = {float: _read_float, int: _read_int, str: _read_str, bool: _read_bool}


def _read_literal(known: tuple[str, ...], value: Any) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{_shortened(value)} is none of {', '.join(known)}")


def _read_tuple(read: Reader, length: int | None, value: Any) -> tuple[Any, ...]:
    _require_list(value)
    if length not in (None, len(value)):
        raise ValueError(f"{_shortened(value)} is no list of {length}")
    return tuple(map(read, value))


def _require_list(value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shortened(value)} is no list")


def _read_mapping(read: Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{_shortened(value)} is no object with names")
    found = {}
    for key, item in value.items():
        try:
            found[key] = read(item)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def _shortened(value: Any) -> str:
    """Return a value as JSON text of at most 43 characters, for an error line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
