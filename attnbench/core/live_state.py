"""A function's state in a process: all values that its results and its speed depend on, as texts to compare.

Another process that loads the function from its source measures the same function only if it has the same state. The
state differs after a change of a global or a default, a registration with functools.singledispatch, or an edit of a
file.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from attnbench.core.own_files import is_own

MOST = 5000  # the most values that are visited, lists of plain values counting as one
NAMED = 100  # the most items of a list or dict of plain values that are named one by one
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
LOOKS_UP = {"globals", "vars", "eval", "exec", "_getframe", "argv", "modules"}  # names that hide a call's dependencies
UNTOLD = "a name that it looks up while it runs"
SKIPPED = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"}  # instructions that depend on how lines are broken
# Instructions with two names, of which line breaks decide one.
ONE_NAME = {"LOAD_METHOD": "LOAD_ATTR", "CALL_METHOD": "CALL", "CALL_FUNCTION": "CALL"}
VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
JUMPS = {*dis.hasjrel, *dis.hasjabs}
# Attributes that say where a class was defined, and not how it behaves.
_PLACES = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__annotations__"}
_PLACES |= {"__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__", "_abc_impl"}


def live_state(function: Any) -> dict[str, str]:
    """Return name -> a text of each value that a function or an object depends on, as this process has them.

    An installed library is described by its name; a tensor by its type, shape and number of changes in place; another
    object of a library by the text that it prints. Where reading an object raises an error, the only text names the
    error.
    """
    try:
        return _Walk().of("", function)
    except Exception as error:  # attributes and texts of a person's objects raise anything
        return {"": f"{UNTOLD}: {type(error).__name__}"}


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first name whose texts in two states differ; "" where all are equal."""
    unlike = (name for name in {**one, **other} if one.get(name) != other.get(name))
    return next((name.rpartition("/")[2] or "its code" for name in unlike), "")


def digest(state: Mapping[str, str]) -> str:
    """Return a hash of a state, which tells two versions of a function apart."""
    return _short(repr(sorted(state.items())))[:8]


class _Walk:
    """Visit all values that can be reached from an object, each once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # kept alive, so that no other object gets their id
        self._whole: dict[int, str | None] = {}  # id of a container -> its text, where it has plain values alone
        self._kept: list[Any] = []  # the containers of `_whole`, kept alive too
        self._found: dict[str, str] = {}

    def of(self, name: str, value: Any) -> dict[str, str]:
        """Return the texts of an object with this name and of everything that it depends on."""
        todo = [(name, value)]
        while todo:
            if len(self._found) >= MOST:
                self._found[name] = f"{UNTOLD}: over {MOST} values"
                break
            name, value = todo.pop()
            whole = self._plain(value)
            if whole is not None and (type(value) not in (list, dict) or len(value) > NAMED):
                self._found[name] = whole  # equal plain values may be one object or several
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._found[name] = _text(value)
            todo += reversed([*_parts(name, value)])
        return self._found

    def _plain(self, value: Any) -> str | None:
        """Return the text of a plain value, or of a container of plain values; None for any other value."""
        if type(value) in PLAIN:
            return f"{type(value).__name__} {_short(repr(value))}"
        if type(value) not in (list, tuple, dict, set, frozenset):
            return None
        if id(value) not in self._whole:
            self._kept.append(value)
            self._whole[id(value)] = None  # a container within itself is not plain
            keys = [_key(key) for key in value] if isinstance(value, dict) else []
            texts = [self._plain(one) for one in (value.values() if isinstance(value, dict) else value)]
            known = [text for text in texts if text is not None]
            if len(known) == len(texts):
                in_order = sorted(known) if isinstance(value, (set, frozenset)) else known
                self._whole[id(value)] = f"{type(value).__name__} {_short(repr((keys, in_order)))}"
        return self._whole[id(value)]


def _text(value: Any) -> str:
    """Return a text that distinguishes a value from others of its type, without its parts."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {_short(repr(value))}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} {_short(repr(sorted(map(_key, value))))}"
    if isinstance(value, FunctionType):
        return _code(value.__code__) if _is_own_function(value) else f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools._lru_cache_wrapper):
        return f"cache of {value.cache_info().currsize}"
    if isinstance(value, (type, ModuleType)):
        return value.__name__
    kind = type(value)
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names or _is_own_name(kind.__module__):
        return kind.__qualname__  # its parts get their own texts
    if hasattr(kind, "_version"):  # a tensor: its values may be on a GPU
        return f"{kind.__qualname__} {value.dtype} {tuple(value.shape)} changed {value._version} times"
    shown = repr(value)
    return kind.__qualname__ if " at 0x" in shown else f"{kind.__qualname__} {_short(shown)}"


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of everything that an object depends on."""
    if isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", one) for i, one in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{name}[{_key(key)}]", one) for key, one in value.items())
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        if _is_own_name(type(value).__module__):
            yield from _of_object(name, value)
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
            yield from ((f"{name}.{base.__name__}", base) for base in value.__bases__)
    elif not isinstance(value, (*PLAIN, ModuleType)):
        yield from _of_object(name, value)


def _of_function(name: str, value: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's defaults, attributes and values of its names; of a library's wrapper the wrapped function."""
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
        if key not in value.__globals__ and key not in sys.modules:  # a name that the function may import itself
            continue
        one = value.__globals__.get(key, sys.modules.get(key))
        if isinstance(one, ModuleType):
            if _is_own_name(one.__name__):
                parts = used if "getattr" not in used else [part for part in vars(one) if not part.startswith("__")]
                yield from ((f"{name}/{key}.{part}", vars(one)[part]) for part in parts if part in vars(one))
        else:
            yield f"{name}/{key}", one


def _of_object(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object of a person's class or of the standard library.

    For a library's wrapper it is the function that is wrapped.
    """
    kind = type(value)
    attributes = getattr(value, "__dict__", {})
    if _is_own_name(kind.__module__):
        yield f"{name}/{kind.__name__}", kind
        yield from ((f"{name}.{key}", one) for key, one in attributes.items())
        slots = [slot for of in kind.__mro__ for slot in _slots(of) if slot not in ("__dict__", "__weakref__")]
        yield from ((f"{name}.{slot}", getattr(value, slot)) for slot in slots if hasattr(value, slot))
        return
    wrapped = [key for key in ("__wrapped__", "fn", "_orig_mod") if callable(attributes.get(key))]
    # The functions in wrappers by functools, triton.jit and torch.compile.
    yield from ((f"{name}.{key}", attributes[key]) for key in wrapped)
    if not wrapped and kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        yield from _of_standard(name, value)


def _slots(of: type) -> tuple[str, ...]:
    slots = vars(of).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _of_standard(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts from which copy rebuilds an object of the standard library; nothing for one without a copy."""
    if isinstance(value, contextvars.ContextVar):
        yield f"{name}.get()", value.get(None)
        return
    if type(value).__module__ == "weakref":  # a cache, which calls fill
        return
    try:
        made = value.__reduce_ex__(2)
    except Exception:  # no copy, as of a lock, a file, a generator
        return
    if isinstance(made, tuple):
        _, arguments, state, items, pairs = (*made, *(None,) * 5)[:5]
        yield f"{name}()", arguments
        yield f"{name}.__dict__", state
        yield f"{name}[]", [*(items or ()), *(pairs or ())]


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
    """Return a function's instructions in a form that does not depend on line breaks in its source."""
    steps: list[tuple[Any, ...]] = []
    places: dict[int, int] = {}  # offset of an instruction -> the number of steps before it
    for step in dis.get_instructions(code):
        places[step.offset] = len(steps)
        if step.opname in SKIPPED:
            continue
        if step.argval == "__firstlineno__" and steps:  # in the body of a class: the line number and its name
            steps.pop()
            continue
        given = code.co_consts[step.arg or 0] if step.opname == "KW_NAMES" else step.argval
        if isinstance(given, tuple) and "_FAST_" in step.opname:  # one instruction for two on the same line
            steps += zip(step.opname.replace("_FAST_", "_FAST ").split(), given, strict=True)
        elif step.opcode in JUMPS:
            steps.append((step.opname, "to", given))
        else:
            of = _content(given) if isinstance(given, CodeType) else _constant(given)
            steps.append((ONE_NAME.get(step.opname, step.opname), of))
    led = [(*step[:2], places.get(step[2])) if step[1:2] == ("to",) else step for step in steps]
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & VARIADIC
    tries: list[tuple[Any, ...]] = []  # since Python 3.11 a table; a line break splits its entries
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
        first, last, to = (places.get(offset, len(steps)) for offset in (entry.start, entry.end, entry.target))
        if tries and tries[-1][1:] == (first, to, entry.depth):
            tries[-1] = (tries[-1][0], last, to, entry.depth)
        elif first < last:
            tries.append((first, last, to, entry.depth))
    return arguments, code.co_varnames, code.co_freevars, led, tries


def _constant(value: Any) -> str:
    """Return the text of a constant of a function's code, the same in each process for a set too."""
    if isinstance(value, (tuple, frozenset)):
        texts = map(_constant, value)
        return f"{type(value).__name__} {[*texts] if isinstance(value, tuple) else sorted(texts)}"
    return f"{type(value).__name__} {value!r}"


def _key(key: Any) -> str:
    return f"{key.__module__}.{key.__qualname__}" if isinstance(key, type) else repr(key)[:100]


def _is_own_function(value: FunctionType) -> bool:
    return _is_own_name(value.__module__)


def _is_own_name(module: str | None) -> bool:
    """Return whether a module is a person's own, a script or a notebook included, and not installed."""
    top = str(module).partition(".")[0]
    if top == "__main__":  # in a notebook its file is ipykernel's
        return True
    if top in sys.stdlib_module_names:
        return False
    found = sys.modules.get(str(module))
    file = getattr(found, "__file__", None)
    return not file or is_own(Path(file).resolve(), ())


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
