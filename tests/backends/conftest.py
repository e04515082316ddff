"""Import Triton for its interpreter where there is no GPU, before a test file here imports it otherwise.

Triton reads TRITON_INTERPRET when it is imported. test_backend_compiled.py imports it through torch's compiler; without
this file the tests of the kernels would then be skipped.
"""

from __future__ import annotations

import contextlib
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ImportError):
        patch.setenv("TRITON_INTERPRET", "1")
        import triton  # noqa: F401
