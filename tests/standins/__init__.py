"""Stand-ins for attention libraries: modules with their functions, which take what the libraries take.

The parameters of a function are the library's, as its source declares them, so that a call that the library would not
take fails. What a function computes is `attend`, with the options that the call names: a test of a backend sees that
a case reaches the library, and that its results come back. Whether the library does what these options say can only be
tested with the library, on a GPU (tests/contract).
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
    """Return a function of these parameters, written as in Python, which calls `compute` with a namespace of them."""
    bind = eval(f"lambda {parameters}: locals()")

    def call(*args: Any, **options: Any) -> Any:
        return compute(SimpleNamespace(**bind(*args, **options)))

    call.__signature__ = inspect.signature(bind)  # type: ignore[attr-defined]
    return call


def modules(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModuleType]:
    """Return modules of these full names with these contents, and the packages that hold them."""
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
