"""A worker in this process, for a function whose source cannot be had. Nothing guards the process against it."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from attnbench.api.watching import interrupts
from attnbench.core.captured_stderr import captured_stderr
from attnbench.core.errors import Interrupted, UserError
from attnbench.core.own_code import IN_PROCESS
from attnbench.run.process import OnQuestion, WorkerDied


class InProcess:
    """Has the interface of run/process.WorkerProcess. It answers while it is asked, and ends at no timeout."""

    def __init__(self, name: str, function: Any) -> None:
        """Take an object that can be called, which the spec "IN_PROCESS:name" names from now on."""
        from attnbench.worker.serve import Worker

        setattr(_module(), name, function)
        self.alive, self.pid = True, os.getpid()
        self.on_question: OnQuestion | None = None
        self._worker = Worker(self._ask)
        self._answers: list[dict[str, Any]] = []

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.on_question
        return self.on_question(dict(request), float("inf"))

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the answer to a request."""
        self.send(request)
        return self.receive(timeout)

    def send(self, request: Mapping[str, Any]) -> None:
        """Answer a request now; `receive` returns the answers in their order."""
        import torch

        from attnbench.worker import failures

        if torch.is_inference_mode_enabled():  # which a worker leaves
            raise UserError(
                "a function is measured in this process, which is in inference mode; call it outside of that"
            )
        before = len(interrupts)
        with _torch_as_it_was(), _quiet_profiler():
            try:
                self._answers.append(self._worker.answer(request))
            except Exception as error:
                self._answers.append({"error": failures.reason(error, self._worker.spec)})
        if len(interrupts) > before:  # which the worker took for the function's own
            raise Interrupted(interrupts[-1])

    def answered(self, timeout: float) -> bool:
        """Whether there is an answer: always."""
        return True

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the next answer. Raises WorkerDied where nothing was asked."""
        if not self._answers:
            raise WorkerDied("nothing was asked")
        return self._answers.pop(0)

    def stderr_tail(self) -> str | None:
        """Return nothing: what a function prints goes where this process prints."""
        return None

    def send_kill(self) -> None:
        """Do nothing: this process goes on."""

    def kill(self) -> None:
        """Let a later request of the pool have another worker."""
        self.alive = False


def _module() -> ModuleType:
    """Return the module whose attributes are what is measured in this process."""
    if IN_PROCESS not in sys.modules:
        module = ModuleType(IN_PROCESS)
        module.__spec__ = importlib.machinery.ModuleSpec(IN_PROCESS, None)
        sys.modules[IN_PROCESS] = module
    return sys.modules[IN_PROCESS]


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep off stderr that torch's profiler starts and stops, which shows what ran."""
    with captured_stderr() as said:
        yield
    sys.stderr.writelines(line for line in said[0].splitlines(keepends=True) if not line.startswith("USDT:"))


@contextlib.contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Give torch's defaults back after the block: a worker sets them as torch has them."""
    import torch

    device, dtype, grad = torch.get_default_device(), torch.get_default_dtype(), torch.is_grad_enabled()
    precision, generator = torch.get_float32_matmul_precision(), torch.get_rng_state()
    casts = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}
    try:
        yield
    finally:
        torch.set_default_device(None if device == torch.device("cpu") else device)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_float32_matmul_precision(precision)
        torch.set_rng_state(generator)
        for kind, enabled in casts.items():
            torch.set_autocast_enabled(kind, enabled)
