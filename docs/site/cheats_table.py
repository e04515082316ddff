"""The table of cheats that --untrusted finds, from tests/wrong_kernels/cheats.py."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import cog  # of the running cog

FILE = Path(__file__).parents[2] / "tests" / "wrong_kernels" / "cheats.py"


def table() -> None:
    """Print each cheat with what finds it, and the open ones with the reason."""
    cheats = _module()
    cog.outl("\n| cheat | found by |\n| :--- | :--- |")
    for name, means in cheats.CHEATS.items():
        cog.outl(f"| {_what(getattr(cheats, name))} | {', '.join(means)} |")
    for name, why in cheats.OPEN.items():
        cog.outl(f"| {_what(getattr(cheats, name))} | **not found**: {why} |")


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("cheats", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _what(cheat: Any) -> str:
    """Return the first sentence of a cheat's description."""
    return (inspect.getdoc(cheat) or "").split(". ")[0].split("\n\n")[0].replace("\n", " ").removesuffix(".")
