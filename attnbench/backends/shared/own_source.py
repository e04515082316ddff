"""The Python files that a person's own code is made of, and a hash of them, which tells two versions of it apart."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.core.own_code import PACKAGES
from attnbench.core.own_files import content_of, is_others, is_own, named_by

SYSTEM = ("/usr", "/lib", "/lib64", "/opt", "/nix", sys.prefix, sys.base_prefix)  # have the libraries of others
hashed: dict[str, str] = {}  # path of each file that a hash_of_source has covered -> a hash of it
_named_folders: set[Path] = set()  # of files that a person named: what is in them is own, wherever they are


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
    what those have imported or will import in a call, if that was not installed, compiled code too. Of modules in an
    archive it is of the archive.
    """
    inmost = layers(own)[-1]
    defined = _source_file(inmost if inspect.isroutine(inmost) else type(inmost))
    named = [Path(f).resolve() for f in (defined, file if file.endswith(".py") else None) if f]
    _named_folders.update(of.parent for of in named if not {*PACKAGES} & {*of.parts})
    files = {*named}
    if any(_is_own(path) for path in named):
        files |= {*_imported({**sys.modules}), *_mapped(named)}
        is_beside = _is_beside(named)
        sources = sorted((is_beside(path), path) for path in files if path.suffix == ".py")
        files |= named_by([*(path for _, path in sources), *named], sys.path, _named_folders)
    digest = hashlib.sha256()
    try:
        for path in sorted(files):
            digest.update(content := content_of(path))
            hashed[str(path)] = _short(content)
    except OSError:
        return None
    return digest.hexdigest()[:8] if files else None


def hashes_of_imported(names: Iterable[str]) -> dict[str, str]:
    """Return a hash of the file of each of these modules that was not installed, by the file's path."""
    found = {}
    for path in _imported({name: sys.modules[name] for name in names}):
        with contextlib.suppress(OSError):
            found[str(path)] = _short(content_of(path))
    return found


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _imported(modules: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files of the modules, by name, that were imported and not installed."""
    for name, module in modules.items():
        found = str(getattr(module, "__dict__", {}).get("__file__"))  # asked for, a module may import others or raise
        if not os.path.isabs(found) or any(f"{os.sep}{folder}{os.sep}" in found for folder in PACKAGES):
            continue  # torch has modules of no file: "_ops.py"
        if not is_others(name) and _is_own(path := Path(found).resolve()) and (holder := _file(path)):
            yield holder


def _file(path: Path) -> Path | None:
    """Return the file of a module's path: itself, or the archive that the path goes through; None for neither."""
    there = next(place for place in (path, *path.parents) if place.exists())
    return there if there.is_file() else None


def _mapped(files: Sequence[Path]) -> Iterator[Path]:
    """Yield the libraries that this process has loaded and that are a person's.

    What lies beside one of the files is, or what torch has compiled. Elsewhere what was installed is not, nor what is
    found by LD_LIBRARY_PATH, torch's own, and what compilers make: in hidden folders, in the folder of temporary files,
    or where a variable says.
    """
    others = [*SYSTEM, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    others += [value for name, value in os.environ.items() if "CACHE" in name or name == "TORCH_EXTENSIONS_DIR"]
    others += [os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "")]
    if not any(file.is_relative_to(tempfile.gettempdir()) for file in files):
        others.append(tempfile.gettempdir())
    folders = [os.path.realpath(folder) for folder in others if os.path.isabs(folder)]
    is_beside = _is_beside(files)
    with contextlib.suppress(OSError):  # no Linux
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        names = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if ".so" in line)  # each has several lines
        for path in map(Path, names):
            hidden = any(part.startswith(".") for part in path.parts)
            is_others = hidden or any(path.is_relative_to(folder) for folder in folders)
            own = _is_own(path) and (is_beside(path) or not is_others)
            if ".so" in path.suffixes and (own or "torch_extensions" in path.parts) and path.is_file():
                yield path


def _is_beside(files: Sequence[Path]) -> Callable[[Path], bool]:
    """Return a function that says whether a path is in the folder of one of the files, or below it."""
    return lambda path: any(path.is_relative_to(file.parent) for file in files)


def _is_own(path: Path) -> bool:
    return is_own(path, _named_folders)


def _source_file(of: Any) -> str | None:
    try:
        return inspect.getsourcefile(of)
    except (TypeError, OSError):  # built in, as a function of a C++ extension; a class of a notebook
        return getattr(inspect.getmodule(of), "__file__", None)
