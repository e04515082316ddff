"""A worker in the process of the tests, in place of a child process, which takes seconds to import torch."""

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
    """Return a hash of a person's file alone: what this process has imported is of the tests."""
    return hashlib.sha256(Path(file).read_bytes() if file.endswith(".py") else b"").hexdigest()[:8]


@contextlib.contextmanager
def quick_cpu() -> Iterator[None]:
    """In the block little is read to flush a CPU's cache and to test it, and little computed to measure its rates.

    In the usual sizes they take most of the time of a small cell.
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
    """A worker in place of a process: it takes what run.process.WorkerProcess takes."""

    def __init__(self, python: str | None = None, _: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.python = python

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with patch.object(serve.own_source, "hash_of_source", hash_of_file), quick_cpu():
            return self._worker.answer(request)

    def kill(self) -> None:
        """Keep what was frozen: to look at all that the tests have imported takes a third of a second."""
        self.alive = False
