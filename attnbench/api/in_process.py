"""A worker in this process, for a function whose source is not available. Nothing protects the process from it."""

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from attnbench.core.captured_stderr import captured_stderr
from attnbench.core.errors import UserError
from attnbench.core.own_code import IN_PROCESS
from attnbench.run.process import TAIL, OnQuestion, WorkerDied

_MEASURING = threading.Lock()  # held by the measurement in this process


class InProcess:
    """A worker with WorkerProcess's interface (run/process.py). It answers within the call; no timeout ends it."""

    def __init__(self) -> None:
        from attnbench.worker.environment import measure_in_this_process
        from attnbench.worker.serve import Worker

        measure_in_this_process()
        self.alive, self.pid = True, os.getpid()
        self.on_question: OnQuestion | None = None
        self._worker = Worker(self._ask, self._keep)
        self._traceback: str | None = None  # traceback of a failure in the latest request
        self._answers: list[dict[str, Any]] = []

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.on_question
        return self.on_question(dict(request), float("inf"))

    def _keep(self, traceback: str) -> None:
        self._traceback = traceback[-TAIL:].strip() or None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Raises what the function raises while it is loaded."""
        from attnbench.worker import torch_defaults

        with torch_defaults.kept(), _quiet_profiler():
            return self._worker.answer(request)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the answer to a request."""
        self.send(request)
        return self.receive(timeout)

    def send(self, request: Mapping[str, Any]) -> None:
        """Answer a request now; `receive` returns the answers in their order."""
        from attnbench.worker import failures

        self._traceback = None
        try:
            answer = self.answer(request)
        except Exception as error:
            answer = {"error": failures.reason(error, self._worker.spec)}
        self._answers.append(answer)

    def answered(self, timeout: float) -> bool:
        """Whether there is an answer: always."""
        return True

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the next answer. Raises WorkerDied where nothing was asked."""
        if not self._answers:
            raise WorkerDied("nothing was asked")
        return self._answers.pop(0)

    def stderr_tail(self) -> str | None:
        """Return the traceback of a failure. The output of a function goes where this process prints."""
        return self._traceback

    def interrupt_import(self) -> bool:
        """Return False: an import here ends before its request is answered."""
        return False

    def send_kill(self) -> None:
        """Do nothing: this process goes on."""

    def kill(self) -> None:
        """Let a later request of the pool have another worker, and free what this one holds of this process.

        The worker froze Python's garbage collector, which until now could free none of the process's earlier cycles.
        """
        if self.alive:
            self.alive = False
            del self._worker
            gc.unfreeze()
            gc.collect()


def worker_of(name: str, function: Any) -> InProcess:
    """Return a worker for a callable object, which has the spec "IN_PROCESS:name" from now on."""
    module = sys.modules.setdefault(IN_PROCESS, ModuleType(IN_PROCESS))
    module.__spec__ = importlib.machinery.ModuleSpec(IN_PROCESS, None)  # otherwise Python would not find the module
    setattr(module, name, function)
    return InProcess()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold this process for a measurement in it. Raises UserError where another measurement, for example of another
    thread, holds it.

    A worker changes torch's defaults, the garbage collector and stderr of its process.
    """
    if not _MEASURING.acquire(blocking=False):
        raise UserError(
            "another measurement is under way in this process, and would disturb this one; measure after it, or leave "
            "out in_process=True"
        )
    try:
        yield
    finally:
        _MEASURING.release()


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep messages of torch's profiler, which records the kernels that ran, off stderr."""
    with captured_stderr() as said:
        yield
    if sys.stderr is not None:
        sys.stderr.writelines(line for line in said[0].splitlines(keepends=True) if not line.startswith("USDT:"))
