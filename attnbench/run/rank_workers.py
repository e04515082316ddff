"""The workers of one backend on several devices, one process per rank, with the interface of one worker.

Each rank is a worker like any other, with a device of its own; all get each request. They compute together, so that a
failed rank leaves the others waiting: if a rank has answered or ended and others have not done so after GRACE, it
failed alone, and all are killed. A crash, a hang or a lack of memory of any rank therefore costs one record, and no
process stays behind.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.run.process import (
    AFTER_QUESTION,
    SLICE,
    OnQuestion,
    WorkerDied,
    WorkerHung,
    WorkerProcess,
    forget,
    if_killed,
)

GRACE = 10.0  # most seconds between the first and the last answer to `ask`, on which ranks agree
START_GRACE = 120.0  # the same for `receive`: importing and opening, when many processes share the host
POLL = 0.05


class RankWorkers:
    """The processes of several ranks, with the methods of a WorkerProcess."""

    def __init__(
        self, devices: Sequence[Device], python: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start a worker for each device; a CPU may be given several times."""
        self._devices = devices
        self._folder = Path(tempfile.mkdtemp(prefix="attnbench-ranks-"))
        self._left = if_killed("rm", "-rf", "--", str(self._folder))
        self._ranks = [WorkerProcess(python, variables) for _ in devices]
        self._failed = 0  # the failed rank, whose stderr is kept
        self._time = 0.0  # seconds left for the answer
        self._late = False  # whether time was added after a question
        self.on_question: OnQuestion | None = None  # answers questions of rank 0
        self._ranks[0].on_question = self._answer

    @property
    def alive(self) -> bool:
        """Whether all processes still run."""
        return all(rank.alive for rank in self._ranks)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request to all ranks and return the answer. Raises WorkerDied or WorkerHung."""
        self.send(request)
        return self._receive(timeout, GRACE)

    def send(self, request: Mapping[str, Any]) -> None:
        """Write a request to all ranks, each with its device and its number."""
        for number, (rank, device) in enumerate(zip(self._ranks, self._devices, strict=True)):
            place = {"rank": number, "ranks": len(self._ranks), "rendezvous": str(self._folder / "rendezvous")}
            own = {"device": to_json(device)} if "device" in request else {}
            rank.send({**request, **own, "place": place})

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the answer to importing or opening, as `ask` does. Raises WorkerDied or WorkerHung."""
        return self._receive(timeout, START_GRACE)

    def _receive(self, timeout: float, grace: float) -> dict[str, Any]:
        """Return the answer of rank 0, or of the rank that failed.

        All must answer within `grace` seconds of the first, and within GRACE of the first failed one. Time in which
        this process was stopped does not count, as in WorkerProcess.answered.
        """
        answers: dict[int, dict[str, Any]] = {}
        self._time, self._late, last = timeout, False, time.monotonic()
        while len(answers) < len(self._ranks):
            for number, rank in enumerate(self._ranks):
                if number in answers:
                    continue
                try:
                    if rank.answered(POLL / len(self._ranks)):
                        answers[number] = rank.receive(1.0)
                        self._time = min(self._time, GRACE if _failed(answers[number]) else grace)
                except WorkerDied as death:
                    self._failed = number
                    self.kill()
                    raise type(death)(f"rank {number}: {death}") from None
            last, before = time.monotonic(), last
            self._time -= min(SLICE, last - before)
            if self._time < 0:
                if not answers:
                    self.kill()
                    raise WorkerHung
                return self._of_the_failed(answers)
        failed = next((n for n in sorted(answers) if _failed(answers[n])), None)
        return self._named(answers, 0 if failed is None else failed)

    def _answer(self, question: dict[str, Any], _: float) -> dict[str, Any]:
        """Return the answer to a question of rank 0, after which the rank has time left."""
        if self.on_question is None:
            return {"error": "questions of several ranks are not answered"}
        answer = self.on_question(question, max(1.0, self._time))
        if self._time < AFTER_QUESTION and not self._late:
            self._time, self._late = AFTER_QUESTION, True
        return answer

    def _of_the_failed(self, answers: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
        """Kill all ranks; return the answer of the rank that failed while others waited for it."""
        number = next((n for n in sorted(answers) if _failed(answers[n])), min(answers))
        self.kill()
        if not _failed(answers[number]):
            waiting = sorted(set(range(len(self._ranks))) - set(answers))
            raise WorkerDied(f"rank {waiting[0]} gave no answer after rank {number} had ended the job")
        return self._named(answers, number)

    def _named(self, answers: Mapping[int, dict[str, Any]], number: int) -> dict[str, Any]:
        """Return the answer of a rank; a failure names the rank."""
        self._failed, answer = number, answers[number]
        if not _failed(answer):
            return answer
        if "error" in answer:
            return {"error": f"rank {number}: {answer['error']}"}
        if "probe" in answer:
            return {"error": f"rank {number}: {answer['probe']['reason']}"}
        record = _record(answer)
        record = {**record, "reason": f"rank {number}: {record.get('reason')}"}
        return {**answer, "record": record, "fatal": True}  # the state of the others is unknown

    def answered(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for an answer of rank 0. Raises WorkerDied."""
        return self._ranks[0].answered(timeout)

    def stderr_tail(self) -> str | None:
        """Return the end of stderr since the latest request, of the failed rank, else of rank 0."""
        return self._ranks[self._failed].stderr_tail()

    def interrupt_import(self) -> bool:
        """Interrupt the imports of all ranks; return whether any was under way."""
        interrupted = [rank.interrupt_import() for rank in self._ranks]
        return any(interrupted)

    def wait(self, seconds: float) -> None:
        """Wait for the end of all processes, at most so long."""
        until = time.monotonic() + seconds
        for rank in self._ranks:
            rank.wait(until - time.monotonic())

    def send_kill(self) -> None:
        """Send SIGKILL to all processes, without waiting for their end."""
        for rank in self._ranks:
            rank.send_kill()

    def kill(self) -> None:
        """Kill all processes, and wait for their end."""
        self.send_kill()
        for rank in self._ranks:
            rank.kill()
        forget(self._left)
        shutil.rmtree(self._folder, ignore_errors=True)


def _record(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of an answer, empty where there is none."""
    record = answer.get("record")
    return record if isinstance(record, dict) else {}


def _failed(answer: Mapping[str, Any]) -> bool:
    """Return whether a rank failed by itself; ranks agree on other endings."""
    lacks_library = (answer.get("probe") or {}).get("reason") is not None
    return "error" in answer or lacks_library or _record(answer).get("status") in ("failed", "oom")
