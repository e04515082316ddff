"""Import Triton for its interpreter where there is no GPU, before a test file here imports it otherwise.

test_backend_compiled.py imports it through torch's compiler; without this file the tests of the kernels would then be
skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import interpreted_triton  # noqa: F401
import torch_switches


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Reset torch's switches after each test: a backend sets them for its process."""
    with torch_switches.kept():
        yield
