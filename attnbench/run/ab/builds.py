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
    """One of the two builds. Both name their backends alike, so that their cells can be compared."""

    label: str  # the option as given, "--a fa2"
    specs: Mapping[str, str]  # backend -> "module:object"
    interpreters: Mapping[str, str]  # backend -> path of its Python, if not this one
    python: str | None = None  # the Python that reads the device and the versions of libraries; None: this one


def builds(
    a: str, b: str, patterns: Sequence[str], pythons: Sequence[str] = (), suite: Mapping[str, str] | None = None
) -> tuple[Build, Build]:
    """Return the builds that --a and --b name.

    `patterns` are the backends that two interpreters run, `pythons` the interpreters given for code, and `suite` the
    suite's interpreters. Raises UserError for text that is neither an interpreter nor code, and for an interpreter on
    one side and code on the other.
    """
    if is_code(a) != is_code(b):
        code, option, other = (a, "--b", b) if is_code(a) else (b, "--a", a)
        interpreter(option, other)  # raises if it is not an interpreter either
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
    """Return whether --a or --b names code, which needs no choice of backends, and not an interpreter."""
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
    """Return the name and the spec of a piece of code. Raises UserError where the text names several."""
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
            f"{option}: {path!r} is not an interpreter (an executable file), a backend, pkg.mod:object or "
            "file.py:function"
        )
    return os.path.abspath(where)
