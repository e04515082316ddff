"""Completion of option values at a Tab, from tables that are read without importing a library.

A completer is for typer's `autocompletion`. Where it returns nothing, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Completer = Callable[[str], list[str]]


def one(names: Callable[[], Iterable[str]] | Iterable[str]) -> Completer:
    """Return a completer of one of these names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (names() if callable(names) else names) if name.startswith(incomplete)]

    return complete


def several(names: Callable[[], Iterable[str]] | Iterable[str]) -> Completer:
    """Return a completer of a list with commas, in which `!name` leaves a name out. A name is not offered twice."""
    known = one(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        bare = last.removeprefix("!")
        sign = last[: len(last) - len(bare)]
        taken = {name.removeprefix("!") for name in before.split(",")}
        return [f"{before}{comma}{sign}{name}" for name in known(bare) if name not in taken]

    return complete


def backends() -> Iterable[str]:
    """Return the names of all backends, also of installed packages."""
    from attnbench.backends import available

    return available()


def suites() -> Iterable[str]:
    """Return the names of the suites that ship."""
    from attnbench.run.shipped_suites import shipped_suites

    return shipped_suites()


def papers() -> Iterable[str]:
    """Return the names of the files of claims that ship."""
    from attnbench.run.shipped_suites import shipped_claims

    return shipped_claims()


def models() -> Iterable[str]:
    """Return the names of --model."""
    from attnbench.core.models import MODELS

    return MODELS


def step_models() -> Iterable[str]:
    """Return the models of `attnbench step`."""
    from attnbench.core.models import MODELS, TINY

    return (TINY.name, *(name for name, model in MODELS.items() if model.step))


def step_backends() -> Iterable[str]:
    """Return the implementations of attention in a step."""
    from attnbench.backends import STEPS

    return [name.removeprefix("step-") for name in STEPS]


def gpus() -> Iterable[str]:
    """Return the names of --gpu: products and generations."""
    from attnbench.run.support_matrix import ARCHITECTURES, PRODUCTS

    names = (*PRODUCTS, *map(str.lower, ARCHITECTURES), "cpu")
    return [name.replace(" ", "-") for name in names]
