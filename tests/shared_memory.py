"""The mark of tests that need shared memory, which some systems forbid: locks of multiprocessing, and a Ray cluster."""

from __future__ import annotations

import os

import pytest

WHY = "needs /dev/shm, where this system lets nothing be written"
needed = pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason=WHY)
