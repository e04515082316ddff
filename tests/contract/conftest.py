"""The contract is tested on a GPU where there is one, else on the CPU with Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported (interpreted_triton.py) and when a kernel is decorated, so it is set
while each test of this folder runs. It is not set at other times, because other tests need a backend without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_switches
from interpreted_triton import INTERPRET


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reset torch's switches after each test: a backend may set them, as in a worker it has its own process."""
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with torch_switches.kept():
        torch.set_float32_matmul_precision("highest")
        yield
