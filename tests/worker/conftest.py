"""Fixtures that several files of these tests share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnbench.worker import instruments as module


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace `time` in the instruments by a clock that only `sleep` moves."""
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    made.sleep = lambda seconds: setattr(made, "now", made.now + seconds)
    monkeypatch.setattr(module, "time", made)
    return made
