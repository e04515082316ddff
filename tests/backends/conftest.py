"""Import Triton for its interpreter where there is no GPU, before a test file here imports it otherwise.

Triton reads TRITON_INTERPRET when it is imported. test_backend_compiled.py imports it through torch's compiler; without
this file the tests of the kernels would then be skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import torch

import torch_switches

if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ImportError):
        patch.setenv("TRITON_INTERPRET", "1")
        import triton  # noqa: F401


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Reset torch's switches after each test: a backend sets them for its process."""
    with torch_switches.kept():
        yield
