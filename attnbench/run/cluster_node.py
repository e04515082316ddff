"""The task of Ray on a node: `attnbench run` as a child process per device, whose run file is sent as it grows.

cluster.py sends this module to the nodes by value. It imports only the standard library, so that a node without
attnbench can report that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

POLL = 0.1  # seconds between two reads
STOP = 15.0  # seconds for a child and its workers to end by themselves
# `python -m` would put the working directory first on the path. Linux terminates the child at the end of this process,
# even if no process is left to do it.
PROGRAM = """
import ctypes, signal, sys
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
try:
    from attnbench.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"attnbench: {error}; install attnbench on this node, into {sys.executable}")
sys.argv[0] = "attnbench"
main()
"""

Message = tuple[str, str, Any]  # (name of the device, "lines" | "ended", content)


def look() -> dict[str, str]:
    """Return the version of attnbench on this node, or why there is none, and the CPU's name."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--version"], capture_output=True, encoding="utf-8", errors="replace"
    )
    words = done.stdout.split()
    cpu = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        names = (line.partition(":")[2] for line in text.splitlines() if line.startswith("model name"))
        cpu = next(names, "").strip()
    version = words[1] if done.returncode == 0 and len(words) > 1 else ""
    return {"version": version, "why": "" if version else last_line(done.stderr), "cpu": cpu}


def measure(
    todo: Sequence[tuple[str, int | None, bytes]],
    words: Sequence[str],
    resume_words: Sequence[str],
    folder: str,
    cpus: int,
    at_once: int,
) -> Iterator[Message]:
    """Run `attnbench run` for each device, `at_once` together, and yield whole lines of the run files and the endings.

    `todo` has each device's name, its number among the node's GPUs (None for a CPU), and the run file so far, which is
    resumed if it is not empty. An ending is (exit code, the last line of stderr). The process starts in `folder` if it
    exists. `cpus` is the number of CPUs that Ray has reserved and set for libraries; the setting is removed, as a plain
    run decides itself.
    """
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    variables = dict(os.environ)
    if variables.get("OMP_NUM_THREADS") == str(cpus):
        del variables["OMP_NUM_THREADS"]
    waiting, running = [*todo], list[Child]()
    with tempfile.TemporaryDirectory(prefix="attnbench-") as place:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    name, gpu, partial = waiting.pop(0)
                    own = {**variables, "CUDA_VISIBLE_DEVICES": ids[gpu]} if gpu is not None else variables
                    running.append(Child(name, Path(place, f"{len(waiting)}.jsonl"), partial))
                    running[-1].start(resume_words if partial else words, own, folder)
                for child in [*running]:
                    code = child.process.poll()  # asked before its last lines are read
                    if lines := child.new_lines():
                        yield child.name, "lines", lines
                    if code is not None:
                        running.remove(child)
                        yield child.name, "ended", (code, last_line(child.stderr()))
                time.sleep(POLL)
        finally:
            for child in running:
                child.process.send_signal(signal.SIGTERM)
            for child in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(STOP)
                child.process.kill()


class Child:
    """One `attnbench run` and the run file that it writes."""

    def __init__(self, name: str, path: Path, partial: bytes) -> None:
        self.name = name
        self._path = path
        self._sent = len(partial)
        self._resumes = bool(partial)
        if partial:
            path.write_bytes(partial)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)

    def start(self, words: Sequence[str], variables: Mapping[str, str], folder: str) -> None:
        where = ("--resume" if self._resumes else "--out", str(self._path))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "run", *words, *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=variables,
            cwd=folder if os.path.isdir(folder) else None,
        )

    def new_lines(self) -> bytes:
        """Return the whole lines added to the run file since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._sent)
                lines, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return b""
        self._sent += len(lines + end)
        return lines + end

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
