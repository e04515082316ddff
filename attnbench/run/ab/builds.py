"""The two builds of an A/B, --a and --b: two interpreters that run the same backends, or two pieces of code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.core.errors import UserError
from attnbench.run.select import available_backends, select_backends, select_interpreters


@dataclass(frozen=True)
class Build:
    """One of the two builds. Both have the same names for their backends, so that their cells are the same cells."""

    label: str  # "--a fa2", as it was given
    specs: Mapping[str, str]  # backend -> "module:object"
    interpreters: Mapping[str, str]  # backend -> path of its Python, where it is not this one
    python: str | None = None  # the Python that reads the device and the libraries' versions; None for this one


def builds(
    a: str, b: str, patterns: Sequence[str], pythons: Sequence[str] = (), suite: Mapping[str, str] | None = None
) -> tuple[Build, Build]:
    """Return the builds that --a and --b name.

    `patterns`: the backends that two interpreters run. `pythons`: the interpreters given for code, and `suite` those
    that the suite names. Raises UserError for what is neither an interpreter nor code, and for one of each.
    """
    if is_code(a) != is_code(b):
        code, option, other = (a, "--b", b) if is_code(a) else (b, "--a", a)
        interpreter(option, other)  # raises if it is no interpreter either
        raise UserError(
            f"--a and --b: {code} is code and {other} is not; give two interpreters (with -b for what they run), "
            "or code on both sides"
        )
    if is_code(a):
        return _codes(a, b, pythons, suite)
    if pythons:
        raise UserError("--python: --a and --b are the interpreters already; leave it out")
    specs = select_backends(patterns)
    first, second = (interpreter(option, path) for option, path in (("--a", a), ("--b", b)))
    return (
        Build(f"--a {a}", specs, dict.fromkeys(specs, first), first),
        Build(f"--b {b}", specs, dict.fromkeys(specs, second), second),
    )


def is_code(build: str) -> bool:
    """Return whether --a or --b names code, so that no backend needs to be chosen, and not an interpreter."""
    return ":" in build or build.endswith(".py") or build in available_backends()


def _codes(a: str, b: str, pythons: Sequence[str], suite: Mapping[str, str] | None) -> tuple[Build, Build]:
    (first, _), (second, _) = chosen = [one_code(option, text) for option, text in (("--a", a), ("--b", b))]
    own = select_interpreters(pythons, [first, second], suite)
    shared = first if first == second else f"{first}-vs-{second}"

    def build(label: str, name: str, spec: str) -> Build:
        python = own.get(name)
        return Build(label, {shared: spec}, {shared: python} if python else {}, python)

    return build(f"--a {a}", *chosen[0]), build(f"--b {b}", *chosen[1])


def one_code(option: str, text: str) -> tuple[str, str]:
    """Return the name and the spec of one piece of code. Raises UserError where the text names several."""
    (first, *more) = select_backends([text]).items()
    if more:
        raise UserError(f"{option}: {text} names {1 + len(more)} backends; give one, as in {option} '{first[0]}'")
    return first


def interpreter(option: str, path: str) -> str:
    """Return the absolute path of an interpreter. Raises UserError where there is no such executable.

    Links are not resolved: the Pythons of two virtual environments may be links to one file.
    """
    where = shutil.which(path)
    if where is None:
        raise UserError(
            f"{option}: {path!r} is no interpreter (an executable file), no backend, and no pkg.mod:object or "
            "file.py:function"
        )
    return os.path.abspath(where)
