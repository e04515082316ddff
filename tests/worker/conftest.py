"""Fixtures of several files of the worker's tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from attnbench.worker import instruments as module
from attnbench.worker.serve import Worker
from worker_here import CPU, quick_cpu


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Yield a worker that has opened the CPU."""
    with quick_cpu():
        made = Worker()
        made.measurer(CPU)
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace `time` in the instruments by a clock that only `sleep` moves."""
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    made.sleep = lambda seconds: setattr(made, "now", made.now + seconds)
    monkeypatch.setattr(module, "time", made)
    return made
