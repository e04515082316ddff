"""The parent's side of a child process: starting it, asking it, and finding out why it did not answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.core.backend import Probe
from attnbench.core.files import this_python
from attnbench.core.json import from_json
from attnbench.core.process_tree import family, kill_all
from attnbench.run import device_turns

START_TIMEOUT = 300.0  # seconds for importing torch and the library, and for opening the device
SLICE = 1.0  # seconds of one wait for an answer; a longer wait counts as this, because the process was then stopped
QUESTION = b'{"ask":'  # the beginning of a line with a worker's question, not an answer
MOST_QUESTIONS = 100_000  # most questions during one request
MOST_OF_ANSWER = 2**28  # most bytes of an answer
MOST_OF_STDERR = 2**30  # most bytes on stderr during one request
TO_CLEAN_UP = 1.0  # seconds that an interrupted import has
AFTER_QUESTION = 5.0  # least seconds left to a worker after the answer to its question
IN_WORKER = "ATTNBENCH_WORKER"  # environment variable of workers, and of what they start
# Environment variables without secrets, which fenced processes get
NEEDED = re.compile(
    r"(PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|TERM|COLUMNS|LD_LIBRARY_PATH|CC|CXX|VIRTUAL_ENV|XDG_CACHE_HOME)$"
    r"|(PYTHON|CONDA_PREFIX|CUDA|NVIDIA|TORCH|PYTORCH|TRITON|OMP_|MKL_|KMP_|GOMP_|ATEN_|KINETO_|ATTNBENCH_)"
)
TAIL = 4000  # bytes of a worker's stderr kept with a failure


OnQuestion = Callable[[dict[str, Any], float], dict[str, Any]]  # a question and the seconds left -> answer


@dataclass(frozen=True)
class Answer:
    """The fields of an answer that the parent uses. Their types are checked, as a kernel may write answers too."""

    error: str | None = None
    changed: str | None = None
    probe: Probe = field(default_factory=Probe)
    files: Mapping[str, str] | None = None
    imported: Mapping[str, str] | None = None
    state: Mapping[str, str] | None = None


class WorkerDied(Exception):
    """The worker ended instead of answering. The message says how."""


class WorkerOutOfMemory(WorkerDied):
    """The worker ended for lack of memory."""


class WorkerHung(Exception):
    """The worker did not answer within the time allowed, and was killed."""


class WorkerProcess:
    """A worker: a child process that answers each line of JSON on its stdin with a line of JSON on its stdout.

    It runs in a session of its own, so that Ctrl-C reaches only the parent.
    """

    def __init__(
        self,
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        *,
        is_fenced: bool = False,
    ) -> None:
        """Start `attnbench.worker`, or the arguments `program`, in the interpreter `python` (default: this one).

        `variables` are set in its environment, over this process's variables. A process whose code may do harm,
        `is_fenced`, gets of these only those that a library may need (NEEDED); its end is the end of all it started.
        """
        command = (
            [python or this_python(), *program] if program else isolated_command("attnbench.worker", python=python)
        )
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._mark = 0  # the position in stderr at which the latest request begins
        self._killed_for_memory = 0  # Linux's count of processes killed for lack of memory, before the latest request
        self._tail: str | None = None  # the end of its stderr, kept when it is killed
        self._buffer = bytearray()
        self.on_question: OnQuestion | None = None  # answers the worker's questions
        self._is_fenced = is_fenced
        self._is_importing = False  # the latest request runs a person's or a library's import
        self._sent = self._received = 0  # numbers of the last request and answer, from 1
        own = child_environment()
        if is_fenced:
            own = {name: value for name, value in own.items() if NEEDED.match(name)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**own, **(variables or {}), IN_WORKER: "1"},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # or a worker that does not read could block the parent
        self._left = if_killed("kill", "-s", "KILL", "--", f"-{self._process.pid}")

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and return its answer, waiting at most `timeout` seconds. Raises WorkerDied or WorkerHung."""
        self.send(request)
        return self.receive(timeout)

    def send(self, request: Mapping[str, Any]) -> None:
        """Write a request. `receive` returns the answers in the same order."""
        self._mark = self._stderr.seek(0, os.SEEK_END)
        self._killed_for_memory = _killed_for_memory()
        self._sent += 1
        self._is_importing = request.get("op") in ("load", "import")
        self._questions = 0  # questions that the worker asked during this request
        self._write({**request, "number": self._sent})

    def _write(self, message: Mapping[str, Any]) -> None:
        """Write a line to its stdin; where the worker has ended, `receive` says why."""
        assert self._process.stdin is not None
        pipe, deadline = self._process.stdin.fileno(), time.monotonic() + START_TIMEOUT
        with contextlib.suppress(BrokenPipeError), selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_WRITE)
            rest = (json.dumps(message) + "\n").encode()
            while rest and time.monotonic() < deadline:  # a worker that does not read does not answer either
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(pipe, rest) :]
                if rest:
                    selector.select(SLICE)

    def _question(self) -> dict[str, Any] | None:
        """Take the worker's question from the lines that it has written; None where the next line is not one."""
        line, _, rest = self._buffer.partition(b"\n")
        if self.on_question is None or not line.startswith(QUESTION):
            return None
        try:
            question = json.loads(line)["ask"]
        except (ValueError, RecursionError):
            return None
        self._buffer = rest
        return question if isinstance(question, dict) and isinstance(question.get("do"), str) else {}

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the next answer, waiting at most `timeout` seconds. Raises WorkerDied or WorkerHung."""
        if not self.answered(timeout):
            self.kill()
            raise WorkerHung
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._received += 1
        try:
            answer = json.loads(line)
            from_json(Answer, answer)
        except (ValueError, RecursionError):
            answer = {}
        if answer.pop("number", None) != self._received:
            self.kill()
            raise WorkerDied(f"it printed {line[:80].decode(errors='replace')!r} instead of the answer to a request")
        return dict(answer)

    def answered(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the next answer; return whether it came. Raises WorkerDied.

        Time in which this process was stopped does not count, as the worker was most likely stopped too.
        """
        assert self._process.stdout is not None
        left, late = timeout, False  # whether time was added after a question
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            whole = self._has_line()
            while True:
                if whole:
                    if (question := self._question()) is None or self.on_question is None:
                        return True
                    self._questions += 1
                    if self._questions > MOST_QUESTIONS:
                        raise self._flood(f"it asked {MOST_QUESTIONS} questions")
                    began = time.monotonic()
                    self._write(self.on_question(question, max(1.0, left)))
                    # The wait for other workers' turns does not count as this worker's time.
                    if question.get("do") not in device_turns.REQUESTS:
                        left -= time.monotonic() - began
                    if left < min(AFTER_QUESTION, timeout) and not late:
                        left, late = min(AFTER_QUESTION, timeout), True
                    if left <= 0:
                        return False
                    whole = self._has_line()
                    continue
                longest, began = min(SLICE, max(0.0, left)), time.monotonic()
                if selector.select(longest):
                    chunk = os.read(self._process.stdout.fileno(), 2**16)
                    if not chunk:
                        raise self._death()
                    self._buffer += chunk
                    whole = b"\n" in chunk and self._has_line()
                    if len(self._buffer) > MOST_OF_ANSWER and not whole:
                        raise self._flood(f"it printed {MOST_OF_ANSWER >> 20:,} MiB without a line break")
                elif not self.alive:  # a child of the worker may hold the pipe open
                    raise self._death()
                if os.fstat(self._stderr.fileno()).st_size - self._mark > MOST_OF_STDERR:  # before it fills the disk
                    raise self._flood(f"it printed {MOST_OF_STDERR >> 20:,} MiB")
                left -= min(longest, time.monotonic() - began)
                if left <= 0 and not whole:
                    return False

    def _has_line(self) -> bool:
        """Return whether a line is there. Before the first answer, drop lines that cannot be one.

        A `sitecustomize`, or a script around an interpreter, may print before the worker runs.
        """
        while not self._received and b"\n" in self._buffer and not self._buffer.startswith((b"{", b"[")):
            _, _, self._buffer = self._buffer.partition(b"\n")
        return b"\n" in self._buffer

    def _flood(self, what: str) -> WorkerDied:
        """Kill the worker; return the error, whose reason is `what` it did in place of an answer."""
        self.kill()
        return WorkerDied(f"{what} and gave no answer")

    def stderr_tail(self) -> str | None:
        """Return the end of the worker's stderr since the latest request; None where it is empty."""
        if self._stderr.closed:
            return self._tail
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(self._mark, end - TAIL))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("USDT:")).strip() or None

    def send_kill(self) -> None:
        """Send SIGKILL to the worker and all processes that it started, without waiting for their end.

        Processes in sessions of their own are included, unless the worker has already ended.
        """
        started = family(self._process.pid) if self.alive else {}
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:  # Windows
                self._process.kill()
        for pid in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def interrupt_import(self) -> bool:
        """Interrupt an import under way, so that it can clean up; return whether there is one.

        A compiler that the import has started may hold a lock, as `torch.utils.cpp_extension` does, which would stop
        every later import.
        """
        if not self._is_importing or self._received >= self._sent or not self.alive or not hasattr(os, "killpg"):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGINT)
        return True

    def wait(self, seconds: float) -> None:
        """Wait for the end of the worker, at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))

    def kill(self) -> None:
        """Kill the worker and all processes that it started, and wait for its end."""
        if self.interrupt_import():
            self.wait(TO_CLEAN_UP)
        if self._is_fenced:  # what it started may start others without end
            kill_all(self.pid)
        self.send_kill()
        self._process.wait()
        forget(self._left)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._tail = self.stderr_tail()
        self._stderr.close()

    def _death(self) -> WorkerDied:
        """Return the error for the end of the worker."""
        try:
            code = self._process.wait(SLICE)
        except subprocess.TimeoutExpired:
            self.kill()
            return WorkerDied("the worker closed the pipe of its answers")
        if code == -getattr(signal, "SIGKILL", 9):  # Windows lacks SIGKILL
            if _killed_for_memory() > self._killed_for_memory:
                return WorkerOutOfMemory("the system had no memory left and killed the worker")
            why = "often the system ran out of memory, or a limit of CPU time was reached"
            return WorkerDied(f"the worker was killed (SIGKILL; {why})")
        if code == -getattr(signal, "SIGXCPU", 24):
            return WorkerDied("the worker was killed at its limit of CPU time (ulimit -t)")
        if code == -signal.SIGABRT and "bad_alloc" in (self.stderr_tail() or ""):
            return WorkerOutOfMemory("the worker crashed (SIGABRT): std::bad_alloc, no memory left")
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}  # a real-time signal has no name
            return WorkerDied(f"the worker crashed ({names.get(-code, f'signal {-code}')})")
        return WorkerDied(f"the worker ended with exit code {code}")


def if_killed(*program: str) -> subprocess.Popen[bytes] | None:
    """Start a shell that runs a program if this process ends without `forget`, for example by SIGKILL.

    Linux then kills the workers (worker/serve.py), but not the processes that they started, and files stay on the disk.
    None where there is no shell.
    """
    waits = ["sh", "-c", 'read -r _ || "$@"', "sh", *program]
    try:
        return subprocess.Popen(
            waits, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        return None


def forget(left: subprocess.Popen[bytes] | None) -> None:
    """End a shell of `if_killed`, if it has not ended, without running its program."""
    if left and left.returncode is None:
        with contextlib.suppress(ValueError):  # an interrupt has closed its input
            left.communicate(b"\n")
        left.wait()


def _killed_for_memory() -> int:
    """Return the number of processes that Linux has killed for lack of memory since its start; 0 if unknown."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="utf-8", errors="replace")
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def isolated_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module in `python` (default: this interpreter) without the working directory.

    A module of attnbench need not be installed in the interpreter: run/isolated.py.
    """
    return [python or this_python(), str(Path(__file__).with_name("isolated.py")), module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment variables of a child process.

    An empty entry of PYTHONPATH and "." stand for the working directory, where a checkout could replace the standard
    library before the first line of a program runs. They are left out; all other entries stay.
    """
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "5"}
    folders = [
        folder for folder in variables.pop("PYTHONPATH", "").split(os.pathsep) if os.path.normpath(folder) != "."
    ]
    return {**variables, "PYTHONPATH": os.pathsep.join(folders)} if folders else variables
