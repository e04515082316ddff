"""A worker in the process of the tests; a child process would take seconds to import torch."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attnbench.api.in_process import InProcess
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.worker import environment, serve
from attnbench.worker.measure import ceiling, l2_cache

CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
SHORT = Policy(l2="warm", warmup_s=0.001, min_samples=4, min_seconds=0.0, max_seconds=0.01, target=1.0)


def hash_of_file(_: object, file: str) -> str:
    """Return a hash of a person's file only, because the other imports of this process are the tests'."""
    return hashlib.sha256(Path(file).read_bytes() if file.endswith(".py") else b"").hexdigest()[:8]


@contextlib.contextmanager
def quick_cpu() -> Iterator[None]:
    """Return a context with small sizes for a CPU's cache flush, its test, and the measurement of its rates.

    In the usual sizes these take most of the time of a small cell.
    """
    flush = l2_cache.L2Flush
    with contextlib.ExitStack() as stack:
        for name, value in (("MIN_FLUSH", 2**20), ("L2Flush", lambda device, _: flush(device, 0)), ("REPEATS", 2)):
            stack.enter_context(patch.object(l2_cache, name, value))
        for sizes, size in (
            *((ceiling.MATMUL_SIZE, 64), (environment.QUICK_MATMUL, 64)),
            *((ceiling.COPY_BYTES, 2**20), (environment.QUICK_COPY, 2**20)),
        ):
            stack.enter_context(patch.dict(sizes, cpu=size))
        yield


class Here(InProcess):
    """A worker in this process, with the interface of run.process.WorkerProcess."""

    def __init__(self, python: str | None = None, _: Mapping[str, str] | None = None, **__: bool) -> None:
        super().__init__()
        self.python = python

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["op"] == "fence":  # for good, so not in the process of the tests
            return {"fences": {}}
        with patch.object(serve.own_source, "hash_of_source", hash_of_file), quick_cpu():
            return self._worker.answer(request)

    def kill(self) -> None:
        """End the worker, and keep frozen objects: a collection over all imports takes a third of a second."""
        self.alive = False
