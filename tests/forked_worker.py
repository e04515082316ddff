"""A worker that is forked from a process with torch imported, in a tenth of the time of a new interpreter.

`popen` replaces `subprocess.Popen` of run/process.py. Its worker has the environment of a new process: its variables,
descriptors 0 to 2 and no others, its own session, and a parent that waits for it. Another interpreter, and every
command other than a worker, is a new process as before. The worker reads and computes little for a CPU's rates.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn
from unittest.mock import patch

from attnbench.cli import SIGNALS
from attnbench.run import process
from worker_here import quick_cpu

INSTALLED = (sys.prefix, sys.base_prefix)


@contextlib.contextmanager
def workers() -> Iterator[None]:
    """Return a context in which started workers are forked."""
    with patch.object(process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen})):
        yield


def popen(command: Sequence[str], **options: Any) -> Any:
    """Replace subprocess.Popen: fork if the command is a worker in this interpreter, else start a process."""
    if [*command] != process.isolated_command("attnbench.worker"):
        return subprocess.Popen(command, **options)
    return ForkedWorker(options["env"], options["stderr"])


class ForkedWorker:
    """A forked worker with the part of subprocess.Popen that run/process.py uses."""

    def __init__(self, env: Mapping[str, str], stderr: IO[bytes]) -> None:
        (requests, ours), (theirs, answers) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _work(env, (requests, answers, stderr.fileno()))
        os.close(requests)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(ours, "wb", 0), os.fdopen(theirs, "rb", 0)
        os.read(theirs, 1)  # waits until it has its own session, so that a signal to its group reaches it
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (timeout or 0.0)
        while timeout is not None and self.poll() is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.01)
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def forget_the_tests(env: Mapping[str, str]) -> None:
    """Reduce path and modules to a new interpreter's, because the tests' imports would count as a person's own code."""
    named = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [*named, *(folder for folder in sys.path if folder.startswith(INSTALLED))]
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__dict__", {}).get("__file__") or sys.prefix  # built-in modules stay
        if name.endswith("_main__") or not (name.startswith("attnbench") or file.startswith(INSTALLED)):
            del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")


def _work(env: Mapping[str, str], descriptors: Sequence[int]) -> NoReturn:
    """Run a worker in the child of a fork."""
    try:
        os.setsid()
        for to, given in enumerate(descriptors):
            os.dup2(given, to)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.write(1, b" ")
        os.environ.clear()
        os.environ.update(env)
        sys.stdin, sys.stderr = open(0), open(2, "w", buffering=1)  # noqa: SIM115
        unbuffered = open(1, "wb", 0)  # noqa: SIM115  (as PYTHONUNBUFFERED asks)
        sys.stdout = io.TextIOWrapper(unbuffered, write_through=True)
        sys.argv = ["attnbench.worker"]
        forget_the_tests(env)
        for name in SIGNALS:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        warnings.resetwarnings()  # pytest turns warnings into errors
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        from attnbench.worker import serve

        with quick_cpu():
            serve.main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)
