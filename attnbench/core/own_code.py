"""A person's own code: its names in --backend and --mask, and the loading of its file."""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery as machinery
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.files import working_folder

NEEDED = (  # modules that a neighbour of a person's file must not replace: torch and its imports, some in a call
    *("torch", "triton", "numpy", "sympy", "mpmath", "networkx", "typing_extensions", "filelock", "fsspec", "jinja2"),
)
WRITTEN = "attnbench-sources"  # the folder of the files to which the API writes functions: api/subjects.py
IN_PROCESS = "attnbench_in_process"  # the module of functions measured in a person's process: api/in_process.py
MODULE = "attnbench_own_"  # the beginning of the module name of a person's file
STANDARD = os.path.dirname(os.__file__)  # the folder of the standard library
MAX_SWEEP = 64  # the most kernels of one sweep, each of which has a process
MOST_OF_SOURCE = 2**24  # the most bytes of a Python file
PACKAGES = ("site-packages", "dist-packages")  # folders of installed packages
_from_source: set[str] = set()  # folders whose modules are loaded from their source
LOADED: dict[str, bytes] = {}  # path of a person's imported file -> its source at import


class _FromSource(machinery.SourceFileLoader):
    """Load a module from its source, and keep that source in LOADED.

    Python's cached bytecode may belong to another source of the same length, written in the same second.
    """

    def get_code(self, fullname: str) -> Any:
        source = LOADED[os.path.realpath(self.path)] = self.get_data(self.path)
        return self.source_to_code(source, self.path)


def _load_from_source(folder: str) -> None:
    """Have the modules in a folder and below it, except installed packages, loaded from their source."""

    def finder(path: str) -> machinery.FileFinder:
        within = os.path.relpath(path, folder).split(os.sep)
        if {"..", *PACKAGES} & {*within} or not os.path.isdir(path):
            raise ImportError(path=path)
        return machinery.FileFinder(
            path,
            (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
            (_FromSource, machinery.SOURCE_SUFFIXES),
            (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
        )

    if folder not in _from_source:
        _from_source.add(folder)
        sys.path_hooks.insert(0, finder)
        sys.path_importer_cache.pop(folder, None)


def load_file(path: Path) -> ModuleType:
    """Import a Python file, which may import its neighbours.

    A neighbour replaces no module of the standard library, which torch may import during a call. Raises
    FileNotFoundError, UserError and the errors of the import.
    """
    name = f"{MODULE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.stat().st_size > MOST_OF_SOURCE:
        raise UserError(f"{path} has more than {MOST_OF_SOURCE >> 20} MiB; give a file of Python source")
    for library in NEEDED:
        if hides := _in_place_of(library, path.parent):
            raise UserError(f"{hides} would be imported in place of {library}; give it another name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickle and Triton look up objects by their module's name
    standard = [folder for folder in sys.path if folder.startswith(STANDARD) and "-packages" not in folder]
    folder = str(path.parent.resolve())
    sys.path[:] = [*standard, folder, *(other for other in sys.path if other not in (*standard, folder))]
    _load_from_source(folder)
    spec.loader.exec_module(module)
    return module


def _in_place_of(library: str, folder: Path) -> Path | None:
    """Return the file or package in a folder that would replace a library; None where there is none."""
    if (file := folder / f"{library}.py").is_file():
        return file
    if not (package := folder / library / "__init__.py").is_file():
        return None
    with contextlib.suppress(ValueError, OSError):  # raised for a module without a spec or a file
        spec = importlib.util.find_spec(library)
        if spec and spec.origin and package.samefile(spec.origin):
            return None
    return package.parent


def functions_of(module: object, attribute: str) -> str:
    """Return the end of an error line: the functions of a module that may have been meant."""
    inside = vars(module)
    own = [name for name, found in inside.items() if callable(found) and _is_made_in(found, inside.get("__name__"))]
    return did_you_mean(attribute, own) if own else "; it defines no functions"


def _is_made_in(found: object, module: str | None) -> bool:
    """Return whether a module defines one of its attributes, and did not import it.

    An object without a module of its own, such as a functools.partial or an nn.Module, counts as defined there.
    """
    if inspect.isroutine(found) or inspect.isclass(found) or "__module__" in getattr(found, "__dict__", {}):
        return getattr(found, "__module__", "") == module
    return type(found).__module__ != "typing"


def split_names(text: str) -> list[str]:
    """Return the comma-separated names in a text.

    Commas within brackets and within the name of an existing Python file separate nothing.
    """
    parts, names = re.split(r",(?![^\[\]]*\])", text), []
    while parts:
        ends = [n for n in range(2, len(parts) + 1) if ".py" in parts[n - 1] and _is_of_a_file(",".join(parts[:n]))]
        n = ends[-1] if ends else 1
        names.append(",".join(parts[:n]).strip())
        parts = parts[n:]
    return names


def _is_of_a_file(name: str) -> bool:
    """Return whether a name is an existing Python file, or "file.py:function" of one."""
    file, python, rest = name.strip().rpartition(".py")
    return bool(python) and rest[:1] in ("", ":") and os.path.isfile(os.path.expanduser(f"{file}.py"))


def as_written(spec: str) -> str:
    """Return a "file.py:function" as a person would write it in the working directory."""
    folder = f"{working_folder()}{os.sep}"
    return f".{os.sep}{spec.removeprefix(folder)}" if spec.startswith(folder) else spec


def sweep(name: str) -> list[str]:
    """Return a name for each choice of values: "f[a=1;b=3]" and "f[a=2;b=3]" for "f[a=1,2;b=3]"; else the name alone.

    Commas may separate parameters too. Raises UserError for other text in the brackets.
    """
    function, bracket, inside = _partition(name)
    if not bracket:
        return [name]
    values: dict[str, list[str]] = {}
    for part in re.split("[,;]", inside.removesuffix("]")):
        parameter, equals, value = (text.strip() for text in part.rpartition("="))
        if equals and (not parameter.isidentifier() or parameter in values):
            raise UserError(f"{name}: {parameter!r} is not a parameter, or is given twice")
        parameter = parameter or next(reversed(values), "")
        if not parameter or not inside.endswith("]") or not re.fullmatch(r"[\w.+-]+", value):
            raise UserError(f"{name}: give parameters and their values as in {function}[block_m=64,128;num_warps=4,8]")
        values.setdefault(parameter, []).append(value)
    choices = [dict.fromkeys(f"{parameter}={value}" for value in given) for parameter, given in values.items()]
    names = [f"{function}[{';'.join(choice)}]" for choice in itertools.product(*choices)]
    if len(names) > MAX_SWEEP:
        raise UserError(f"{name}: that is {len(names)} kernels, each in a process; give {MAX_SWEEP} at most")
    return names


def parameters_of(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return "f" and {"a": 1, "b": "x"} of "f[a=1;b=x]". A value is a number, True, False or None, else a string."""
    function, _, inside = _partition(name)
    pairs = (part.partition("=") for part in inside.removesuffix("]").split(";") if part)
    return function, {parameter: _value(text) for parameter, _, text in pairs}


def _partition(name: str) -> tuple[str, str, str]:
    """Split "f[a=1]" into "f", "[" and "a=1]" at the bracket after a file's name, which may contain brackets."""
    file, python, rest = name.rpartition(".py:")
    function, bracket, inside = rest.partition("[")
    return f"{file}{python}{function}", bracket, inside


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
