"""The files of a person's own code, found by their import statements without importing them."""

from __future__ import annotations

import ast
import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from attnbench.core.own_code import LOADED, MODULE, MOST_OF_SOURCE, PACKAGES, STANDARD

INSTALLED = (*PACKAGES, "torchinductor_", ".cache")  # beginnings of names of folders without own code
MOST_NAMED = 50  # the most files whose import statements are read
_LIBRARY = Path(STANDARD).resolve()


def content_of(path: Path) -> bytes:
    """Return the content of a file; of an imported file, the content at its import.

    Raises OSError, also for a huge source.
    """
    if path.suffix == ".py" and path.stat().st_size > MOST_OF_SOURCE:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return LOADED.get(str(path)) or path.read_bytes()


def named_by(files: Iterable[Path], path: Iterable[str], folders: Collection[Path]) -> set[Path]:
    """Return files, and the files of own modules that their import statements name, also within functions.

    Modules are looked up on `path`, as on sys.path, for the last file first; `folders` are as for `is_own`. The
    statements of at most MOST_NAMED files are read, found files included.
    """
    roots = [Path(folder) for folder in path if folder and is_own(Path(os.path.realpath(folder), "x"), folders)]
    todo = [*files]
    found = {*todo}
    for _ in range(MOST_NAMED):
        if not todo:
            break
        file = todo.pop()
        with contextlib.suppress(OSError, SyntaxError, ValueError, IndexError, RecursionError):
            named = {place for node in ast.walk(ast.parse(content_of(file))) for place in _places(node, file, roots)}
            there = {Path(place).resolve() for place in named if os.path.isfile(place)}  # few of the paths exist
            own = sorted(path for path in there - found if is_own(path, folders))
            todo += own
            found.update(own)
    return found


def _places(node: ast.AST, file: Path, roots: Sequence[Path]) -> Iterator[str]:
    """Yield the paths at which the modules of an import statement may lie, in archives too."""
    if isinstance(node, ast.Import):
        names, within = [alias.name for alias in node.names], roots
    elif isinstance(node, ast.ImportFrom):
        within = [file.parents[node.level - 1]] if node.level else roots
        names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
    else:
        return
    for parts in (name.split(".") for name in names if not is_others(name) or within is not roots):
        for root, n in itertools.product(within, range(1, len(parts) + 1)):
            module = os.path.join(root, *parts[:n])
            yield from (str(root), f"{module}.py", os.path.join(module, "__init__.py"))


def is_others(name: str) -> bool:
    """Return whether a module, by its name, is not own code: of the standard library, attnbench or load_file.

    __mp_main__ is the main module once more, from multiprocessing, which torch imports.
    """
    top = name.partition(".")[0]
    return top in ("attnbench", "__main__", "__mp_main__") or top in sys.stdlib_module_names or name.startswith(MODULE)


def is_own(path: Path, folders: Collection[Path]) -> bool:
    """Return whether a file is a person's own: outside the folders of installed packages and of compilers.

    Files in the `folders` of files that a person named are own, wherever these folders are.
    """
    within = next((path.relative_to(folder) for folder in path.parents if folder in folders), path)
    return not path.is_relative_to(_LIBRARY) and not any(part.startswith(INSTALLED) for part in within.parts)
