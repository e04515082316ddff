"""What --a and --b mean: two interpreters that run the same backends, or two pieces of code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.core.errors import UserError
from attnbench.run.select import available_backends, select_backends, select_interpreters


@dataclass(frozen=True)
class Side:
    """One of the two builds. Both call their backends alike, so that their cells are the same cells."""

    label: str  # "--a fa2", as it was given
    specs: Mapping[str, str]  # backend -> "module:object"
    interpreters: Mapping[str, str]  # backend -> Python, where it is not this one
    python: str | None = None  # which looks at the device and at the libraries; None for this one


def sides(
    a: str, b: str, patterns: Sequence[str], pythons: Sequence[str] = (), suite: Mapping[str, str] | None = None
) -> tuple[Side, Side]:
    """`patterns` are the backends of two interpreters, `suite` the interpreters that a suite names for code.

    Raises UserError for what a person can mend.
    """
    if _is_code(a) != _is_code(b):
        code, option, other = (a, "--b", b) if _is_code(a) else (b, "--a", a)
        _interpreter(option, other)  # a word that is neither is no second interpreter
        raise UserError(
            f"--a and --b: {code} is code and {other} is not; give two interpreters (with -b for what they run), "
            "or code on both sides"
        )
    if _is_code(a):
        return _codes(a, b, pythons, suite)
    if pythons:
        raise UserError("--python: --a and --b are the interpreters already; leave it out")
    specs = select_backends(patterns)
    first, second = (_interpreter(option, path) for option, path in (("--a", a), ("--b", b)))
    return (
        Side(f"--a {a}", specs, dict.fromkeys(specs, first), first),
        Side(f"--b {b}", specs, dict.fromkeys(specs, second), second),
    )


def is_code(a: str, b: str) -> bool:
    """Whether both are, so that no backend needs to be chosen."""
    return _is_code(a) and _is_code(b)


def _codes(a: str, b: str, pythons: Sequence[str], suite: Mapping[str, str] | None) -> tuple[Side, Side]:
    chosen = [next(iter(select_backends([text]).items())) for text in (a, b)]
    names = [name for name, _ in chosen]
    own = select_interpreters(pythons, names, suite)
    called = names[0] if names[0] == names[1] else f"{names[0]}-vs-{names[1]}"
    made = []
    for option, text, (name, spec) in zip(("--a", "--b"), (a, b), chosen, strict=True):
        python = own.get(name)
        made.append(Side(f"{option} {text}", {called: spec}, {called: python} if python else {}, python))
    return made[0], made[1]


def _is_code(text: str) -> bool:
    return ":" in text or text.endswith(".py") or text in available_backends()


def _interpreter(option: str, path: str) -> str:
    """Not resolved further: the Pythons of two virtual environments may be links to one file."""
    where = shutil.which(path)
    if where is None:
        raise UserError(
            f"{option}: {path!r} is no interpreter (an executable file), no backend, and no pkg.mod:object or "
            "file.py:function"
        )
    return os.path.abspath(where)
