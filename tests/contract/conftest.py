"""Where backends are checked: on a GPU where there is one, else on the CPU with Triton's interpreter.

Triton decides when it is imported and when a kernel is decorated, so TRITON_INTERPRET is set for the import here and
while each test of this folder runs, and at no other time: tests elsewhere ask what a backend says without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import torch

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()

if INTERPRET:
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ImportError):
        patch.setenv("TRITON_INTERPRET", "1")
        import triton  # noqa: F401


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each backend has a process of its own, and may set switches of torch there; here they are put back."""
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    switches = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in SDP}
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(precision)
    for name, was in switches.items():
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(was)


SDP = ("math", "mem_efficient", "flash", "cudnn")
