"""What tests on a Ray cluster need of this machine."""

from __future__ import annotations

import sys
import tempfile

import pytest

SHARED_MEMORY = "/dev/shm"  # where Ray keeps its objects on Linux


def needs_ray() -> None:
    """Skip the test where Ray is not installed, or the system lets no file be made in shared memory."""
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    if sys.platform == "linux":
        try:
            tempfile.TemporaryFile(dir=SHARED_MEMORY).close()
        except OSError as error:
            pytest.skip(
                f"needs Ray, which needs {SHARED_MEMORY}, where this system lets no file be made: {error.strerror}"
            )
