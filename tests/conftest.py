"""Its place puts tests/ on the path, where tests of backends find their stand-ins.

Tests run one process per core. Each of them, and what it starts, computes with one thread: else threads that wait for
one another take the cores from the other tests, and all of it lasts twice as long.
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

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Keep modules and tests out of the collections of garbage, of which each measured cell makes two."""
    gc.collect()
    gc.freeze()
    try:
        return (yield)
    finally:
        gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _no_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A developer's own, which `attnbench env create` made, are none of the tests' (and go to no child)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_load() -> Iterator[None]:
    """The load of the machine of the tests changes nothing.

    Not by `monkeypatch`: an autouse fixture that asked for it would have every test's patches undone last, after
    `_switches_of_torch` has restored torch's switches through them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
        yield


@pytest.fixture(autouse=True, scope="session")
def _tests_are_no_own_code() -> Iterator[None]:
    """Leave the imported files of the tests out of the version of a person's code, which takes a second to hash them.

    A worker has imported none of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_source, "PACKAGES", (*own_source.PACKAGES, str(Path(__file__).parent).strip(os.sep)))
        yield


@pytest.fixture(autouse=True)
def _switches_of_torch() -> Iterator[None]:
    """Reset torch's switches after each test: a backend sets them for its process."""
    if "torch" not in sys.modules:  # which takes a second to import
        yield
        return
    import torch_switches

    with torch_switches.kept():
        yield


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Let signals do what they usually do, and restore what they did.

    A process in the background of a script ignores SIGINT, and one of nohup SIGHUP, as do their children. A command
    that runs in this process lets a closed pipe end it, and, once interrupted, ignores what interrupts it.
    """
    usual = {
        signal.SIGPIPE: signal.getsignal(signal.SIGPIPE),
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
