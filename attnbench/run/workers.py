"""The parent's side of measuring: one worker process per backend, jobs in the plan's order, a record for each.

A crash, a hang, an out-of-memory or a library that breaks at import costs exactly its records: the worker is
replaced, and the rest goes on. The parent never touches the device.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnbench.core.backend import Probe, Workspace
from attnbench.core.case import Case
from attnbench.core.errors import Terminated, UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Record
from attnbench.run import compile_caches
from attnbench.run.plan import CaseSupport, skip_over_limit, skipped_record
from attnbench.run.process import START_TIMEOUT, WorkerDied, WorkerHung, WorkerProcess

COLD_TIMEOUT = 900.0  # seconds for a job that may have all its kernels to compile; FlashInfer's take minutes
MAX_STARTS_IN_VAIN = 3


@dataclass
class WorkerPool:
    """The workers of a run, by backend. Started when first needed, replaced when they die."""

    specs: Mapping[str, str]  # backend -> "module:object"
    interpreters: Mapping[str, str] = field(default_factory=dict)  # backend -> Python to run it with
    _workers: dict[str, WorkerProcess] = field(default_factory=dict)
    _in_vain: dict[str, int] = field(default_factory=dict)
    _compilers: set[str] = field(default_factory=set)  # backends that start a compiler
    _begun: bool = False  # to load, and not yet asked how that went
    _ahead: bool = False  # then to import what measuring needs
    _opened: set[str] = field(default_factory=set)  # whose workers were told to open the device
    _variables: Mapping[str, str] = field(default_factory=dict)  # of the environment of workers that are started

    def start_loading(self, *, import_ahead: bool = False) -> None:
        """Has all workers import their libraries, which takes seconds; `probe` takes their answers.

        With `import_ahead` also what measuring needs, which takes as long; a failure of that shows at the first job.
        """
        for name, spec in self.specs.items():
            worker = self._worker(name)
            worker.send({"op": "load", "name": name, "spec": spec})
            if import_ahead:
                worker.send({"op": "import"})
        self._begun, self._ahead = True, import_ahead

    def probe(self) -> dict[str, Probe]:
        """Each backend's version, or why it cannot be used. All are asked at once, and have done what begin() asked."""
        if not self._begun:
            self.start_loading()
        found = {name: self._probed(name) for name in self.specs}
        for worker in self._workers.values() if self._ahead else ():
            with contextlib.suppress(WorkerDied, WorkerHung):
                if worker.alive:
                    worker.receive(START_TIMEOUT)
        self._begun = self._ahead = False
        return found

    def _probed(self, name: str) -> Probe:
        python = self.interpreters.get(name)
        there = f" in {python}" if python else ""
        try:
            answer = self._workers[name].receive(START_TIMEOUT)
        except WorkerHung:
            return Probe(reason=f"importing it{there} took over {START_TIMEOUT:.0f} s")
        except WorkerDied as death:
            todo = "is that a Python?" if python else None
            if "crashed" in str(death):
                todo = "it may be built for another torch; install it again"
            return Probe(reason=f"importing it{there}: {death}", install=todo)
        if "probe" not in answer:
            return Probe(reason=f"cannot be imported{there}: {answer['error']}")
        self._told(name, answer)
        probe = Probe(**answer["probe"])
        if probe.install and python:  # pip would install into another
            probe = replace(
                probe, install=probe.install.replace("pip install", f"{shlex.quote(python)} -m pip install", 1)
            )
        return probe

    def survey(
        self, probes: Mapping[str, Probe], cases: Iterable[Case], device: Device
    ) -> dict[str, list[CaseSupport]]:
        """What every backend says of every case."""
        cases = list(cases)
        request = {"op": "survey", "device": to_json(device), "cases": [to_json(c) for c in cases]}
        answers = {}
        for name, probe in probes.items():
            if not probe.usable:
                answers[name] = [CaseSupport(reason=probe.why_not)] * len(cases)
                continue
            try:
                answer = self._loaded(name).ask(request, START_TIMEOUT)
            except (WorkerDied, WorkerHung) as error:
                answer = {"error": str(error) or "no answer"}
            if "answers" not in answer:
                answers[name] = [CaseSupport(reason=f"cannot say what it supports: {answer['error']}")] * len(cases)
                continue
            answers[name] = [
                CaseSupport(reason, Workspace(**w), efficiency) for reason, w, efficiency in answer["answers"]
            ]
        return answers

    def open_device(self, names: Iterable[str], device: Device) -> None:
        """Lets all workers import and open the device at once, so that no job pays for it.

        Each once: a failure shows at the first job.
        """
        waiting = []
        new_names = [name for name in names if name not in self._opened]
        self._opened.update(new_names)
        for name, new in [(name, self._begin(name)) for name in new_names]:
            with contextlib.suppress(WorkerDied, WorkerHung):
                if new:
                    self._finish(name)
                waiting.append(self._workers[name])
                waiting[-1].send({"op": "ready", "device": to_json(device)})
        for worker in waiting:
            with contextlib.suppress(WorkerDied, WorkerHung):
                worker.receive(START_TIMEOUT)

    def measure(self, job: Job, policy: Policy, device: Device) -> Record:
        """One job to its record, whatever happens to the worker. With fresh caches it has a worker of its own."""
        if policy.caches == "kept":
            return self._measure(job, policy, device)
        with compile_caches.fresh_caches() as variables:
            self.close_worker(job.backend)
            self._variables = variables
            try:
                return self._measure(job, policy, device)
            finally:
                self._variables = {}
                self.close_worker(job.backend)

    def _measure(self, job: Job, policy: Policy, device: Device) -> Record:
        base = Record(job.case, job.backend, job.round, "failed", forecast=job.forecast)
        if self._in_vain.get(job.backend, 0) >= MAX_STARTS_IN_VAIN:
            return replace(base, reason=f"its worker died {MAX_STARTS_IN_VAIN} times while starting; given up")
        request = {"op": "run", "device": to_json(device), "policy": to_json(policy), "job": to_json(job)}
        began = time.monotonic()
        try:
            worker = self._loaded(job.backend)
        except (WorkerDied, WorkerHung) as error:
            self._in_vain[job.backend] = self._in_vain.get(job.backend, 0) + 1
            return replace(base, reason=f"its worker would not start: {error or 'no answer'}")
        timeout = max(policy.timeout_s, 5 * job.forecast.seconds)
        if policy.caches == "fresh" or job.backend in self._compilers:
            timeout = max(timeout, COLD_TIMEOUT)
        try:
            answer = worker.ask(request, timeout)
        except WorkerHung:
            reason = f"no answer within {timeout:.0f} s; its worker was killed (policy timeout_s)"
            return self._ended(replace(base, status="timeout", reason=reason), worker, began)
        except WorkerDied as death:
            return self._ended(replace(base, reason=str(death)), worker, began)
        if "record" not in answer:
            return self._ended(replace(base, reason=answer["error"]), worker, began)
        record = from_json(Record, answer["record"])
        if answer.get("fatal"):
            worker.kill()
        return record if record.status in ("ok", "skipped") else replace(record, stderr=worker.stderr_tail())

    def ask(self, name: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A backend's worker's answer to a request of worker.py. Raises UserError with the reason when it has none."""
        try:
            answer = self._loaded(name).ask(request, timeout)
        except (WorkerDied, WorkerHung) as error:
            raise UserError(f"{name}: {error or f'no answer within {timeout:.0f} s'}") from None
        if "error" in answer:
            raise UserError(f"{name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends all workers. The next job starts fresh ones."""
        for worker in self._workers.values():
            worker.send_kill()  # all at once: the driver takes a while over each that has opened a GPU
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        self._opened.clear()

    def close_worker(self, name: str) -> None:
        """Ends a backend's worker, if it has one."""
        self._opened.discard(name)
        if worker := self._workers.pop(name, None):
            worker.kill()

    def _worker(self, name: str) -> WorkerProcess:
        worker = self._workers.get(name)
        if worker is None or not worker.alive:
            if worker is not None:
                worker.kill()
            worker = self._workers[name] = WorkerProcess(self.interpreters.get(name), self._variables)
        return worker

    def _loaded(self, name: str) -> WorkerProcess:
        """A worker that has loaded its backend; a new one where the last has died."""
        if self._begin(name):
            self._finish(name)
        return self._workers[name]

    def _begin(self, name: str) -> bool:
        """Whether its worker is a new one, which has begun to load."""
        old = self._workers.get(name)
        worker = self._worker(name)
        if worker is not old:
            worker.send({"op": "load", "name": name, "spec": self.specs[name]})
        return worker is not old

    def _finish(self, name: str) -> None:
        """Waits for a new worker that loads."""
        worker = self._workers[name]
        answer = worker.receive(START_TIMEOUT)
        if "probe" not in answer:
            worker.kill()
            raise WorkerDied(answer["error"])
        self._told(name, answer)

    def _told(self, name: str, answer: Mapping[str, Any]) -> None:
        """What a worker says of its backend once that is loaded, beside the probe."""
        if answer["compiler"]:
            self._compilers.add(name)

    def _ended(self, record: Record, worker: WorkerProcess, began: float) -> Record:
        tail = worker.stderr_tail()
        worker.kill()
        return replace(record, stderr=tail, seconds=time.monotonic() - began)


def has_nvidia_gpu() -> bool:
    """By its driver on Linux: nothing is asked of it here."""
    return Path("/dev/nvidiactl").exists()


@contextlib.contextmanager
def closing_workers(pool: WorkerPool) -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; the workers never outlive it."""

    def terminate(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        pool.close()
        signal.signal(signal.SIGTERM, before)


class TimeLimit:
    """What a run may still take, by the forecast and by how the forecast has done so far."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._forecast = self._actual = 10.0  # seconds; so that the first few jobs do not decide alone

    def add_measured(self, job: Job, seconds: float) -> None:
        """Learns from a job how the forecast does."""
        self._forecast += job.forecast.seconds
        self._actual += seconds

    def allows(self, job: Job, ahead: Sequence[Job] = ()) -> bool:
        """Whether the job fits beside all jobs ahead that are as cheap or cheaper."""
        as_cheap = sum(j.forecast.seconds for j in ahead if not j.skip and j.forecast.seconds <= job.forecast.seconds)
        return self._clock() + self._actual / self._forecast * (as_cheap + job.forecast.seconds) <= self._deadline


def measure_jobs(
    jobs: Sequence[Job], pool: WorkerPool, policy: Policy, device: Device, limit: TimeLimit | None = None
) -> Iterator[tuple[Job, Record | None]]:
    """(job, None) when a job starts, then (job, its record). A new round gets fresh processes.

    Jobs that `limit` does not allow wait until the end; what then still fits is measured, cheapest first, and the
    rest become skips that --resume measures. So a forecast that was too low costs the dearest jobs alone, and one
    that was too high costs nothing.
    """
    round_: int | None = None
    waiting: list[Job] = []

    def run(job: Job) -> Iterator[tuple[Job, Record | None]]:
        nonlocal round_
        if job.round != round_:
            if round_ is not None:
                pool.close()
            round_ = job.round
            if policy.caches == "kept":  # else each job gets a worker of its own
                pool.open_device(dict.fromkeys(j.backend for j in jobs if j.round == round_ and not j.skip), device)
        yield job, None
        began = time.monotonic()
        record = pool.measure(job, policy, device)
        if limit:
            limit.add_measured(job, time.monotonic() - began)
        yield job, record

    for index, job in enumerate(jobs):
        if job.resumable or (limit and not job.skip and not limit.allows(job, jobs[index + 1 :])):
            waiting.append(job)
        elif job.skip:
            yield job, skipped_record(job)
        else:
            yield from run(job)
    for job in sorted(waiting, key=lambda j: (j.round, j.forecast.seconds)):
        if limit and limit.allows(job):
            yield from run(replace(job, skip=None, resumable=False))
        else:
            late = job if job.resumable or not limit else skip_over_limit(job, limit.seconds)
            yield late, skipped_record(late)
