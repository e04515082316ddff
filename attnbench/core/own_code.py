"""Loads a person's own file of Python: a kernel for --backend, a mask for --mask."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from attnbench.core.errors import did_you_mean


def load_file(path: Path) -> ModuleType:
    """Import a file of Python, which may import its neighbours. Raises FileNotFoundError and what the import raises."""
    spec = importlib.util.spec_from_file_location(f"attnbench_own_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickle and Triton find what a module defines by the name of the module
    sys.path.insert(0, str(path.parent.resolve()))  # it may import its neighbours, as with `python file.py`
    spec.loader.exec_module(module)
    return module


def functions_of(module: object, attribute: str) -> str:
    """Return the end of an error line: which function of a module may have been meant."""
    inside = vars(module)
    own = [n for n, f in inside.items() if callable(f) and getattr(f, "__module__", "") == inside.get("__name__")]
    return did_you_mean(attribute, own) if own else "; it defines no functions"
