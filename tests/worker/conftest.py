"""Fixtures that several files of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import torch_switches
from attnbench.worker import instruments as module


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Reset torch's switches after each test: a backend sets them for its process."""
    with torch_switches.kept():
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace `time` in the instruments by a clock that only `sleep` moves."""
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    made.sleep = lambda seconds: setattr(made, "now", made.now + seconds)
    monkeypatch.setattr(module, "time", made)
    return made
