"""A function's state in a process: all values that its results and its speed depend on, as texts to compare.

Another process that loads the function from its source measures the same function only if it has the same state. The
state differs after a change of a global or a default, a registration with functools.singledispatch, or an edit of a
file.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from attnbench.core.own_files import is_own

MOST = 5000  # the most values that are visited
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
LOOKS_UP = {"globals", "vars", "eval", "exec", "_getframe", "argv", "modules"}  # names that hide a call's dependencies
UNTOLD = "a name that it looks up while it runs"
CALLS = {"CACHE", "CALL", "CALL_METHOD", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"}
JUMPS = {*dis.hasjrel, *dis.hasjabs}
# Attributes that say where a class was defined, and not how it behaves.
_PLACES = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__annotations__"}
_PLACES |= {"__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__", "_abc_impl"}


def live_state(function: Any) -> dict[str, str]:
    """Return name -> a text of each value that a function or an object depends on, as this process has them.

    An installed library's text is its name; a tensor's, or another object's of a library, is its type. Where reading an
    object raises an error, the only text names that error.
    """
    try:
        return _Walk().of("", function)
    except Exception as error:  # attributes and texts of a person's objects raise anything
        return {"": f"{UNTOLD}: {type(error).__name__}"}


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first name whose texts in two states differ; "" where all are alike."""
    unlike = (name for name in {**one, **other} if one.get(name) != other.get(name))
    return next((name.rpartition("/")[2] or "its code" for name in unlike), "")


def digest(state: Mapping[str, str]) -> str:
    """Return a hash of a state, which tells two versions of a function apart."""
    return _short(repr(sorted(state.items())))[:8]


class _Walk:
    """Visit all values that can be reached from an object, each once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # kept alive, so that no other object gets their id
        self._found: dict[str, str] = {}

    def of(self, name: str, value: Any) -> dict[str, str]:
        """Return the texts of an object with this name and of everything that it depends on."""
        todo = [(name, value)]
        while todo and len(self._found) < MOST:
            name, value = todo.pop()
            if not isinstance(value, (*PLAIN, tuple)):  # equal plain values may be one object or several
                if id(value) in self._seen:
                    continue
                self._seen[id(value)] = value
            self._found[name] = _text(value)
            todo += reversed([*_parts(name, value)])
        return self._found


def _text(value: Any) -> str:
    """Return a text that distinguishes a value from others of its type, without its parts."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {_short(repr(value))}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} {_short(repr(sorted(map(repr, value))))}"
    if isinstance(value, FunctionType):
        return _code(value.__code__) if _is_own_function(value) else f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools._lru_cache_wrapper):
        return f"cache of {value.cache_info().currsize}"
    if isinstance(value, (type, ModuleType)):
        return value.__name__
    if type(value) is tuple:
        return f"({', '.join(map(_text, value))})"
    return type(value).__qualname__


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of everything that an object depends on."""
    if isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", one) for i, one in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{name}[{_key(key)}]", one) for key, one in value.items())
    elif isinstance(value, functools.partial):
        yield f"{name}.func", value.func
        yield f"{name}.args", value.args
        yield f"{name}.keywords", value.keywords
    elif isinstance(value, MethodType):
        yield f"{name}.__self__", value.__self__
        yield f"{name}.__func__", value.__func__
    elif isinstance(value, (staticmethod, classmethod)):
        yield f"{name}.__func__", value.__func__
    elif isinstance(value, property):
        yield f"{name}.fget", value.fget
    elif isinstance(value, FunctionType):
        yield from _of_function(name, value)
    elif isinstance(value, type):
        if _is_own_name(value.__module__):
            own = ((key, one) for key, one in vars(value).items() if key not in _PLACES)
            yield from ((f"{name}.{key}", one) for key, one in own)
    elif not isinstance(value, (*PLAIN, ModuleType, set, frozenset)):
        yield from _of_object(name, value)


def _of_function(name: str, value: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's defaults, attributes and the values of its names; for a library's wrapper, what it wraps."""
    for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            yield f"{name}/{variable}", cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    own = {key: one for key, one in vars(value).items() if not key.startswith("__")}
    yield from ((f"{name}.{key}", one) for key, one in own.items())
    if wrapped := vars(value).get("__wrapped__"):
        yield f"{name}.__wrapped__", wrapped
    if not _is_own_function(value):
        return
    yield f"{name}.__defaults__", value.__defaults__
    yield f"{name}.__kwdefaults__", value.__kwdefaults__
    used = [*_names(value.__code__)]
    for key in used:
        if key not in value.__globals__:
            continue
        one = value.__globals__[key]
        if isinstance(one, ModuleType):
            if _is_own_name(one.__name__):
                yield from ((f"{name}/{key}.{part}", vars(one)[part]) for part in used if part in vars(one))
        else:
            yield f"{name}/{key}", one


def _of_object(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object of a person's class; for a library's wrapper, the function that it wraps."""
    attributes = getattr(value, "__dict__", {})
    if _is_own_name(type(value).__module__):
        yield f"{name}/{type(value).__name__}", type(value)
        yield from ((f"{name}.{key}", one) for key, one in attributes.items())
        return
    for key in ("__wrapped__", "fn", "_orig_mod"):  # by functools, by triton.jit, by torch.compile
        if callable(one := attributes.get(key)):
            yield f"{name}.{key}", one


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and the functions in it use."""
    yield from dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def _code(code: CodeType) -> str:
    """Return a hash of a function's code, without its name and its place."""
    hides = sorted(LOOKS_UP & {*_names(code)})
    return f"{UNTOLD}: {', '.join(hides)}" if hides else _short(repr(_content(code)))


def _content(code: CodeType) -> tuple[Any, ...]:
    """Return a function's instructions, without Python's own for calls, which depend on how lines are broken."""
    steps = []
    for step in dis.get_instructions(code):
        if step.opname not in CALLS:
            of = _content(step.argval) if isinstance(step.argval, CodeType) else _text(step.argval)
            steps.append((step.opname.replace("METHOD", "ATTR"), "" if step.opcode in JUMPS else of))
    return code.co_argcount, code.co_kwonlyargcount, code.co_varnames, code.co_freevars, steps


def _key(key: Any) -> str:
    return f"{key.__module__}.{key.__qualname__}" if isinstance(key, type) else repr(key)[:100]


def _is_own_function(value: FunctionType) -> bool:
    return _is_own_name(value.__module__)


def _is_own_name(module: str | None) -> bool:
    """Return whether a module is a person's own, a script or a notebook included, and not installed."""
    top = str(module).partition(".")[0]
    if top == "__main__":  # in a notebook its file is the kernel's
        return True
    if top in sys.stdlib_module_names:
        return False
    found = sys.modules.get(str(module))
    file = getattr(found, "__file__", None)
    return not file or is_own(Path(file).resolve(), ())


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
