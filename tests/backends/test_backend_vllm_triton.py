"""`vllm-triton`, through a stand-in of the kernel's module, which imports the engine's modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import triton

from attnbench.core.case import Case
from standins import engines
from standins.contract import backend, cases, check


@cases("vllm-triton")
def test_contract(name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is imported without the engine, and leaves no module of it behind."""
    engines.install(tmp_path, monkeypatch)
    made = backend(name)
    assert made.probe().version == f"vllm 0.33.0, triton {triton.__version__}"
    check(made, case)
    assert not [module for module in sys.modules if module.partition(".")[0] == "vllm"]
