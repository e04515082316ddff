"""What a person means by --backend (names, globs, !names, own code as pkg.mod:obj or ./file.py:function), --python
and --device."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnbench import backends
from attnbench.core.errors import UserError, did_you_mean
from attnbench.run import venvs

_LIBRARIES = {
    **dict.fromkeys(("flash", "flash-attn", "flash-attention", "flashattention", "flash-attn-2"), "fa2"),
    **dict.fromkeys(("torch", "pytorch", "scaled-dot-product-attention"), "sdpa-*"),
    "te": "transformer-engine",
}


def select_backends(patterns: Sequence[str]) -> dict[str, str]:
    """Backend name -> "module:object", in the order asked for. Raises UserError for what matches nothing.

    "*" and "!name" alone start from every backend but the simulated ones.
    """
    known = backends.available()
    usual = [name for name in known if name not in backends.NOT_BY_DEFAULT]
    wanted = [p.strip() for pattern in patterns for p in pattern.split(",") if p.strip()]
    chosen: dict[str, str] = {}
    if patterns and not wanted:
        raise UserError("--backend: no name is given; leave it out for every backend that works here")
    if all(p.startswith("!") for p in wanted):
        chosen = {name: known[name] for name in usual}
    for pattern in wanted:
        if ":" in pattern or pattern.endswith(".py"):
            spec = _own_spec(pattern)
            chosen[_own_name(pattern, {**known, **chosen}, spec)] = spec
            continue
        bare = pattern.removeprefix("!")
        matches = fnmatch.filter(known, bare) if bare in known else fnmatch.filter(usual, bare)
        if not matches:
            raise UserError(f"no backend {bare!r}{_meant(bare, usual, known)}")
        for name in matches:
            if pattern.startswith("!"):
                chosen.pop(name, None)
            else:
                chosen[name] = known[name]
    if not chosen:
        raise UserError(f"no backend is left of {','.join(wanted)!r}")
    return chosen


def _meant(word: str, usual: Sequence[str], known: Mapping[str, str]) -> str:
    family = [name for name in usual if name.startswith(f"{word}-")]
    if family:
        return f'; did you mean "{word}-*" ({", ".join(family)})?'
    plain = word.lower().replace("_", "-")
    return f'; did you mean "{_LIBRARIES[plain]}"?' if plain in _LIBRARIES else did_you_mean(word, known)


def available_backends() -> dict[str, str]:
    """Return every backend that can be named, shipped or from an installed package: name -> "module:object"."""
    return backends.available()


def backend_spec(name: str) -> str:
    """Return the "module:object" of a backend that ships with attnbench. Raises KeyError for any other name."""
    return backends.BACKENDS[name]


def is_user_code(spec: str) -> bool:
    """Whether the spec is a person's own code and not one of attnbench's or a package's."""
    return spec not in backends.BACKENDS.values() and spec not in backends.available().values()


def select_interpreters(
    pairs: Sequence[str], names: Sequence[str], suite: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The Python of each backend that has one of its own.

    That of `attnbench env create`; over it the suite's `interpreters`; over both --python NAME=PATH. NAME is one of the
    chosen backends, or a glob over them (the suite's may be of others), PATH an executable.
    """
    found = venvs.venv_interpreters(names)
    for name, path in (suite or {}).items():
        if not fnmatch.filter(known := [*names, *backends.available()], name):
            raise UserError(f"interpreters: no backend {name!r}{did_you_mean(name, known)}")
        if matches := fnmatch.filter(names, name):
            found.update(dict.fromkeys(matches, _executable(path, "interpreters")))
    for pair in pairs:
        name, _, path = pair.partition("=")
        if not path:
            raise UserError(f"--python: {pair!r} is not NAME=PATH, as in fa4=/opt/venvs/fa4/bin/python")
        matches = fnmatch.filter(names, name)
        if not matches:
            raise UserError(f"--python: {name!r} is not among the backends of this run{did_you_mean(name, names)}")
        found.update(dict.fromkeys(matches, _executable(path, "--python")))
    return found


def _executable(path: str, option: str) -> str:
    where = shutil.which(os.path.expanduser(path))
    if where is None:
        raise UserError(f"{option}: {path} is not an executable file")
    return where


def parse_device(text: str) -> str:
    """--device as it was given; raises UserError for what names none."""
    if not re.fullmatch(r"auto|cpu|fake|cuda(:\d+)?", text):
        raise UserError(f"--device: {text!r} is not auto, cpu, cuda, cuda:N or fake")
    return text


def _own_name(pattern: str, taken: dict[str, str], spec: str) -> str:
    """Its last word, or all of it where that is the name of something else."""
    name = pattern.rpartition(":")[2]
    return name if taken.get(name, spec) == spec else pattern


def _own_spec(pattern: str) -> str:
    if pattern.endswith(".py"):
        raise UserError(f"{pattern}: which function of it? Write {pattern}:my_attention")
    where, _, name = pattern.rpartition(":")
    if not name.isidentifier():
        raise UserError(f"{pattern!r} is not pkg.mod:object or file.py:function")
    if where.endswith(".py"):
        if not os.path.isfile(where):
            raise UserError(f"no such file: {where} (in {pattern})")
        return f"{Path(where).resolve()}:{name}"
    return pattern
