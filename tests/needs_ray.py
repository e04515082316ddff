"""Skip tests where this machine lacks shared memory, which some systems forbid, or Ray, which needs it."""

from __future__ import annotations

import sys
import tempfile

import pytest

SHARED_MEMORY = "/dev/shm"  # the place on Linux


def needs_shared_memory() -> None:
    """Skip the test where no file can be made in shared memory."""
    if sys.platform == "linux":
        try:
            tempfile.TemporaryFile(dir=SHARED_MEMORY).close()
        except OSError as error:
            pytest.skip(f"needs {SHARED_MEMORY}, where this system lets no file be made: {error.strerror}")


def needs_ray() -> None:
    """Skip the test where Ray is not installed, or has no shared memory for its objects."""
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    needs_shared_memory()
