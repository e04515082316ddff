"""Stand-ins for attention libraries: modules with the same functions and parameters, computed by torch on a CPU.

They check their arguments as the libraries do, so a backend that passes what its library would refuse fails here.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest


def module(name: str, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    return made


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
