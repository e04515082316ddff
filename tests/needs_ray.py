"""What some tests need of this machine: shared memory, which some systems forbid, and Ray, which needs it."""

from __future__ import annotations

import sys
import tempfile

import pytest

SHARED_MEMORY = "/dev/shm"  # where Linux has it


def needs_shared_memory() -> None:
    """Skip the test where the system lets no file be made in shared memory."""
    if sys.platform == "linux":
        try:
            tempfile.TemporaryFile(dir=SHARED_MEMORY).close()
        except OSError as error:
            pytest.skip(f"needs {SHARED_MEMORY}, where this system lets no file be made: {error.strerror}")


def needs_ray() -> None:
    """Skip the test where Ray is not installed, or has no shared memory to keep its objects in."""
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    needs_shared_memory()
