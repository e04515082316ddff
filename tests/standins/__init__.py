"""Stand-ins for attention libraries: modules with the libraries' functions and parameters.

The parameters of a function are declared as in the library's source, so that a call that the library would refuse
fails. A function computes `attend` with the options of the call: a test of a backend shows that a case reaches the
library, and that its results come back. Only a test with the library, on a GPU (tests/contract), shows the effect of
the options.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def function(parameters: str, compute: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function with parameters as written in Python, which calls `compute` with a namespace of them."""
    bind = eval(f"lambda {parameters}: locals()")

    def call(*args: Any, **options: Any) -> Any:
        return compute(SimpleNamespace(**bind(*args, **options)))

    call.__signature__ = inspect.signature(bind)  # type: ignore[attr-defined]
    return call


def modules(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModuleType]:
    """Return modules from full names and contents, with the packages around them."""
    found: dict[str, ModuleType] = {}
    for name, what in contents.items():
        for package in itertools.accumulate(name.split("."), "{}.{}".format):
            found.setdefault(package, ModuleType(package))
        vars(found[name]).update(what)
    return found


def install(
    monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, ModuleType | None], versions: Mapping[str, str]
) -> None:
    """Install modules by their full names (None: cannot be imported), and distributions with their versions.

    The distributions have no requirements.
    """
    for name, what in modules.items():
        monkeypatch.setitem(sys.modules, name, what)  # type: ignore[arg-type]
        parent, _, child = name.rpartition(".")
        if what is not None and modules.get(parent) is not None:
            setattr(modules[parent], child, what)

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
