"""Run a command in the process of the tests, without a new interpreter and without new imports.

The command has the environment of a new process: arguments, working directory, variables, warnings and streams, which
are files. Its changes of this process are undone at its end. The workers of the simulated backend are objects of this
process, unless they shall crash or hang; all others are forks of this process (forked_worker.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import forked_worker
import worker_here
from attnbench import cli
from attnbench.backends import BACKENDS
from attnbench.core.captured_stderr import captured_stderr
from attnbench.run import device_probe, process, workers

ENDS = re.compile("(crash|hang|process)@")  # faults in ATTNBENCH_FAKE that need a process of their own
for name in ("attnbench.worker.measure_cell", "torch.fx.experimental.symbolic_shapes"):
    importlib.import_module(name)  # otherwise each fork that measures on a CPU imports it
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def run(args: Sequence[str], folder: Path, env: Mapping[str, str], into: str | None = None) -> tuple[int, str, str]:
    """Run a command line to its end; return its exit code, stdout and stderr.

    stdout goes to the file `into`, if one is given.
    """
    with contextlib.ExitStack() as files:
        nothing = files.enter_context(open(os.devnull))
        out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        to = files.enter_context(open(into, "w")) if into else out
        code = run_with(args, folder, env, [file.fileno() for file in (nothing, to, err)])
        out.seek(0)
        err.seek(0)
        return code, *(stream.read().decode(errors="replace") for stream in (out, err))


def run_with(args: Sequence[str], folder: Path, env: Mapping[str, str], descriptors: Sequence[int]) -> int:
    """Run a command line to its end with these descriptors as standard streams; return its exit code."""
    with (
        _state_of_the_process(),
        _streams(descriptors, env.get("PYTHONIOENCODING")),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(sys, "argv", ["attnbench", *args]),
        mock.patch.object(os, "_exit", _exit(os.getpid())),
        mock.patch.object(process, "if_killed", return_value=None),  # a shell that waits for this process
        mock.patch.object(workers, "WorkerProcess", Worker),
        mock.patch.object(device_probe, "WorkerProcess", Worker),
        forked_worker.workers(),
    ):
        os.chdir(folder)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    return int(code or 0)


class Simulated(worker_here.Here):
    """A simulated worker in this process with its own stderr."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with captured_stderr() as self._said:
            return super().answer(request)

    def stderr_tail(self) -> str | None:
        return "".join([*self._said, super().stderr_tail() or ""]).strip() or None


class Worker:
    """A worker that becomes an object of this process or a fork at its first request."""

    def __init__(self, *given: Any) -> None:
        self._given, self.on_question = given, None

    def send(self, request: Mapping[str, Any]) -> None:
        if "_worker" not in vars(self):
            self._worker: Any = (Simulated if self._is_simulated(request) else process.WorkerProcess)(*self._given)
            self._worker.on_question = self.on_question
        self._worker.send(request)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self.send(request)
        answer: dict[str, Any] = self._worker.receive(timeout)
        return answer

    def _is_simulated(self, request: Mapping[str, Any]) -> bool:
        if self._given[:1] not in ((), (None,)) or ENDS.search(os.environ.get("ATTNBENCH_FAKE", "")):
            return False
        return request.get("device") == "fake" or request.get("spec") == BACKENDS["fake"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


@contextlib.contextmanager
def _state_of_the_process() -> Iterator[None]:
    """Return a context that restores the working directory, signals, warnings, modules and sys.path at its end."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    folder, path, modules = os.open(".", os.O_RDONLY), [*sys.path], dict(sys.modules)
    with warnings.catch_warnings():
        warnings.resetwarnings()  # pytest turns warnings into errors
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.fchdir(folder)
            os.close(folder)
            sys.path[:] = path
            sys.modules.update(modules)


@contextlib.contextmanager
def _streams(descriptors: Sequence[int], encoding: str | None) -> Iterator[None]:
    """Return a context in which the standard streams and descriptors 0 to 2 are `descriptors`, in an encoding."""
    streams, kept = (sys.stdin, sys.stdout, sys.stderr), [os.dup(number) for number in range(3)]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
        yield
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = streams


def _exit(pid: int) -> mock.Mock:
    """Return a replacement of os._exit that ends a command but not this process; a fork still ends."""
    end = os._exit

    def exit(code: int) -> NoReturn:
        if os.getpid() != pid:
            end(code)
        raise SystemExit(code)

    return exit  # type: ignore[return-value]
