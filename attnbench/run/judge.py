"""The parent's side of the judge, the process that checks the results of a device's workers.

The parent forwards workers' questions to the judge, and keeps the verdicts. The judge is the worker without a backend
that has looked at the device. Where the judge has seen results, a worker's own statement about them does not count.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from attnbench.core import flops, masks
from attnbench.core.case import Case
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.record import Accuracy, Record
from attnbench.core.sizes import format_duration
from attnbench.run.process import START_TIMEOUT, WorkerDied, WorkerHung, WorkerProcess

AHEAD, AHEAD_BYTES = 24, 2**27  # most cases for which the judge works ahead, and most bytes that their calls move
MUCH = 0.4  # share of a device's memory from which a job counts as large
# The further requests of a worker for its own job (judge/service.py)
OF_WORKERS = ("hard", "inputs", "results", "first_changed", "check", "prepared", "launched", "calls", "distances")
# The checks that status "ok" needs, with words for messages.
NEEDED = {"hard": "on hard inputs", "first": "on its own inputs", "renewed": "on renewed inputs"}
WITHOUT_HARD = {"first": NEEDED["first"], "renewed": NEEDED["renewed"]}


def is_judged_beside(case: Case) -> bool:
    """Return whether the judge can check a case: no step of a model, and no case with a person's own mask."""
    return not (case.step or masks.is_own(case.mask))


def within(record: Record) -> Record:
    """Return the record of a job whose results its own worker checked."""
    return replace(record, judge="within") if record.accuracy else record


class Judge:
    """The judge of one device. Several threads may ask it.

    Where no `worker` was given, or the last one died, `start` makes a new process in an interpreter (None: this one).
    """

    def __init__(
        self, device: Device, worker: WorkerProcess | None, start: Callable[[str | None], WorkerProcess] = WorkerProcess
    ) -> None:
        self._device, self._memory, self._worker, self._start = to_json(device), device.memory, worker, start
        self._waiting = 0  # answers to `open` that are not yet received
        self._sharing: dict[str | None, bool] = {}  # interpreter -> whether its processes can open shared memory
        self._one_at_a_time = threading.RLock()

    def revive(self) -> None:
        """Start another process where the last one died."""
        self._alive()

    def open(self) -> None:
        """Let the judge import torch and open the device, while others do the same."""
        worker = self._alive()
        worker.send({"op": "judge", "do": "open", "device": self._device})
        self._waiting += 1

    def work_ahead(self, cases: Iterable[Case], seed: int) -> None:
        """Have the judge compute the answers of the next small cases while workers work.

        Use it only where nothing is timed.
        """
        known = [
            case
            for case in itertools.islice(cases, AHEAD)
            if is_judged_beside(case) and not case.dropout_p and case.ranks == 1
        ]
        held = itertools.accumulate(flops.ideal_bytes(case) for case in known)
        cases = [case for case, nbytes in zip(known, held, strict=True) if nbytes <= AHEAD_BYTES]
        if not cases:
            return
        with contextlib.suppress(WorkerDied, WorkerHung):
            worker = self._alive()
            request = {"op": "judge", "do": "ahead", "device": self._device, "seed": seed}
            worker.send({**request, "cases": [to_json(case) for case in cases]})
            self._waiting += 1

    def hear(self, case: Case, seed: int, nbytes: int = 0, *, slot: int = 0) -> JobHearing:
        """Return the hearing of a worker's next job, in which the judge checks its results.

        `slot` distinguishes hearings at the same time. `nbytes` is the forecast of the job's memory; where it is much
        of the device's memory, the judge takes little.
        """
        return JobHearing(self, (to_json(case), seed), slot, lean=nbytes > MUCH * self._memory)

    def can_be_shared(self, python: str | None, slot: int) -> bool:
        """Return whether a new worker in `python` can open the judge's memory, where another worker could not."""
        if python not in self._sharing:
            described = self.ask({"do": "hard", "slot": slot}, START_TIMEOUT).get("inputs")
            if described is None:  # no memory was shared
                return False
            worker = self._start(python)
            try:
                answer = worker.ask({"op": "opens", "device": self._device, "tensors": described}, START_TIMEOUT)
                self._sharing[python] = bool(answer.get("opens"))
            except (WorkerDied, WorkerHung):
                self._sharing[python] = False
            finally:
                worker.kill()
        return self._sharing[python]

    def ask(self, request: Mapping[str, Any], timeout: float, process: int | None = None) -> dict[str, Any]:
        """Return the judge's answer to a request of judge/service.py.

        With `process`, only the judge's process of this number answers. Raises WorkerDied or WorkerHung.
        """
        with self._one_at_a_time:
            if process is not None and (self._worker is None or self.pid != process or not self._worker.alive):
                raise WorkerDied("in the middle of the case")
            worker = self._alive()
            while self._waiting:
                self._waiting -= 1
                worker.receive(START_TIMEOUT)
            return worker.ask({**request, "op": "judge", "device": self._device}, timeout)

    @property
    def pid(self) -> int | None:
        """The id of its process; None where none runs."""
        return self._worker.pid if self._worker else None

    def send_kill(self) -> None:
        """Kill its process without waiting for its end."""
        if self._worker is not None:
            self._worker.send_kill()

    def close(self) -> None:
        """End its process."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _alive(self) -> WorkerProcess:
        if self._worker is None or not self._worker.alive:
            with contextlib.suppress(WorkerDied, WorkerHung):
                self.close()
            self._worker, self._waiting = self._start(None), 0
        return self._worker


class JobHearing:
    """The hearing of one job, in the parent: it forwards the worker's questions, and keeps the verdicts.

    judge/hearing.py is the judge's side; judge/service.py explains `slot`.
    """

    def __init__(self, judge: Judge, job: tuple[Any, int], slot: int, *, lean: bool) -> None:
        """Take the job's case, as JSON, and its seed."""
        self._judge, self._job, self._slot, self._lean = judge, job, slot, lean
        self._refused = False  # whether the worker cannot open the judge's memory
        self._check: str | None = None  # the present check; None: one without influence on the verdict
        self._process: int | None = None  # the judge's process in which the case began
        self.verdicts: dict[str, Accuracy] = {}
        self.asked = False  # whether the worker has asked the judge

    def answer(self, request: Mapping[str, Any], timeout: float, python: str | None = None) -> dict[str, Any]:
        """Return the judge's answer to a worker's question, within `timeout` seconds.

        `python` is the worker's interpreter, None for the judge's.
        """
        do = request.get("do")
        try:
            match do:
                case "begin":
                    if (request.get("case"), request.get("seed")) != self._job:
                        return {"error": "a worker asks for another case than its job's"}
                    self.asked = True
                    answer = self._begin({**request, "lean": self._lean}, timeout)
                case "refused":
                    if not self.asked:
                        return {"error": "its worker refuses memory that was not offered to it"}
                    if self._judge.can_be_shared(python, self._slot):
                        why = request.get("why", "")
                        return {"error": f"its worker cannot open memory that another process like it can: {why}"}
                    self.asked, self._refused = False, True  # the worker then judges itself
                    return {}
                case _ if do not in OF_WORKERS:
                    return {"error": f"a worker may not ask the judge to {do}"}
                case _:
                    answer = self._judge.ask({**request, "slot": self._slot}, timeout, self._process)
        except WorkerDied as death:
            return {"error": f"the judge ended: {death}"}
        except WorkerHung:
            return {"error": f"the judge gave no answer within {format_duration(timeout)}"}
        if do == "check" and "error" not in answer:
            self._check = None if request.get("trial") else str(request.get("what"))
        if do in ("check", "launched") and self._check:
            self._keep(self._check, answer)
        return answer

    def _keep(self, check: str, answer: Mapping[str, Any]) -> None:
        """Keep a verdict; with several ranks, the verdict on all heads together, or on one wrong head."""
        found = from_json(Accuracy, answer["accuracy"]) if answer.get("accuracy") else None
        if found and found.ok and "together" in answer:
            found = from_json(Accuracy, answer["together"]) if answer["together"] else None
        earlier = self.verdicts.get(check)
        if found and (earlier is None or earlier.ok):  # a later right result does not replace a wrong one
            self.verdicts[check] = found

    def _begin(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Begin a case. A judge that died since the last job is replaced by another, which can do the same."""
        request = {**request, "slot": self._slot}
        try:
            answer = self._judge.ask(request, timeout)
        except WorkerDied:
            answer = self._judge.ask(request, timeout)
        self._process = self._judge.pid
        return answer

    def ruled(self, record: Record) -> Record:
        """Return the record of a job with the judge's verdicts in place of its worker's."""
        if not self.asked:
            if record.status == "ok" and not (self._refused or record.approximation):
                return replace(record, status="wrong", reason="its worker says ok, but has not asked the judge")
            return within(record)
        record = replace(record, judge="beside", accuracy=record.accuracy and self._accuracy(record))
        if record.status != "ok":
            return record
        needed = WITHOUT_HARD if record.case.dropout_p or not record.case.is_softmax else NEEDED
        lacking = [where for what, where in needed.items() if what not in self.verdicts]
        problem = f"the judge was shown no results {lacking[0]}" if lacking else ""
        for what, accuracy in self.verdicts.items():
            if not accuracy.ok:
                problem = problem or f"the judge found {what} results wrong: {accuracy.problem()}"
        return replace(record, status="wrong", reason=f"its worker says ok, but {problem}") if problem else record

    def _accuracy(self, record: Record) -> Accuracy | None:
        """Return the verdict for a record: of the check that ended it, else of the check on the case's own inputs."""
        wrong = next((accuracy for accuracy in self.verdicts.values() if not accuracy.ok), None)
        return (wrong if record.status == "wrong" else None) or self.verdicts.get("first") or record.accuracy
