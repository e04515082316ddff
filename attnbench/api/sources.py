"""The source of a function that a person defined in a script or notebook, as a module of its own.

It has the statements that the function needs, and no others, so that another process can load it without running the
script. NotSource names a part that has no source (a tensor, an object with state).
"""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import functools
import importlib.util
import math
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from attnbench.api.definitions import ANNOTATIONS, NotSource, bindings, class_definition, compiled, definition, told
from attnbench.core.own_files import is_own

LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # they load a name from outside
PLAIN = (bool, int, str, bytes, type(None))
COLLECTIONS = (tuple, list, set, frozenset, dict)
MOST = 5000  # most values in a collection; a value in it several times counts several times
DEEPEST = 50  # most levels of collections; Python reads 200 nested brackets, and a level takes two
MOST_BITS = 2000  # most bits of an int; Python reads at least 640 decimal digits, whatever its settings


def module_source(function: Any, name: str, scope: Mapping[str, Any]) -> str:
    """Return a module that defines `function`, an object that can be called, as `name`. Raises NotSource.

    `scope` has the variables of the caller, in which an object that is no function is looked up.
    """
    found = _Slice(scope)
    found.add(name, function)
    first = ["from __future__ import annotations"] if found.is_lazy else []
    return "\n".join([*first, *found.statements]) + "\n"


class _Slice:
    """Statements in an order in which each finds the names that it needs."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.statements: list[str] = []
        self.is_lazy = False  # whether annotations are not evaluated
        self._scope = scope
        self._known: dict[str, Any] = {}  # name -> value, of names that have a statement
        self._folders: set[str] = set()  # folders to add to sys.path

    def add(self, name: str, value: Any) -> None:
        """Add the statement that binds a name to a value, after the statements that it needs. Raises NotSource."""
        if name in self._known:
            if self._known[name] is not value and self._known[name] != value:
                raise NotSource(f"{name} stands for two things")
            return
        self._known[name] = value
        if not _is_small(value):
            raise NotSource(f"{name} is too large a value to be written as source")
        if (plain := _plain(value)) is not None:
            self.statements.append(f"{name} = {plain}")
        elif imported := self._imported(name, value):
            self.statements.append(imported)
        elif isinstance(value, functools.partial):
            self._add_partial(name, value)
        else:
            self._add_defined(name, value)

    def _imported(self, name: str, value: Any) -> str:
        """Return the statement that imports a value from where others can import it too; "" where there is none."""
        module = value if isinstance(value, ModuleType) else sys.modules.get(told(value, "__module__"))
        if module is None or is_script(module):
            return ""
        if (
            type(value).__module__ == "torch" and getattr(sys.modules["torch"], str(value)[6:], None) is value
        ):  # a dtype of torch
            return f"import torch\n{name} = {value}"
        path = "" if value is module else told(value, "__qualname__") or told(value, "__name__")
        try:
            found = functools.reduce(getattr, path.split("."), module) if path else module
        except AttributeError:  # raised for a function within another
            return ""
        if found is not value or (not path and value is not module):
            return ""
        self._find(module)
        first = f"import {module.__name__} as {name}"
        return first if not path else f"{first}\n{name} = {name}.{path}"

    def _find(self, module: ModuleType) -> None:
        """Make the module importable where it is neither installed nor in the standard library. Raises NotSource."""
        top = sys.modules[module.__name__.partition(".")[0]]
        file = Path(getattr(top, "__file__", None) or next(iter(getattr(top, "__path__", ())), sys.prefix))
        if top.__name__ in sys.stdlib_module_names or not is_own(file.resolve(), ()) or file == Path(sys.prefix):
            return
        if importlib.util.find_spec(top.__name__) is None:
            raise NotSource(f"module {module.__name__} cannot be imported by another process")
        folder = str(file.parent.parent if hasattr(top, "__path__") and file.suffix else file.parent)
        if folder not in self._folders:
            self._folders.add(folder)
            self.statements.insert(0, f"import sys\nsys.path.append({folder!r})")

    def _add_partial(self, name: str, value: functools.partial[Any]) -> None:
        self.add(inner := f"_{name}_called", value.func)
        arguments = [_plain(one) for one in value.args]
        arguments += [f"{key}={text}" if (text := _plain(one)) else None for key, one in value.keywords.items()]
        if None in arguments:
            raise NotSource(f"{name} is a functools.partial with an argument that is no plain value")
        self.statements.append(
            f"import functools\n{name} = functools.partial({', '.join([inner, *map(str, arguments)])})"
        )

    def _add_defined(self, name: str, value: Any) -> None:
        """Add a person's statement that made a value: a def, a class, a lambda or an assignment."""
        layers = [*_inner(value)]
        inner = layers[-1]
        if isinstance(inner, FunctionType) and self._is_made_by_its_def(layers):
            node: ast.stmt | ast.expr = _as_live(definition(inner), inner)
            names = _names_around(inner)
        elif isinstance(value, type):
            node, names = class_definition(value, self._globals), self._globals
        else:
            node, names = self._assignment(name, value), self._globals
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            given, node.name = node.name, name
        elif isinstance(node, ast.Lambda):
            given, node = name, ast.Assign([ast.Name(name, ast.Store())], node, lineno=0)
        else:
            given = name
        flags = inner.__code__.co_flags if isinstance(inner, FunctionType) else 0
        self.is_lazy |= bool(flags & ANNOTATIONS)
        source = ast.unparse(ast.fix_missing_locations(node))
        again = ""
        for needed in _needs(source, flags):
            if needed == name:
                continue
            if needed == given and names.get(needed) is value:  # the function calls itself by that name
                again = f"{given} = {name}"
            elif needed in names:
                self.add(needed, names[needed])
            elif not hasattr(builtins, needed):
                raise NotSource(f"{name} needs {needed}, which is not defined")
        self.statements += [source, *([again] if again else [])]
        for attribute, text in _attributes(value):
            self.statements.append(f"{name}.{attribute} = {text}")

    @property
    def _globals(self) -> Mapping[str, Any]:
        """The global names of the script or module, without the local names of its functions."""
        return self._scope.maps[-1] if isinstance(self._scope, ChainMap) else self._scope

    def _is_made_by_its_def(self, layers: Sequence[Any]) -> bool:
        """Return whether the def of this name made the value, with one decorator for each layer around the function."""
        node = definition(layers[-1])
        decorators = len(getattr(node, "decorator_list", ()))
        if len(layers) == 1:
            return not decorators
        return decorators == len(layers) - 1 and _names_around(layers[-1]).get(layers[-1].__name__) is layers[0]

    def _assignment(self, name: str, value: Any) -> ast.stmt:
        """Return the one statement of the script or the notebook that binds an object to a name.

        The object must have no state of its own, and each name in the statement be bound once. Raises NotSource.
        """
        kind = type(value).__name__
        if not callable(value):
            raise NotSource(f"{name} is a {kind}, whose value is not in its source")
        if not isinstance(value, FunctionType) and _has_state(value):
            raise NotSource(f"{name} is a {kind} with state, which is not in its source")
        held = next((of for of, one in self._globals.items() if one is value and not of.startswith("_")), "")
        found = bindings(self._globals, held) if held else []
        if len(found) != 1 or not isinstance(found[0], ast.Assign):
            raise NotSource(f"{name} is a {kind} that no single statement assigns to a name")
        for needed in _needs(ast.unparse(found[0])):
            if len(bindings(self._globals, needed)) > 1:
                raise NotSource(f"{name} is made of {needed}, which is bound several times")
        return ast.Assign([ast.Name(name, ast.Store())], found[0].value, lineno=0)


def _has_state(value: Any) -> bool:
    """Return whether an object seems to hold attributes that a new object of its class would not."""
    own = {**getattr(value, "__dict__", {})}
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module):
        plain = vars(sys.modules["torch"].nn.Module())
        return any(key not in plain or ((bool(of) or bool(plain[key])) and of != plain[key]) for key, of in own.items())
    return bool(own) or bool(getattr(type(value), "__slots__", ()))


def _attributes(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the attributes set on a function or a class, as text: order = "bhsd". Raises NotSource for one without."""
    if isinstance(value, type) and not isinstance(value, enum.EnumMeta):
        for name, given in vars(value).items():
            if name.startswith("__") or isinstance(given, (FunctionType, staticmethod, classmethod, property, type)):
                continue
            if (text := _plain(given)) is None:
                raise NotSource(
                    f"{value.__name__}.{name} is a {type(given).__name__}, whose value is not in its source"
                )
            yield name, text
    for name, given in vars(value).items() if isinstance(value, FunctionType) else ():
        if not name.startswith("_") and (text := _plain(given)) is not None:
            yield name, text


def _plain(value: Any) -> str | None:
    """Return the source text of a value that is a number, a text or a small collection of these; None for any other."""
    return _plain_text(value) if _is_small(value) else None


def _is_small(value: Any) -> bool:
    """Return whether a value has a text of a bounded length and depth. A collection may hold itself."""
    todo, count = [(value, 0)], 0
    while todo:
        one, depth = todo.pop()
        count += 1
        if type(one) is int and one.bit_length() > MOST_BITS:
            return False
        if type(one) in COLLECTIONS:
            if count + len(one) > MOST or depth == DEEPEST:
                return False
            todo += [(part, depth + 1) for part in (chain(one, one.values()) if type(one) is dict else one)]
    return count <= MOST


def _plain_text(value: Any) -> str | None:
    if type(value) in PLAIN:
        return repr(value)
    if type(value) in (float, complex):
        return repr(value) if not isinstance(value, float) or math.isfinite(value) else f'float("{value}")'
    if type(value) in (tuple, list, set, frozenset):
        texts = [_plain_text(one) for one in value]
        if isinstance(value, (set, frozenset)):  # in the same order in each process
            texts.sort(key=str)
        if None in texts:
            return None
        inner = ", ".join(map(str, texts))
        return f"{type(value).__name__}([{inner}])"
    if type(value) is dict:
        pairs = [(_plain_text(key), _plain_text(one)) for key, one in value.items()]
        return None if any(None in pair for pair in pairs) else f"{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}"
    return None


def _inner(value: Any) -> Iterator[Any]:
    """Yield an object, then the functions inside its decorators, such as triton.jit and functools.wraps."""
    while value is not None:
        yield value
        value = vars(value).get("__wrapped__") or vars(value).get("fn") if hasattr(value, "__dict__") else None


def _as_live(node: ast.stmt | ast.expr, of: FunctionType) -> ast.stmt | ast.expr:
    """Return a def or lambda with the present defaults of the function. Raises NotSource."""
    if any(one.opname == "STORE_DEREF" and one.argval in of.__code__.co_freevars for one in dis.get_instructions(of)):
        raise NotSource(f"{of.__name__} changes a variable of a function around it")
    arguments: ast.arguments = node.args  # type: ignore[union-attr]
    given = of.__defaults__ or ()
    if len(given) != len(arguments.defaults):
        raise NotSource(f"the defaults of {of.__name__} were changed")
    arguments.defaults = [_constant(of, one) for one in given]
    by_name = of.__kwdefaults__ or {}
    arguments.kw_defaults = [
        _constant(of, by_name[one.arg]) if one.arg in by_name else None for one in arguments.kwonlyargs
    ]
    return node


def _constant(of: FunctionType, value: Any) -> ast.expr:
    if (text := _plain(value)) is None:
        raise NotSource(f"a default of {of.__name__} is a {type(value).__name__}, whose value is not in its source")
    return ast.parse(text, mode="eval").body


def _names_around(function: FunctionType) -> Mapping[str, Any]:
    """Return the values of names that a function uses from outside, first from the functions around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosing = {}
    for name, cell in cells:
        try:
            enclosing[name] = cell.cell_contents
        except ValueError:
            raise NotSource(f"{function.__name__} needs {name}, which has no value yet") from None
    return {**function.__globals__, **enclosing}


def _needs(source: str, flags: int = 0) -> list[str]:
    """Return the names that a statement takes from outside, in their order."""
    found, codes = dict[str, None](), [compiled(source, flags)]
    for code in codes:
        instructions = [*dis.get_instructions(code)]
        own = {one.argval for one in instructions if one.opname == "STORE_NAME"}  # names that a class body binds itself
        names = [one.argval for one in instructions if one.opname in LOADS and one.argval in code.co_names]
        found |= dict.fromkeys(name for name in names if name not in own or code is codes[0])
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    return [*found]


def is_script(module: ModuleType) -> bool:
    """Whether a module is run and not imported by others: a script, a notebook, or a file of tests."""
    name = module.__name__.rpartition(".")[2]
    return name in ("__main__", "conftest") or name.startswith("test_") or name.endswith("_test")
