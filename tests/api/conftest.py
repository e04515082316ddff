"""A measurement in the process of the tests leaves its objects frozen, because a collection over all imports takes a
third of a second. The test of what a measurement leaves behind has the collections."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from attnbench.api import in_process


@pytest.fixture(autouse=True)
def _no_collections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "collections" not in request.fixturenames:
        monkeypatch.setattr(in_process, "gc", SimpleNamespace(**{**vars(gc), "unfreeze": int, "collect": int}))


@pytest.fixture
def collections() -> None:
    """Let measurements in this process collect garbage as they do outside of tests."""
