"""The source of a function that a person has defined in a script or a notebook, as a module of its own.

It holds the statements that the function needs, and no others, so that another process can load it without running the
script. What cannot be had as source (a tensor, an object with state) is named by NotSource.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import functools
import importlib.util
import inspect
import linecache
import math
import operator
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from attnbench.core.own_code import PACKAGES

LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # of names from around a statement
ANNOTATIONS = __future__.annotations.compiler_flag
FUTURE = functools.reduce(operator.or_, (getattr(__future__, of).compiler_flag for of in __future__.all_feature_names))
PLAIN = (bool, int, str, bytes, type(None))


class NotSource(Exception):
    """There is no source of what a function needs. The message says of what."""


def module_source(function: Any, name: str, scope: Mapping[str, Any]) -> str:
    """Return a module that defines `function`, an object that can be called, as `name`. Raises NotSource.

    `scope` has the names of the place where it was given, in which an object that is no function is looked up.
    """
    slice = _Slice(scope)
    slice.add(name, function)
    first = ["from __future__ import annotations"] if slice.is_lazy else []
    return "\n".join([*first, *slice.statements]) + "\n"


class _Slice:
    """Statements in an order in which each finds the names that it needs."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.statements: list[str] = []
        self.is_lazy = False  # whether annotations are not evaluated
        self._scope = scope
        self._known: dict[str, Any] = {}  # name -> its value, of those that have a statement
        self._folders: set[str] = set()  # on sys.path

    def add(self, name: str, value: Any) -> None:
        """Add what binds a name to a value, behind what that needs. Raises NotSource."""
        if name in self._known:
            if self._known[name] is not value and self._known[name] != value:
                raise NotSource(f"{name} stands for two things")
            return
        self._known[name] = value
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
        module = value if isinstance(value, ModuleType) else sys.modules.get(str(getattr(value, "__module__", "")))
        if module is None or is_script(module):
            return ""
        if str(value).startswith("torch.") and getattr(sys.modules["torch"], str(value)[6:], None) is value:  # a dtype
            return f"import torch\n{name} = {value}"
        path = "" if value is module else str(getattr(value, "__qualname__", getattr(value, "__name__", "")))
        try:
            found = functools.reduce(getattr, path.split("."), module) if path else module
        except AttributeError:  # as of a function within another
            return ""
        if found is not value or (not path and value is not module):
            return ""
        self._find(module)
        first = f"import {module.__name__} as {name}"
        return first if not path else f"{first}\n{name} = {name}.{path}"

    def _find(self, module: ModuleType) -> None:
        """Let the module be found where it is neither installed nor of the standard library. Raises NotSource."""
        top = sys.modules.get(module.__name__.partition(".")[0], module)
        file = getattr(top, "__file__", None) or next(iter(getattr(top, "__path__", ())), "")
        if not file or top.__name__ in sys.stdlib_module_names or any(part in file for part in PACKAGES):
            return
        spec = importlib.util.find_spec(top.__name__)
        if spec is None or (not spec.origin and not spec.submodule_search_locations):
            raise NotSource(f"module {module.__name__} cannot be imported by another process")
        folder = next((of for of in sys.path if of and file.startswith(of)), "") or sys.path[0]
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
        """Add the statement of a person's that has made a value: a def, a class, a lambda or an assignment."""
        layers = [*_inner(value)]
        if isinstance(layers[-1], (FunctionType, type)) and (len(layers) == 1 or self._is_decorated(value, layers[-1])):
            node, source = _definition(layers[-1])
            names = _names_around(layers[-1]) if isinstance(layers[-1], FunctionType) else self._scope
        else:
            node, source = self._assignment(name, value)
            names = self._scope
        flags = layers[-1].__code__.co_flags if isinstance(layers[-1], FunctionType) else 0
        if flags & ANNOTATIONS:
            self.is_lazy = True
        for needed in _needs(source, flags):
            if needed in names and needed != getattr(node, "name", name):
                self.add(needed, names[needed])
            elif needed not in names and not hasattr(builtins, needed):
                raise NotSource(f"{name} needs {needed}, which is not defined")
        self.statements.append(source if not isinstance(node, ast.Lambda) else f"{name} = {source}")
        if (made := getattr(node, "name", name)) != name:
            self.statements.append(f"{name} = {made}")
        for attribute, given in vars(value).items() if isinstance(value, FunctionType) else ():
            if not attribute.startswith("_") and (text := _plain(given)) is not None:  # as order = "bhsd"
                self.statements.append(f"{name}.{attribute} = {text}")

    def _is_decorated(self, value: Any, inner: FunctionType | type) -> bool:
        """Whether decorators of its own def have made a value of a function, as triton.jit."""
        node, _ = _definition(inner)
        around = _names_around(inner) if isinstance(inner, FunctionType) else self._scope
        return bool(getattr(node, "decorator_list", ())) and around.get(inner.__name__) is value

    def _assignment(self, name: str, value: Any) -> tuple[ast.stmt, str]:
        """Return the last statement of the script or the notebook that assigns an object without parameters to a name.

        Raises NotSource.
        """
        kind = type(value).__name__
        if not callable(value):
            raise NotSource(f"{name} is a {kind}, whose value is not in its source")
        if any(True for _ in getattr(value, "parameters", lambda: ())()):
            raise NotSource(f"{name} is a {kind} with parameters, whose values are not in its source")
        for text in _texts(self._scope):
            for node in reversed(ast.parse(text).body):
                targets = node.targets if isinstance(node, ast.Assign) else []
                if any(isinstance(target, ast.Name) and self._scope.get(target.id) is value for target in targets):
                    source = ast.get_source_segment(text, node) or ""
                    bound = next(t.id for t in targets if isinstance(t, ast.Name))
                    return node, source if bound == name else f"{source}\n{name} = {bound}"
        raise NotSource(f"{name} is a {kind} that no statement assigns to a name")


def _plain(value: Any) -> str | None:
    """Return the text of a value that is a number, a text, or a collection of such; None for any other."""
    if type(value) in PLAIN:
        return repr(value)
    if type(value) in (float, complex):
        return repr(value) if not isinstance(value, float) or math.isfinite(value) else f'float("{value}")'
    if type(value) in (tuple, list, set, frozenset):
        texts = [_plain(one) for one in value]
        if None in texts:
            return None
        inner = ", ".join(map(str, texts))
        return f"{type(value).__name__}([{inner}])"
    if type(value) is dict:
        pairs = [(_plain(key), _plain(one)) for key, one in value.items()]
        return None if any(None in pair for pair in pairs) else f"{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}"
    return None


def _inner(value: Any) -> Iterator[Any]:
    """Yield an object, and the functions that its decorators go around, as of triton.jit and functools.wraps."""
    while value is not None:
        yield value
        value = vars(value).get("__wrapped__") or vars(value).get("fn") if hasattr(value, "__dict__") else None


def _definition(of: FunctionType | type) -> tuple[ast.stmt | ast.Lambda, str]:
    """Return the def, the class or the lambda of an object, and its text. Raises NotSource."""
    if isinstance(of, type) and (found := _class_of_main(of)):  # whose source Python finds in no notebook
        return found
    try:
        text = textwrap.dedent(inspect.getsource(of))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError):  # a lambda within brackets begins in the middle of a statement
        raise NotSource(f"the source of {of.__qualname__} is not known") from None
    node = tree.body[0]
    if of.__name__ != "<lambda>":
        same = isinstance(of, type) or _is_as_written(of)
        if getattr(node, "name", "") != of.__name__ or not same:
            raise NotSource(f"the source of {of.__qualname__} is not known, or was changed since it was run")
        return node, text.rstrip()
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    if len(lambdas) != 1:
        raise NotSource("several lambdas stand in one statement")
    if isinstance(of, FunctionType) and not _is_as_written(of):
        raise NotSource("the source of a lambda was changed since it was run")
    return lambdas[0], f"({ast.get_source_segment(text, lambdas[0])})"


def _class_of_main(of: type) -> tuple[ast.stmt, str] | None:
    """Return the last class of that name in the script or the notebook, and its text; None where it has none."""
    for text in _texts(vars(sys.modules["__main__"])) if of.__module__ == "__main__" else ():
        for node in reversed(ast.parse(text).body):
            if isinstance(node, ast.ClassDef) and node.name == of.__qualname__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return node, "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return None


def _names_around(function: FunctionType) -> Mapping[str, Any]:
    """Return what a function's names stand for outside of it: those of the functions around it go first."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosing = {}
    for name, cell in cells:
        try:
            enclosing[name] = cell.cell_contents
        except ValueError:
            raise NotSource(f"{function.__name__} needs {name}, which has no value yet") from None
    return {**function.__globals__, **enclosing}


def _needs(source: str, flags: int = 0) -> list[str]:
    """Return the names that a statement takes from around it, in their order."""
    found, codes = dict[str, None](), [_compiled(source, flags)]
    for code in codes:
        instructions = [*dis.get_instructions(code)]
        own = {one.argval for one in instructions if one.opname == "STORE_NAME"}  # of a class
        names = [one.argval for one in instructions if one.opname in LOADS and one.argval in code.co_names]
        found |= dict.fromkeys(name for name in names if name not in own or code is codes[0])
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    return [*found]


def _compiled(source: str, flags: int) -> CodeType:
    code: CodeType = compile(source, "<source>", "exec", flags & FUTURE, dont_inherit=True)
    return code


def _is_as_written(function: FunctionType) -> bool:
    """Whether a function has the code that its file or cell says now: it may have been edited since.

    Of a file of tests, whose assertions pytest has rewritten, that is not known, and taken to be so.
    """
    if type(function.__globals__.get("__loader__")).__name__ == "AssertionRewritingHook":
        return True
    own = function.__code__
    codes = [_compiled("".join(linecache.getlines(own.co_filename)), own.co_flags)]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    there = (code for code in codes if (code.co_name, code.co_firstlineno) == (own.co_name, own.co_firstlineno))
    return any(_alike(code, own) for code in there)


def _alike(one: CodeType, other: CodeType) -> bool:
    same = (one.co_code, one.co_names, one.co_varnames, one.co_freevars, len(one.co_consts))
    pairs = zip(one.co_consts, other.co_consts, strict=False)
    return same == (other.co_code, other.co_names, other.co_varnames, other.co_freevars, len(other.co_consts)) and all(
        _alike(a, b)
        if isinstance(a, CodeType) and isinstance(b, CodeType)
        else (type(a), repr(a)) == (type(b), repr(b))
        for a, b in pairs
    )


def is_script(module: ModuleType) -> bool:
    """Whether a module is run, and others do not import it: a script, a notebook, or a file of tests."""
    name = module.__name__.rpartition(".")[2]
    return name in ("__main__", "conftest") or name.startswith("test_") or name.endswith("_test")


def _texts(scope: Mapping[str, Any]) -> Iterator[str]:
    """Yield the source of the script or the module that has these names, or of a notebook's cells, the last first."""
    cells = scope.get("In")
    if isinstance(cells, list):
        yield from (text for text in reversed(cells) if _is_python(text))
    elif file := scope.get("__file__"):
        yield "".join(linecache.getlines(str(file)))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:  # a magic command
        return False
    return True
