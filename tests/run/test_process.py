"""The process of a worker: answers, requests interrupted by a signal, limits, and the cleanup."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.errors import Interrupted, UserError
from attnbench.run import process
from attnbench.run.process import WorkerDied, WorkerHung, WorkerProcess


def test_an_answer_to_another_request_is_none(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text("import sys\nfor _ in sys.stdin: print('{\"number\": 1}', flush=True)\n")
    worker = WorkerProcess(program=[str(tmp_path / "twice.py")])
    assert worker.ask({}, 10.0) == {}
    with pytest.raises(WorkerDied, match="instead of the answer to a request"):
        worker.ask({}, 10.0)


def test_prints_of_the_start_of_python_are_no_answer() -> None:
    """Lines before the first answer are dropped; a later one takes the place of an answer, and ends the worker."""
    program = 'for line in ("Loading CUDA 13", "", \'{"number": 1}\', "late"): print(line)\ninput()'
    worker = WorkerProcess(program=["-c", program])
    assert worker.ask({}, 20.0) == {}
    with pytest.raises(WorkerDied, match="printed 'late' instead of the answer"):
        worker.ask({}, 20.0)


ASKS = """
import sys
from attnbench.run import process
process.SLICE = 0.05
worker = process.WorkerProcess(program=["-c", sys.argv[1]])
print("asks", flush=True)
try:
    print(worker.ask({}, float(sys.argv[2])))
except process.WorkerDied as death:
    print(death)
"""


def test_time_in_which_all_processes_were_stopped_is_no_time_to_answer(tmp_path: Path) -> None:
    answers = (
        f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\nprint('{{\"number\": 1}}')"
    )
    with subprocess.Popen([sys.executable, "-c", ASKS, answers, "1.5"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "asks\n"
        parent.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        parent.send_signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        assert parent.communicate(timeout=30)[0] == "{}\n"


@contextlib.contextmanager
def signalled_after(seconds: float, handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Send a signal to this thread after some seconds, while it waits in a system call."""
    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


SLOW_READER = """
import json, sys, time
time.sleep(0.6)
print(json.dumps({"number": 1, "read": len(json.loads(sys.stdin.readline())["text"])}), flush=True)
"""


def test_a_request_that_a_signal_cuts_arrives_whole() -> None:
    """A request interrupted by a signal arrives whole, although the pipe has taken only a part of it by then."""
    worker = WorkerProcess(program=["-c", SLOW_READER])
    with signalled_after(0.3, lambda *_: None):
        worker.send({"text": "x" * 2**20})
    assert worker.receive(10.0) == {"read": 2**20}
    worker.kill()


def test_a_signal_while_a_worker_is_put_away(tmp_path: Path) -> None:
    """A signal that interrupts the end of a worker does not prevent it; the action for a killed parent does not run."""

    def terminated(*_: object) -> None:
        raise Interrupted(signal.SIGTERM)

    left = process.if_killed("touch", str(tmp_path / "ran"))
    assert left is not None
    left.send_signal(signal.SIGSTOP)
    with signalled_after(0.2, terminated), pytest.raises(Interrupted):
        process.forget(left)
    left.send_signal(signal.SIGCONT)
    process.forget(left)
    assert left.returncode == 0
    assert not (tmp_path / "ran").exists()


STARTS = """
import json, subprocess, sys
from attnbench.worker.serve import _die_with_parent
_die_with_parent()
start = "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL, start_new_session=True).pid)"
for line in sys.stdin:
    orphan = int(subprocess.check_output([sys.executable, "-c", start]))
    own = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, start_new_session=True).pid
    print(json.dumps({"number": 1, "pids": [own, orphan]}), flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_a_worker_has_started_in_other_sessions_ends_with_it() -> None:
    worker = WorkerProcess(program=["-c", STARTS])
    pids = worker.ask({}, 30.0)["pids"]
    worker.kill()
    deadline = time.monotonic() + 10
    while running := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_reads_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that reads nothing blocks nobody, although a long request does not fit the pipe."""
    monkeypatch.setattr(process, "START_TIMEOUT", 0.2)
    worker = WorkerProcess(program=["-c", "import time; time.sleep(60)"])
    with pytest.raises(WorkerHung):
        worker.ask({"cases": "x" * 2**18}, 0.2)
    assert not worker.alive


def test_an_import_that_is_killed_can_clean_up(tmp_path: Path) -> None:
    """A lock that an import holds, as torch's extension compiler does, is gone after the worker was killed."""
    lock = tmp_path / "lock"
    program = f"""
import sys, time, pathlib
lock = pathlib.Path({str(lock)!r})
sys.stdin.readline()
lock.touch()
try:
    time.sleep(60)
finally:
    lock.unlink()
"""
    worker = WorkerProcess(program=["-c", program])
    worker.send({"op": "load"})
    while not lock.exists():
        time.sleep(0.01)
    worker.kill()
    assert not lock.exists()
    assert not worker.alive


FORGED = {  # what a kernel prints in place of an answer
    "deep": "'[' * 200_000",
    "a deep question": "'{\"ask\":' + '[' * 200_000",
    "an error that is no text": '\'{"number": 1, "error": {"a": [1]}}\'',
    "no probe": '\'{"number": 1, "probe": null}\'',
    "a probe that is none": '\'{"number": 1, "probe": {"version": 5}}\'',
    "a list": "'[1]'",
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_a_forged_answer_is_no_answer(text: str) -> None:
    worker = WorkerProcess(program=["-c", f"print({text}, flush=True); input()"])
    worker.on_question = lambda *_: {}
    with pytest.raises(WorkerDied, match="instead of the answer to a request"):
        worker.ask({}, 20.0)
    assert not worker.alive


def test_a_flood_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is ended by its time, by bytes without a line break or on stderr, and by questions."""
    flood = "import os\nwhile True: os.write({}, {!r})"
    hangs = WorkerProcess(program=["-c", flood.format(1, b"x" * 100)])
    with pytest.raises(WorkerHung):
        hangs.ask({}, 0.3)
    monkeypatch.setattr(process, "MOST_OF_ANSWER", 2**20)
    monkeypatch.setattr(process, "MOST_QUESTIONS", 20)
    monkeypatch.setattr(process, "MOST_OF_STDERR", 2**20)
    for to, text, why in (
        (1, b"x" * 2**16, "printed 1 MiB without a line break"),
        (1, b'{"ask": 1}\n', "asked 20 questions"),
        (2, b"x" * 2**16, "printed 1 MiB and gave no answer"),
    ):
        worker = WorkerProcess(program=["-c", flood.format(to, text)])
        worker.on_question = lambda *_: {}
        with pytest.raises(WorkerDied, match=why):
            worker.ask({}, 20.0)
        assert not worker.alive


@pytest.mark.parametrize("executable", [None, ""])
def test_a_python_within_another_program_is_told(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(UserError, match=r"sys.executable names no program"):
        WorkerProcess()


def test_a_worker_that_closes_its_answers_is_no_hang(tmp_path: Path) -> None:
    (tmp_path / "closes.py").write_text("import os, time\nos.closerange(1, 400)\ntime.sleep(60)\n")
    worker = WorkerProcess(program=[str(tmp_path / "closes.py")])
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="closed the pipe of its answers"):
        worker.ask({"op": "x"}, 30.0)
    assert time.monotonic() - began < 20
    worker.kill()


def test_a_fenced_process_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (tmp_path / "tells.py").write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    told = {'number': json.loads(line)['number'], 'names': [*os.environ]}\n"
        "    print(json.dumps(told), flush=True)\n"
    )
    names = []
    for is_fenced in (False, True):
        worker = WorkerProcess(program=[str(tmp_path / "tells.py")], is_fenced=is_fenced)
        names.append(worker.ask({"op": "x"}, 30.0)["names"])
        worker.kill()
    assert ["SECRET_TOKEN" in of for of in names] == [True, False]
    assert "PATH" in names[1]
