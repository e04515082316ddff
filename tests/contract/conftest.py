"""The contract is tested on a GPU where there is one, else on the CPU with Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported (interpreted_triton.py) and when a kernel is decorated, so it is set
while each test of this folder runs. It is not set at other times, because other tests need a backend without it.
"""

from __future__ import annotations

import pytest
import torch

from interpreted_triton import INTERPRET


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply float32 exactly, as in a worker; tests/conftest.py restores the setting after each test."""
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.set_float32_matmul_precision("highest")
