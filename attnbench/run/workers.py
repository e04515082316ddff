"""The pool of workers: one process per backend, which measures jobs in the order of the plan.

Jobs of one case on a GPU go in groups, whose workers prepare and check at the same time, and time one after the other
(device_turns.py).

Every job ends as one record. A crash, a hang, a lack of memory or a library that fails at import costs only the record
of its job: the worker is replaced, and the next job runs. The parent never opens the device.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnbench import backends
from attnbench.core.backend import Probe
from attnbench.core.case import Case
from attnbench.core.errors import OtherStateError, UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.live_state import differing
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Record, Status
from attnbench.core.sizes import format_duration
from attnbench.core.text import one_line, some
from attnbench.results.bounds import check_record
from attnbench.results.exit_codes import GIVEN_UP, MAX_FAILED_STARTS
from attnbench.run import compile_caches, device_turns, untrusted
from attnbench.run.device_turns import DeviceTurns
from attnbench.run.judge import JobHearing, Judge, is_judged_beside, within
from attnbench.run.plan import CaseSupport
from attnbench.run.process import START_TIMEOUT, TO_CLEAN_UP, WorkerDied, WorkerHung, WorkerOutOfMemory, WorkerProcess
from attnbench.run.rank_workers import RankWorkers

SLOW_START = 10.0  # seconds of importing after which the unfinished backends are reported
COLD_TIMEOUT = 900.0  # seconds for a job that may compile all its kernels; FlashInfer's take minutes
CEILINGS_EVERY = 60.0  # seconds between two readings of the device's ceilings for a dtype, by any worker
MOST_TOGETHER = 12  # the most workers of a group
TOGETHER = 0.1  # the share of a device's free memory for a group's jobs, by their forecasts
TOGETHER_CALL = 0.02  # the longest call, in seconds, in a group; longer ones keep the device busy, without a gain
LOOK_EVERY = 60.0  # seconds between two looks at other processes on a GPU; a look takes a second or two

Key = tuple[str, int]  # a backend and the number of its worker's ranks
Op = Literal["run", "check", "fit"]  # requests of worker/serve.py


class Begun(NamedTuple):
    """A job with its worker, which is ready, or the reason why there is none."""

    job: Job
    request: dict[str, Any]
    hearing: JobHearing | None
    worker: WorkerProcess | RankWorkers | str  # a text says why there is none


@dataclass
class WorkerPool:
    """The workers of a run, by backend and ranks. A worker is started when needed, and replaced when it has died."""

    specs: Mapping[str, str]  # backend -> "module:object"
    interpreters: Mapping[str, str] = field(default_factory=dict)  # backend -> Python to run it with
    peers: Sequence[Device] = ()  # the devices of the ranks after the first
    judge: Judge | None = None  # the judge beside the workers
    variables: Mapping[str, str] = field(default_factory=dict)  # set in the environment of workers
    here: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # spec -> maker of its worker in this process
    live: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # spec -> required state of its function
    others: WorkerPool | None = None  # of one more process for each backend, whose bits are compared (Policy.bitwise)
    # Returns the request by which a new worker of a backend goes behind fences; None: workers have none
    fence: Callable[[str], Mapping[str, Any]] | None = None
    unfenced: dict[str, Mapping[str, str]] = field(default_factory=dict)  # backend -> fence without hold -> why
    _workers: dict[Key, WorkerProcess | RankWorkers] = field(default_factory=dict)
    _hearings: dict[str, JobHearing] = field(default_factory=dict)  # backend -> its present hearing (judge.py)
    _turns: dict[str, Callable[[str], None]] = field(default_factory=dict)  # backend -> waits for its turn
    _failed_starts: dict[str, int] = field(default_factory=dict)
    _ceilings_due: dict[str, float] = field(default_factory=dict)  # dtype -> time.monotonic() of its next reading
    _look_due: float = field(default_factory=lambda: time.monotonic() + LOOK_EVERY)  # the next look at others
    compilers: set[str] = field(default_factory=set)  # loaded backends that start a compiler
    _loading: bool = False  # all workers load; their answers are not yet received
    _importing: bool = False  # after loading they import the modules for measuring
    _opened: set[Key] = field(default_factory=set)  # workers that were asked to open the device
    _loaded_versions: dict[str, str | None] = field(default_factory=dict)  # backend -> version in its first worker
    _imported: dict[tuple[str, str], str] = field(default_factory=dict)  # (backend, file that a call imported) -> hash

    @property
    def kept(self) -> dict[str, Any]:
        """The fields shared with a pool of other backends in the session."""
        return {name: getattr(self, name) for name in ("peers", "judge", "variables", "here", "live", "fence")}

    def start_loading(self, *, import_ahead: bool = False) -> None:
        """Start all workers and let them import their libraries, which takes seconds. `probe` receives the answers.

        With `import_ahead` they also import the modules for measuring, which takes as long; the first job reports a
        failure of that.
        """
        for name, spec in self.specs.items():
            worker = self._worker((name, 1))
            worker.send({"op": "load", "name": name, "spec": spec, "with_state": spec in self.live})
            if import_ahead:
                worker.send({"op": "import"})
        self._loading, self._importing = True, import_ahead

    def probe(self, tell: Callable[[str], None] | None = None) -> dict[str, Probe]:
        """Return each backend's version, or why it cannot be used, after the end of start_loading().

        `tell` receives, once, a text about slow backends.
        """
        if not self._loading:
            self.start_loading()
        if tell and (slow := self._still_loading(time.monotonic() + SLOW_START)):
            tell(
                f"{some(slow)} {'is' if len(slow) == 1 else 'are'} still importing after {SLOW_START:.0f} s "
                f"(given up after {format_duration(START_TIMEOUT)}; Ctrl-C stops)"
            )
        found = {name: self._receive_probe(name) for name in self.specs}
        for worker in self._workers.values() if self._importing else ():
            with contextlib.suppress(WorkerDied, WorkerHung):
                if worker.alive:
                    worker.receive(START_TIMEOUT)
        self._loading = self._importing = False
        return found

    def _still_loading(self, deadline: float) -> list[str]:
        """Wait for all workers' answers, at most until `deadline` (time.monotonic); return the backends without one."""
        slow = []
        for name in self.specs:
            with contextlib.suppress(WorkerDied):
                if not self._workers[name, 1].answered(max(0.0, deadline - time.monotonic())):
                    slow.append(name)
        return slow

    def _receive_probe(self, name: str) -> Probe:
        python = self.interpreters.get(name)
        there = f" in {python}" if python else ""
        try:
            answer = self._workers[name, 1].receive(START_TIMEOUT)
        except WorkerHung:
            return Probe(reason=f"importing it{there} took over {START_TIMEOUT:.0f} s")
        except WorkerDied as death:
            todo = "check that it is a Python" if python else None
            if "crashed" in str(death) and ".py:" not in self.specs[name]:
                todo = "it may be built for another torch; install it again"
            said = (self._workers[name, 1].stderr_tail() or "").splitlines()[-1:]
            return Probe(reason=": ".join([f"importing it{there}", str(death), *said]), install=todo)
        if "probe" not in answer:
            return Probe(reason=self._with_fences(f"cannot be imported{there}: {_error(answer)}"))
        self._note_loaded(name, answer)
        probe = from_json(Probe, answer["probe"])
        self._loaded_versions[name] = probe.version
        if probe.install and python:  # else pip would install into another interpreter
            probe = replace(
                probe, install=probe.install.replace("pip install", f"{shlex.quote(python)} -m pip install", 1)
            )
        return probe

    def survey(
        self, probes: Mapping[str, Probe], cases: Iterable[Case], device: Device
    ) -> dict[str, list[CaseSupport]]:
        """Return the answers of each backend for all cases: its support, and its facts for a forecast."""
        cases = list(cases)
        request = {"op": "survey", "device": to_json(device), "cases": [to_json(c) for c in cases]}
        answers = {}
        for name, probe in probes.items():
            if not probe.usable:
                answers[name] = [CaseSupport(reason=probe.why_not)] * len(cases)
                continue
            answer = self._surveyed(name, request)
            if "died" in answer:  # a new process may answer, if something killed this one
                answer = self._surveyed(name, request)
            answers[name] = _supports(answer, len(cases))
        return answers

    def _surveyed(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a backend's answer for all cases, else an "error", with "died" where its process ended."""
        try:
            return self._loaded((name, 1)).ask(request, START_TIMEOUT)
        except WorkerHung:
            return {"error": "no answer"}
        except WorkerDied as error:
            return {"error": str(error), "died": True}

    def open_device(self, keys: Iterable[Key], device: Device) -> None:
        """Let these workers import and open the device, all at the same time, so that no job's time includes it.

        A worker is asked only once. Its first job reports a failure.
        """
        waiting = []
        new_keys = [key for key in keys if key not in self._opened]
        self._opened.update(new_keys)
        for key, new in [(key, self._start(key, device)) for key in new_keys]:
            with contextlib.suppress(WorkerDied, WorkerHung):
                if new:
                    self._receive_loaded(key)
                waiting.append(self._workers[key])
                waiting[-1].send({"op": "ready", "device": to_json(device)})
        for worker in waiting:
            with contextlib.suppress(WorkerDied, WorkerHung):
                worker.receive(START_TIMEOUT)

    def check(self, job: Job, policy: Policy, device: Device) -> Record:
        """Check a job's results as `measure` does, time nothing, and return its record."""
        return self._measure(job, policy, device, "check")

    def work_ahead(self, cases: Iterable[Case]) -> None:
        """Have the judge compute the answers of the next cases to be checked."""
        if self.judge:
            self.judge.work_ahead(cases, Policy().seed)

    def fit(self, job: Job, policy: Policy, device: Device, memory: int | None) -> Record:
        """Test whether a job fits in memory and is right there, and return its record; `memory` limits it."""
        return self._measure(job, policy, device, "fit", memory)

    def lost(self, name: str) -> bool:
        """Whether the worker of a backend has ended, as after a crash or a hang."""
        return (name, 1) not in self._workers or not self._workers[name, 1].alive

    def measure(self, job: Job, policy: Policy, device: Device, *, last: bool = False) -> Record:
        """Measure a job and return its record, even if the worker fails.

        With fresh caches the job has a worker of its own. From time to time, and after the last job, the worker looks
        for other processes on the GPU.
        """
        if last:
            self._look_due = 0.0
        if policy.untrusted:
            own = self._measure(job, replace(policy, timer=Policy.timer, l2=Policy.l2), device)
            return checked(untrusted.judged(self, own, policy, device, timed=True))
        if policy.caches == "kept":
            return self._in_another_process(self._measure(job, policy, device), policy, device)
        before = self.variables
        with compile_caches.fresh_caches() as variables:
            self.close_worker(job.backend)
            self.variables = {**before, **variables}
            try:
                record = self._measure(job, policy, device)
            finally:
                self.variables = before
                self.close_worker(job.backend)
        return self._in_another_process(record, policy, device)

    def may_join(self, group: Sequence[Job], job: Job, policy: Policy, device: Device) -> bool:
        """Return whether a job can be measured together with a group of jobs.

        The jobs of a group are one case on one GPU on different shipped backends: the memory that a person's code takes
        is known only where nothing else uses the device. Their calls are short, and take little memory.
        """
        jobs = [*group, job]
        return (
            device.kind == "cuda"
            and policy.caches == "kept"
            and not policy.untrusted
            and len(jobs) <= MOST_TOGETHER
            and len({of.backend for of in jobs}) == len(jobs)
            and {(of.case, of.round) for of in jobs} == {(job.case, job.round)}
            and is_judged_beside(job.case)
            and job.case.ranks == 1
            and not job.case.dropout_p
            and all(self.specs.get(of.backend) in backends.BACKENDS.values() for of in jobs)
            and all(of.forecast.call <= TOGETHER_CALL for of in jobs)
            and sum(of.forecast.nbytes for of in jobs) <= TOGETHER * device.free
        )

    def measure_together(
        self, jobs: Sequence[Job], policy: Policy, device: Device, *, last: bool = False
    ) -> list[Record]:
        """Measure jobs that may be in one group, and return their records, each with its share of the time.

        Their workers prepare and check at the same time; each is timed while no other uses the device. A job that also
        measures the device's ceilings, or looks at other processes, runs alone.
        """
        if len(jobs) == 1:
            return [self.measure(jobs[0], policy, device, last=last)]
        if last:
            *first, final = jobs
            return [*self.measure_together(first, policy, device), self.measure(final, policy, device, last=True)]
        if time.monotonic() >= min(self._ceilings_due.get(jobs[0].case.dtype, 0.0), self._look_due):
            return [self.measure(jobs[0], policy, device), *self.measure_together(jobs[1:], policy, device)]
        began, turns = time.monotonic(), DeviceTurns(len(jobs))
        self._turns = {job.backend: partial(turns.take, worker=slot) for slot, job in enumerate(jobs)}
        try:
            records = self._asked_together(jobs, turns, policy, device)
        finally:
            self._turns = {}
        seconds = [record.seconds or 0.0 for record in records]
        share = (time.monotonic() - began) / (sum(seconds) or 1.0)
        records = [replace(record, seconds=share * own) for record, own in zip(records, seconds, strict=True)]
        return [
            self.measure(job, policy, device)  # the others took memory too
            if record.status == "oom"
            else self._in_another_process(record, policy, device)
            for job, record in zip(jobs, records, strict=True)
        ]

    def _in_another_process(self, record: Record, policy: Policy, device: Device) -> Record:
        """Return a record with the comparison of its bits with another process's, where its bits were compared.

        Each backend has one such process beside its worker, which launches once on the same inputs.
        """
        if (own := record.bitwise) is None or self.others is None:
            return record
        if record.case.dropout_p:
            return replace(record, bitwise=replace(own, no_process="dropout draws other random numbers there"))
        if self.specs[record.backend] in self.here:
            return replace(record, bitwise=replace(own, no_process="its function is known in this process alone"))
        slow = record.backend in self.compilers or policy.caches == "fresh"
        timeout = (
            COLD_TIMEOUT if slow else max(policy.timeout_s, 5 * record.forecast.seconds if record.forecast else 0.0)
        )
        request = {"op": "bits", "device": to_json(device), "case": to_json(record.case), "seed": policy.seed}
        try:
            found = self.others.ask(record.backend, request, timeout)["digests"]
            differs = tuple(name for name, digest in own.digests.items() if found[name] != digest)
            return replace(record, bitwise=replace(own, process=differs, no_process=""))
        except (UserError, KeyError, TypeError) as error:  # a hung worker must not answer the next request
            self.others.close_worker(record.backend)
            why = f"another process gave no results: {one_line(str(error))[:400]}"
            return replace(record, bitwise=replace(own, no_process=why))

    def _asked_together(self, jobs: Sequence[Job], turns: DeviceTurns, policy: Policy, device: Device) -> list[Record]:
        """Ask the worker of each job in a thread of its own."""
        if self.judge:
            self.judge.revive()
        # in this thread, as Linux ends a worker with the thread that started it (worker/serve.py)
        begun = [self._begin(job, policy, device, slot=slot) for slot, job in enumerate(jobs)]

        def ask(slot: int) -> Record:
            try:
                return self._finish(begun[slot], policy, device)
            finally:
                turns.leave(slot)

        with ThreadPoolExecutor(len(jobs)) as threads:
            found = [threads.submit(ask, slot) for slot in range(len(jobs))]
            try:
                return [of_one.result() for of_one in found]
            except BaseException:  # for example at Ctrl-C: no thread ends before its worker
                for one in begun:
                    if not isinstance(one.worker, str):
                        one.worker.send_kill()
                if self.judge:
                    self.judge.send_kill()  # workers may wait for the judge
                raise

    def _measure(self, job: Job, policy: Policy, device: Device, op: Op = "run", memory: int | None = None) -> Record:
        return self._finish(self._begin(job, policy, device, op, memory), policy, device)

    def _begin(
        self, job: Job, policy: Policy, device: Device, op: Op = "run", memory: int | None = None, *, slot: int = 0
    ) -> Begun:
        """Return a job with a worker that is ready, and the request for the worker."""
        if self.fence:
            self._close_candidates(but=job.backend)
        request, hearing = self._request(job, policy, device, op, memory, slot)
        if self._failed_starts.get(job.backend, 0) >= MAX_FAILED_STARTS:
            return Begun(job, request, hearing, GIVEN_UP)
        try:
            worker = self._loaded((job.backend, job.case.ranks if device.kind != "fake" else 1), device)
        except (WorkerDied, WorkerHung) as error:
            self._failed_starts[job.backend] = self._failed_starts.get(job.backend, 0) + 1
            return Begun(job, request, hearing, f"its worker did not start: {error or 'no answer'}")
        return Begun(job, request, hearing, worker)

    def _finish(self, begun: Begun, policy: Policy, device: Device) -> Record:
        """Send the request of a begun job to its worker, and return the record. Several threads may do so."""
        job, request, hearing, worker = begun
        base = Record(job.case, job.backend, job.round, "failed", forecast=job.forecast)
        if isinstance(worker, str):
            return replace(base, reason=worker)
        began = time.monotonic()
        limits = {5 * job.forecast.seconds: "5 times its forecast", policy.timeout_s: "--timeout, policy timeout_s"}
        if policy.caches == "fresh" or job.backend in self.compilers:
            limits[COLD_TIMEOUT] = "it may have compiled kernels"
        timeout = max(limits)
        try:
            answer = worker.ask(request, timeout)
        except WorkerHung:
            reason = f"no answer within {format_duration(timeout)}; its worker was killed ({limits[timeout]})"
            return self._failed(replace(base, status="timeout", reason=reason), worker, began)
        except WorkerDied as death:
            status: Status = "oom" if isinstance(death, WorkerOutOfMemory) else "failed"
            return self._failed(replace(base, status=status, reason=str(death)), worker, began)
        if "changed" in answer and not self.fence:
            raise UserError(answer["changed"])
        if "record" not in answer:
            return self._failed(replace(base, reason=_error(answer)), worker, began)
        if not isinstance(imported := answer.get("imported"), dict):
            return self._failed(replace(base, reason="its worker's answer is not a record"), worker, began)
        try:
            self._note_files(job.backend, imported)
        except UserError as error:
            if not self.fence:
                raise
            return self._failed(replace(base, reason=str(error)), worker, began)
        try:
            record = from_json(Record, answer["record"])
            if (record.case, record.backend, record.round) != (job.case, job.backend, job.round):
                raise ValueError("it is of another job")
            if hearing:
                record = hearing.ruled(record)
            elif device.kind != "fake":
                record = within(record)
            record = checked(record)
        except ValueError as error:
            return self._failed(replace(base, reason=f"its worker's answer is not a record: {error}"), worker, began)
        if "ceilings" in request and "ceiling_copy" not in record.measurements:  # missing if the result is wrong
            self._ceilings_due[job.case.dtype] = 0.0
        if answer.get("fatal"):
            worker.kill()
        if record.reason:
            record = replace(record, reason=self._with_fences(record.reason))
        return record if record.status in ("ok", "skipped") else replace(record, stderr=worker.stderr_tail())

    def _with_fences(self, reason: str) -> str:
        """Return a reason, with the fences that probably caused it."""
        refused = self.fence and "PermissionError" in reason
        return f"{reason}; --untrusted refuses sockets, and files outside its own folder" if refused else reason

    def _request(
        self, job: Job, policy: Policy, device: Device, op: Op, memory: int | None, slot: int
    ) -> tuple[dict[str, Any], JobHearing | None]:
        """Return the request for a job, and its hearing if the judge checks its results."""
        request: dict[str, Any] = {
            "op": op,
            "device": to_json(device),
            "policy": to_json(policy),
            "job": to_json(job),
            "together": job.backend in self._turns,
        }
        hearing = None
        if self.judge and op != "fit" and is_judged_beside(job.case):
            hearing = self.judge.hear(job.case, policy.seed, job.forecast.nbytes, slot=slot)
            self._hearings[job.backend] = hearing
            request["judged"] = True
        if op == "fit":
            request["memory"] = memory
        now = time.monotonic()
        if op == "run" and now >= self._ceilings_due.get(job.case.dtype, 0.0):
            request["ceilings"] = True
            self._ceilings_due[job.case.dtype] = now + CEILINGS_EVERY
        if op == "run" and device.kind == "cuda" and now >= self._look_due:
            request["look"] = True
            self._look_due = now + LOOK_EVERY
        return request, hearing

    def ask(
        self, name: str, request: Mapping[str, Any], timeout: float, *, ranks: int = 1, device: Device | None = None
    ) -> dict[str, Any]:
        """Return the answer of a backend's worker to a request of worker/serve.py. Raises UserError with the reason.

        With several ranks it is the answer of the first, which has `device`. A "case" may be judged beside the worker.
        """
        if self.judge and "case" in request and is_judged_beside(case := from_json(Case, request["case"])):
            self._hearings[name] = self.judge.hear(case, Policy().seed)
            request = {**request, "judged": True}
        try:
            answer = self._loaded((name, ranks), device).ask(request, timeout)
        except (WorkerDied, WorkerHung) as error:
            raise UserError(f"{name}: {error or f'no answer within {timeout:.0f} s'}") from None
        if "error" in answer:
            raise UserError(f"{name}: {_error(answer)}")
        return answer

    def close(self) -> None:
        """Kill all workers. The next job starts new ones."""
        if self.others:
            self.others.close()
        until = time.monotonic() + TO_CLEAN_UP
        for interrupted in [worker for worker in self._workers.values() if worker.interrupt_import()]:
            interrupted.wait(until - time.monotonic())
        for worker in self._workers.values():
            worker.send_kill()  # to all at first, as the driver needs a while for each process with an open GPU
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        self._opened.clear()

    def close_worker(self, name: str) -> None:
        """Kill the workers of a backend, if it has any."""
        self._opened = {key for key in self._opened if key[0] != name}
        for key in [key for key in self._workers if key[0] == name]:
            self._workers.pop(key).kill()

    def _close_candidates(self, but: str) -> None:
        """Kill the workers of all own code but one: each of them has memory that the judge shares."""
        for name in {name for name, _ in self._workers} - {but}:
            if self.specs[name] not in backends.BACKENDS.values():
                self.close_worker(name)

    def _worker(self, key: Key, device: Device | None = None) -> WorkerProcess | RankWorkers:
        """Return a backend's worker; a new one if none runs. `device` is the first rank's."""
        (name, ranks), worker = key, self._workers.get(key)
        if worker is None or not worker.alive:
            if worker is not None:
                worker.kill()
            python = self.interpreters.get(name)
            if ranks == 1:
                make = partial(WorkerProcess, python, self.variables)
                make = partial(make, is_fenced=True) if self.fence else make
                worker = self.here.get(self.specs[name], make)()
                if self.fence:
                    self._put_behind_fences(name, worker, self.fence(name))
            else:
                assert device is not None
                if self.fence:
                    raise UserError(f"--untrusted judges kernels on one device, not on {ranks}; leave out --ranks")
                devices = [device] * ranks if device.kind == "cpu" else [device, *self.peers][:ranks]
                worker = RankWorkers(devices, python, self.variables)
            worker.on_question = partial(self._answer, name, python)
            self._workers[key] = worker
        return worker

    def _put_behind_fences(self, name: str, worker: WorkerProcess, request: Mapping[str, Any]) -> None:
        """Put a new worker behind fences, and keep which of them do not hold. Raises UserError."""
        answer = worker.ask(request, START_TIMEOUT)
        if "fences" not in answer:
            worker.kill()
            raise UserError(f"{name}: its process cannot be fenced: {_error(answer)}")
        self.unfenced[name] = {fence: why for fence, why in answer["fences"].items() if why}

    def _answer(self, name: str, python: str | None, question: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the answer to a question of a backend's worker, which runs in the interpreter `python`."""
        if question.get("do") in device_turns.REQUESTS:
            if name not in self._turns:
                return {"error": "it is in no group"}
            self._turns[name](question["do"])
            return {}
        hearing = self._hearings.get(name)
        return hearing.answer(question, timeout, python) if hearing else {"error": "there is no judge"}

    def _loaded(self, key: Key, device: Device | None = None) -> WorkerProcess | RankWorkers:
        """Return a worker that has loaded its backend; a new one if the last one died."""
        if self._start(key, device):
            self._receive_loaded(key)
        return self._workers[key]

    def _start(self, key: Key, device: Device | None = None) -> bool:
        """Let a new worker load the backend, if none runs; return whether a new one was started."""
        old = self._workers.get(key)
        worker = self._worker(key, device)
        if worker is not old:
            worker.send({"op": "load", "name": key[0], "spec": self.specs[key[0]]})
        return worker is not old

    def _receive_loaded(self, key: Key) -> None:
        """Wait until a new worker has loaded its backend. Raises WorkerDied or WorkerHung."""
        worker = self._workers[key]
        answer = worker.receive(START_TIMEOUT)
        if "probe" not in answer:
            worker.kill()
            raise WorkerDied(_error(answer))
        name, version = key[0], answer["probe"].get("version")
        if (first := self._loaded_versions.setdefault(name, version)) != version:
            raise _changed(name, first, version)
        self._note_loaded(name, answer)

    def _note_loaded(self, name: str, answer: Mapping[str, Any]) -> None:
        """Keep from the answer to "load" whether the backend starts a compiler, and the hashes of its files.

        Raises OtherStateError for a function without its required state.
        """
        live, state = self.live.get(self.specs[name]), answer.get("state")
        if live and state is not None and (differs := differing(live, state)):
            raise OtherStateError(name, differs)
        if answer.get("compiler"):
            self.compilers.add(name)
        if isinstance(files := answer.get("files"), dict):
            self._note_files(name, files)

    def _note_files(self, name: str, files: Mapping[str, str]) -> None:
        """Keep the hash of each file of a backend, by path. Raises UserError where a hash has changed."""
        for file, found in files.items():
            if (first := self._imported.setdefault((name, file), found)) != found:
                raise _changed(name, f"{file} with the hash {first}", f"with {found}")

    def _failed(self, record: Record, worker: WorkerProcess | RankWorkers, began: float) -> Record:
        """Kill a worker that gave no record; return `record` with the end of its stderr."""
        tail = worker.stderr_tail()
        worker.kill()
        return replace(record, stderr=tail, seconds=time.monotonic() - began)


def _error(answer: Mapping[str, Any]) -> str:
    """Return the error in an answer, or that the answer lacks the requested value."""
    return str(answer.get("error") or "its worker's answer has not what was asked for")


def _supports(answer: Mapping[str, Any], number: int) -> list[CaseSupport]:
    """Return a worker's answers for so many cases; where they cannot be read, the reason for each."""
    try:
        found = [
            from_json(CaseSupport, dict(zip(("reason", "workspace", "efficiency", "compiles"), one, strict=True)))
            for one in answer["answers"]
        ]
        if len(found) == number:
            return found
    except (KeyError, TypeError, ValueError):
        pass
    return [CaseSupport(reason=f"its support is unknown: {_error(answer)}")] * number


def _changed(name: str, first: str | None, later: str | None) -> UserError:
    """Return the error for own code of which two processes loaded different versions."""
    return UserError(
        f"{name} was changed while it was measured: a process loaded {first}, a later one {later}; the records "
        "are kept; start another run to measure the present code"
    )


def checked(record: Record) -> Record:
    """Return the record, with status `wrong` where it says `ok` but its errors are too large or missing.

    Where a number in the record cannot have been measured, so that a run file with it could not be read, the returned
    record has status `failed`.
    """
    if record.status == "ok" and (record.accuracy is None or not record.accuracy.errors):
        record = replace(record, status="wrong", reason="its worker says ok, but the record has no errors that show it")
    elif record.status == "ok" and record.accuracy and not record.accuracy.ok:
        reason = f"its worker says ok, but the errors in the record are too large: {record.accuracy.problem()}"
        record = replace(record, status="wrong", reason=reason)
    try:
        check_record(record)
    except ValueError as error:
        reason = f"its worker gave impossible figures: {error}"
        return Record(record.case, record.backend, record.round, "failed", reason, forecast=record.forecast)
    return record


def has_nvidia_gpu() -> bool:
    """Return whether the NVIDIA driver of Linux is loaded, without opening the device."""
    return Path("/dev/nvidiactl").exists()
