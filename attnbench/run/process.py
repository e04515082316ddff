"""One worker process seen from the parent: start, ask, and know why it did not answer."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_TIMEOUT = 300.0  # seconds for importing torch and the library, and for opening the device
TAIL = 2000  # bytes of a worker's stderr kept with a failure


class WorkerDied(Exception):
    """The process ended instead of answering. The message says how."""


class WorkerHung(Exception):
    """No answer within the time allowed; the process has been killed."""


class WorkerProcess:
    """`PYTHON -m attnbench.worker.serve`, in a session of its own so that Ctrl-C reaches only the parent."""

    def __init__(
        self,
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "attnbench.worker"),
    ) -> None:
        """`variables` of its environment, over the present ones; another `program` must answer line by line too."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._mark = 0
        self._tail: str | None = None  # of its stderr, once it has been killed
        self._buffer = b""
        self._process = subprocess.Popen(
            [python or sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**environment(python), **(variables or {})},
            start_new_session=True,
            bufsize=0,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self.send(request)
        return self.receive(timeout)

    def send(self, request: Mapping[str, Any]) -> None:
        """Queues a request; `receive` gives the answers in order."""
        self._mark = self._stderr.seek(0, os.SEEK_END)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive says why
            self._process.stdin.write((json.dumps(request) + "\n").encode())

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next answer. Raises WorkerDied or WorkerHung."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if not selector.select(min(1.0, max(0.0, left))):
                    if not self.alive:  # a child of it may hold the pipe open
                        raise WorkerDied(self._how_it_ended())
                    if left <= 0:
                        self.kill()
                        raise WorkerHung
                    continue
                chunk = os.read(self._process.stdout.fileno(), 2**16)
                if not chunk:
                    raise WorkerDied(self._how_it_ended())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            self.kill()
            raise WorkerDied(f"it printed {line[:80].decode(errors='replace')!r} instead of an answer") from None
        return answer

    def stderr_tail(self) -> str | None:
        """The end of what it printed since the last request."""
        if self._stderr.closed:
            return self._tail
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(self._mark, end - TAIL))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("USDT:")).strip() or None

    def send_kill(self) -> None:
        """To it and whatever it started; `kill` then waits for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends it and whatever it started."""
        self.send_kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._tail = self.stderr_tail()
        self._stderr.close()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the worker was killed (SIGKILL; often the system ran out of memory)"
        if code < 0:
            return f"the worker crashed ({signal.Signals(-code).name})"
        return f"the worker ended with exit code {code}"


def environment(python: str | None = None) -> dict[str, str]:
    """The environment variables of a child that runs in `python`, else in this interpreter."""
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "5"}
    if python and python != sys.executable:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [_source(), os.environ.get("PYTHONPATH")]))
    return variables


def _source() -> str:
    """A folder with nothing but attnbench on it, for interpreters that do not have it installed."""
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="attnbench-")
        (Path(_folder.name) / "attnbench").symlink_to(Path(__file__).parents[1])
    return _folder.name


_folder: tempfile.TemporaryDirectory[str] | None = None
