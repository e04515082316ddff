"""Fixtures of all tests. Because this file is in tests/, pytest puts that folder on the path, where the stand-ins of
libraries are.

Tests run in one process per core. Each process and its children compute with one thread, because waiting threads would
take the cores from other tests, and all tests would last twice as long.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from attnbench.backends.shared import own_source
from attnbench.cli import SIGNALS
from attnbench.core import own_code

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
gc.disable()  # until the tests run: collections while they are imported free nothing


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Exclude modules and tests from garbage collection, because each measured cell collects twice."""
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        return (yield)
    finally:
        gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _no_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide a developer's environments of `attnbench env create` from the tests and their children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_load() -> Iterator[None]:
    """Let the load of the tests' machine change nothing.

    It does not use `monkeypatch`: with an autouse fixture that does, every test's patches would be undone last, after
    `_switches_of_torch` has restored torch's switches through them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
        yield


@pytest.fixture(autouse=True, scope="session")
def _tests_are_no_own_code() -> Iterator[None]:
    """Leave the tests' own files out of the version of a person's code: no worker imports them, and they are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_source, "PACKAGES", (*own_source.PACKAGES, str(Path(__file__).parent).strip(os.sep)))
        yield


@pytest.fixture(autouse=True)
def _switches_of_torch() -> Iterator[None]:
    """Reset torch's switches after each test: a backend sets them for its process."""
    if "torch" not in sys.modules:  # the import takes a second
        yield
        return
    import torch_switches

    with torch_switches.kept():
        yield


@pytest.fixture(autouse=True)
def _places_of_imports() -> Iterator[None]:
    """Restore where Python looks for modules after each test: a person's file adds its folder, for its process.

    With the folders of all tests each search, for a missing library or the version of an installed one, would take
    a hundred times as long.
    """
    path, hooks, from_source = [*sys.path], [*sys.path_hooks], {*own_code._from_source}
    yield
    sys.path[:], sys.path_hooks[:] = path, hooks
    own_code._from_source.intersection_update(from_source)  # the folders that have a hook


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Set the default handlers of signals, and restore the earlier ones at the end.

    A process in the background of a script ignores SIGINT, a process of nohup SIGHUP, and so do their children. A
    command that runs in this process lets a closed pipe end it, and ignores interrupts after the first.
    """
    usual = {
        signal.SIGPIPE: signal.getsignal(signal.SIGPIPE),
        signal.SIGINT: signal.default_int_handler,
        **{getattr(signal, name): signal.SIG_DFL for name in SIGNALS if name != "SIGINT" and hasattr(signal, name)},
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
