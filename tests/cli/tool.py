"""The attnbench command as a black box: started in an empty folder, tested by output, exit code and files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import in_process

COMMAND = (sys.executable, "-m", "attnbench")
FAKE = ("run", "--device", "fake", "-b", "fake")
SMALL = ("--headdim", "128", "--full", "--pass", "fwd")  # one case a length


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Stored:
    """The content of a run file, parsed without attnbench."""

    header: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def statuses(self) -> dict[int, str]:
        return {r["case"]["shape"]["seqlen_k"]: r["status"] for r in self.records}

    @property
    def order(self) -> list[str]:
        return [json.dumps(r["case"], sort_keys=True) for r in self.records]

    def at(self, seqlen: int) -> dict[str, Any]:
        (record,) = [r for r in self.records if r["case"]["shape"]["seqlen_k"] == seqlen]
        return record


def _handle_sigint() -> None:
    """Let SIGINT end this process; children of a shell's background job ignore it otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Tool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def env(self, fake: str = "", **more: str) -> dict[str, str]:
        dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "CI", "GITHUB_ACTIONS", "ATTNBENCH_FAKE")
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        return {**kept, "COLUMNS": "120", **({"ATTNBENCH_FAKE": fake} if fake else {}), **more}

    def __call__(
        self, *args: str | Path, code: int | None = 0, fake: str = "", into: str | None = None, **env: str
    ) -> Result:
        """Run the command to its end in this process, check the exit code (None: any), and return the output.

        `into` is a file for standard output.
        """
        found, out, err = in_process.run([*map(str, args)], self.folder, self.env(fake, **env), into)
        assert "Traceback" not in err, err
        assert code in (None, found), f"exit code {found}\n{out}\n{err}"
        return Result(found, out, err)

    @contextlib.contextmanager
    def start(
        self,
        *args: str | Path,
        command: Sequence[str] = COMMAND,
        fake: str = "",
        preexec_fn: Any = None,
        **env: str,
    ) -> Iterator[subprocess.Popen[str]]:
        """Yield the running process, and kill it if it still runs at the end of the block."""
        process = subprocess.Popen(
            [*command, *map(str, args)],
            cwd=self.folder,
            env=self.env(fake, **env),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=preexec_fn or _handle_sigint,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def fake(self, *args: str | Path, script: str = "", code: int | None = 0, **env: str) -> Stored:
        """Run `attnbench run` on the simulated device, and return the content of run.jsonl."""
        self(*FAKE, "--out", "run.jsonl", *args, fake=script, code=code, **env)
        return self.stored()

    def stored(self, path: str | Path = "run.jsonl") -> Stored:
        lines = [json.loads(line) for line in (self.folder / path).read_text().splitlines()]
        assert [line.pop("type") for line in lines] == ["run"] + ["record"] * (len(lines) - 1)
        return Stored(lines[0], lines[1:])

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def wait_until_stuck(self, process: subprocess.Popen[str], path: str = "run.jsonl") -> list[int]:
        """Wait for the first record and a scripted hang after it. Return the process ids of the workers."""
        file, end = self.folder / path, time.monotonic() + 60
        while not file.exists() or file.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "the run never began"
            time.sleep(0.02)
        time.sleep(0.2)  # the next job begins, and hangs
        return children(process.pid)

    def terminal(self, *args: str, fake: str = "", **env: str) -> tuple[int, str]:
        """Run the command on a pseudo-terminal; return the exit code and the text on the terminal."""
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        environment = self.env(fake, TERM="xterm-256color", **env)
        del environment["COLUMNS"]
        said: list[bytes] = []

        def read() -> None:
            with contextlib.suppress(OSError):  # Linux: EIO when the last writer has gone
                while data := os.read(parent, 2**16):
                    said.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            code = in_process.run_with([*args], self.folder, environment, [child] * 3)
        finally:
            os.close(child)
            reader.join()
            os.close(parent)
        return code, b"".join(said).decode()


def children(pid: int) -> list[int]:
    """Return the process ids of the direct children of a process (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def alive(pids: list[int], wait: float = 5.0) -> list[int]:
    """Return the processes that still run after at most `wait` seconds; zombies do not run."""
    end = time.monotonic() + wait
    while True:
        left = []
        for pid in pids:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    left.append(pid)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)
