"""The Python files that a person's own code is made of, and a hash of them, which tells two versions of it apart."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from attnbench.core.own_code import MODULE

INSTALLED = ("site-packages", "dist-packages", "torchinductor_")  # how folders within a person's begin that are not own


def layers(own: Any) -> list[Any]:
    """Return an object that can be called, and what it wraps: of functools.partial, wraps and torch.compile."""
    found = [own]
    while True:
        last = found[-1]
        inner = last.func if isinstance(last, functools.partial) else getattr(last, "__wrapped__", None)
        inner = inner or getattr(last, "_orig_mod", None)  # of a compiled nn.Module
        if not callable(inner) or any(inner is f for f in found):
            return found
        found.append(inner)


def hash_of_source(own: Any, file: str = "") -> str | None:
    """Return a hash of the source of a function or an object; None where it cannot be found.

    It is of the file that defines it, of its class or of what it wraps, of the person's `file` that names it, and of
    the neighbours that those have imported, or will import in a call.
    """
    inmost = layers(own)[-1]
    defined = _source_file(inmost if inspect.isroutine(inmost) else type(inmost))
    named = [Path(f).resolve() for f in (defined, file if file.endswith(".py") else None) if f]
    files = {path for given in named for path in (given, *_imported_beside(given))}
    digest = hashlib.sha256()
    try:
        for path in sorted(files):
            digest.update(path.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()[:8] if files else None


def _imported_beside(file: Path) -> Iterator[Path]:
    """Yield the files of modules in the folder of a person's file, or in folders in it, that are imported or named."""
    folder, library = file.parent, Path(sysconfig.get_path("stdlib")).resolve()
    if not _is_own(file, folder) or file.is_relative_to(library):
        return
    named = ModuleFinder([str(folder)])  # by import statements, those within functions too
    with contextlib.suppress(SyntaxError, ValueError):  # of an extension, which is no Python
        named.run_script(str(file))
    for name, module in [*sorted(sys.modules.items()), *sorted(named.modules.items())]:
        found = getattr(module, "__file__", None) or ""
        absolute = Path(found).is_absolute()  # torch has modules of no file: "_ops.py"
        top = name.partition(".")[0]
        others = top == "attnbench" or top in sys.stdlib_module_names or name.startswith(MODULE)  # not imported by it
        if absolute and found.endswith(".py") and not others:
            path = Path(found).resolve()
            if path.is_relative_to(folder) and _is_own(path, folder) and not path.is_relative_to(library):
                yield path


def _is_own(path: Path, folder: Path) -> bool:
    """Whether a file in a folder is a person's: neither of them is in a folder of what was installed."""
    parts = (*folder.parts[-1:], *(path.relative_to(folder).parts if path.is_relative_to(folder) else ()))
    return not any(part.startswith(INSTALLED) for part in parts)


def _source_file(of: Any) -> str | None:
    try:
        return inspect.getsourcefile(of)
    except TypeError:  # built in, as a function of a C++ extension
        return getattr(inspect.getmodule(of), "__file__", None)
