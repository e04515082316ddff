"""Find the files of a person's own code and hash them, so that two versions of a kernel are distinguished."""

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

SYSTEM = ("/usr", "/lib", "/lib64", "/opt", "/nix", sys.prefix, sys.base_prefix)  # folders of installed libraries
hashed: dict[str, str] = {}  # path of each file that hash_of_source has covered -> its hash
_named_folders: set[Path] = set()  # folders of files that a person named: every file in them is the person's own


def layers(own: Any) -> list[Any]:
    """Return a callable and the callables that it wraps by functools.partial, functools.wraps and torch.compile.

    There are at most 100: an object whose __getattr__ answers any name wraps another one without end.
    """
    found = [own]
    while len(found) < 100:
        last = found[-1]
        inner = last.func if isinstance(last, functools.partial) else getattr(last, "__wrapped__", None)
        inner = inner or getattr(last, "_orig_mod", None)  # a compiled nn.Module
        if not callable(inner) or any(inner is f for f in found):
            break
        found.append(inner)
    return found


def hash_of_source(own: Any, file: str = "") -> str | None:
    """Return a hash of the source of a function or an object; None where no source is found.

    It covers the file that defines the object, its class and the objects that it wraps, the person's `file` that names
    it, the modules, compiled code included, that these files have imported or will import in a call, except installed
    ones. For a module in an archive it covers the archive.
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
        contents = {path: content_of(path) for path in files}
        hashed.update({str(path): _short(content) for path, content in contents.items()})
        for content in sorted(contents.values(), key=_short):  # sorted by content: another checkout has other paths
            digest.update(content)
    except OSError:
        return None
    return digest.hexdigest()[:8] if files else None


def hashes_of_imported(names: Iterable[str]) -> dict[str, str]:
    """Return path -> hash of the file of each of these modules, without installed ones."""
    found = {}
    for path in _imported({name: sys.modules[name] for name in names}):
        with contextlib.suppress(OSError):
            found[str(path)] = _short(content_of(path))
    return found


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _imported(modules: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files of those named modules that are imported and not installed."""
    for name, module in modules.items():
        # Not module.__file__: some modules import others, or raise, where an attribute is asked for.
        found = str(getattr(module, "__dict__", {}).get("__file__"))
        if not os.path.isabs(found) or any(f"{os.sep}{folder}{os.sep}" in found for folder in PACKAGES):
            continue  # some modules of torch name a file that does not exist: "_ops.py"
        if not is_others(name) and _is_own(path := Path(found).resolve()) and (holder := _file(path)):
            yield holder


def _file(path: Path) -> Path | None:
    """Return the file of a module's path: the file itself or the archive that contains it; None for neither."""
    there = next(place for place in (path, *path.parents) if place.exists())
    return there if there.is_file() else None


def _mapped(files: Sequence[Path]) -> Iterator[Path]:
    """Yield the shared libraries that this process has loaded and that are a person's own.

    Libraries beside one of the files and libraries that torch has compiled are own. Elsewhere these are not: installed
    libraries, libraries in LD_LIBRARY_PATH or of torch, and the output of compilers, which is in hidden folders, in
    the folder of temporary files, or in a folder that an environment variable names.
    """
    others = [*SYSTEM, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    others += [value for name, value in os.environ.items() if "CACHE" in name or name == "TORCH_EXTENSIONS_DIR"]
    others += [os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "")]
    if not any(file.is_relative_to(tempfile.gettempdir()) for file in files):
        others.append(tempfile.gettempdir())
    folders = [os.path.realpath(folder) for folder in others if os.path.isabs(folder)]
    is_beside = _is_beside(files)
    with contextlib.suppress(OSError):  # other systems than Linux have no such file
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        names = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if ".so" in line)  # a library has several
        for path in map(Path, names):
            hidden = any(part.startswith(".") for part in path.parts)
            is_others = hidden or any(path.is_relative_to(folder) for folder in folders)
            own = _is_own(path) and (is_beside(path) or not is_others)
            if ".so" in path.suffixes and (own or "torch_extensions" in path.parts) and path.is_file():
                yield path


def _is_beside(files: Sequence[Path]) -> Callable[[Path], bool]:
    """Return a function that tests whether a path is in or below the folder of one of the files."""
    return lambda path: any(path.is_relative_to(file.parent) for file in files)


def _is_own(path: Path) -> bool:
    return is_own(path, _named_folders)


def _source_file(of: Any) -> str | None:
    try:
        return inspect.getsourcefile(of)
    except (TypeError, OSError):  # no source: a function of a C++ extension, a class of a notebook
        return getattr(inspect.getmodule(of), "__file__", None)
