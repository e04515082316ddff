"""Find the definition of a function or class in its file or notebook cell, if the process runs that text."""

from __future__ import annotations
import __future__

import ast
import linecache
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

ANNOTATIONS = __future__.annotations.compiler_flag


class NotSource(Exception):
    """Raised where a part that a function needs has no source; the message names the part."""


def told(of: Any, attribute: str) -> str:
    """Return a text attribute of a person's object; "" where it has none, or where reading it raises an error."""
    try:
        text = getattr(of, attribute, "")
    except Exception:  # attributes of a person's objects raise anything
        return ""
    return text if isinstance(text, str) else ""


def definition(of: FunctionType) -> ast.stmt | ast.expr:
    """Return the def or the lambda of a function, as its file or cell has it. Raises NotSource."""
    own = of.__code__
    linecache.checkcache(own.co_filename)
    text = "".join(linecache.getlines(own.co_filename))
    try:
        nodes = [node for node in ast.walk(ast.parse(text)) if _first_line(node) == own.co_firstlineno]
    except SyntaxError:  # a magic command of a notebook
        nodes = []
    kind = ast.Lambda if of.__name__ == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in nodes if isinstance(node, kind) and getattr(node, "name", "<lambda>") == own.co_name]
    if len(found) > 1:
        raise NotSource("several lambdas stand in one line")
    if not found or not _is_as_written(of, text):
        raise NotSource(f"the source of {of.__qualname__} is not known, or was changed since it was run")
    return found[0]


def _first_line(node: ast.AST) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([int(getattr(node, "lineno", 0)), *(one.lineno for one in decorators)])


def class_definition(of: type, scope: Mapping[str, Any]) -> ast.ClassDef:
    """Return the definition of a class of a script or notebook, with the methods that it has now. Raises NotSource."""
    found = [node for node in bindings(scope, of.__qualname__) if isinstance(node, ast.ClassDef)]
    methods = [getattr(one, "__func__", one) for one in vars(of).values()]
    own = [one for one in methods if isinstance(one, FunctionType) and one.__module__ == of.__module__]
    own = [one for one in own if not one.__code__.co_filename.startswith("<string>")]  # a dataclass's are generated
    if len(found) != 1 or len(bindings(scope, of.__qualname__)) != 1 or scope.get(of.__qualname__) is not of:
        raise NotSource(f"class {of.__qualname__} is not known, or is defined several times")
    for method in own:
        definition(method)
    return found[0]


def bindings(scope: Mapping[str, Any], name: str) -> list[ast.AST]:
    """Return the different statements of a script or notebook that bind a name, anywhere in it."""
    found: dict[str, ast.AST] = {}
    for text in _texts(scope):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound = node.name == name
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                bound = name in [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
            elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound = any(_stores(of, name) for of in targets)
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                kept = [item.optional_vars for item in node.items if item.optional_vars]
                bound = any(_stores(of, name) for of in kept)
            else:
                bound = isinstance(node, ast.Global) and name in node.names
            if bound:
                found[ast.unparse(node)] = node
    return [*found.values()]


def _stores(target: ast.expr, name: str) -> bool:
    names = (one for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    return any(one.id == name for one in names)


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


def _is_as_written(function: FunctionType, text: str) -> bool:
    """Return whether a function's code is still the code of its file or cell, which may have been edited since.

    A test file cannot be compared, because pytest has rewritten its assertions, and is taken to be unedited.
    """
    if type(function.__globals__.get("__loader__")).__name__ == "AssertionRewritingHook":
        return True
    own = function.__code__
    codes = [compiled(text, own.co_flags)]
    if isinstance(function.__globals__.get("In"), list):  # IPython compiles each statement of a cell by itself
        codes += [compiled(ast.Module([node], []), own.co_flags) for node in ast.parse(text).body]
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


def compiled(source: str | ast.Module, flags: int) -> CodeType:
    code: CodeType = compile(source, "<source>", "exec", flags & ANNOTATIONS, dont_inherit=True)
    return code
