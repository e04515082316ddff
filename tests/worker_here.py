"""A worker in the process of the tests, in place of a child process, which takes seconds to import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attnbench.run.process import WorkerDied
from attnbench.worker import serve
from attnbench.worker.serve import Worker


def hash_of_file(_: object, file: str) -> str:
    """Return a hash of a person's file alone: what this process has imported is of the tests."""
    return hashlib.sha256(Path(file).read_bytes() if file.endswith(".py") else b"").hexdigest()[:8]


class Here:
    """Has the interface of run.process.WorkerProcess, and answers as a worker does. It does not end at a timeout."""

    def __init__(self, python: str | None = None, _: Mapping[str, str] | None = None) -> None:
        self.python = python
        self.alive = True
        self._worker = Worker()
        self._answers: list[dict[str, Any]] = []

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with patch.object(serve, "hash_of_source", hash_of_file):
            return self._worker.answer(request)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self.send(request)
        return self.receive(timeout)

    def send(self, request: Mapping[str, Any]) -> None:
        try:
            answer = self.answer(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._answers.append(answer)

    def answered(self, timeout: float) -> bool:
        return True

    def receive(self, timeout: float) -> dict[str, Any]:
        if not self._answers:
            raise WorkerDied("nothing was asked")
        return self._answers.pop(0)

    def stderr_tail(self) -> None:
        return None

    def send_kill(self) -> None: ...

    def kill(self) -> None:
        self.alive = False
