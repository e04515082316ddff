"""The worker's request loop: reads one JSON request a line from stdin and writes one JSON answer a line.

The answers go to the original stdout of the process. All other output goes to stderr. The requests ("op") and their
answers:

    {"op": "environment", "device": "auto"}                   -> {"environment": {...}} or {"refused": "..."}
       with "with_torch": false without a CPU's facts that only torch knows
    {"op": "rates", "device": {...}, "dtypes": ["bf16"]}      -> {"device": {...}}, with quick rates of matmul and copy
    {"op": "fence", "fence": {...}, "rooms": [tensors, ...]} -> {"fences": {name: why it does not hold, or ""}}, behind
       fences (fence.py); the judge's memory on a CPU is opened before, and "module", "" for a file, is searched here
    {"op": "load", "name": "triton", "spec": "module:object"} -> {"probe": {...}, "compiler": bool,
       "files": {path: hash}}, with the files of own code; with "with_state": true also "state", name -> text, of a
       person's function (core/live_state.py)
    {"op": "import"}                                          -> {}, after importing the modules for measuring
    {"op": "survey", "device": {...}, "cases": [...]}         -> {"answers": [[reason or null, workspace, efficiency,
       seconds of a first call], ...]}
    {"op": "ready", "device": {...}}                          -> {}, after opening the device and its instruments
       with "place" after joining the other ranks too
    {"op": "run", "device": {...}, "policy": {...}, "job": {...}} -> {"record": {...}, "fatal": bool,
       "imported": {path: hash}}, with the files that own code has imported meanwhile; {"changed": "..."} where the
       case's own mask differs from the plan's
       with "ceilings": true after measuring the device's ceilings, which the record then has too
       with "look": true the record also has the GPU's use by others while this worker leaves it idle
       with "place": {...} as one of several ranks, which all get the request (ranks/group.py)
       with "judged": true the judge beside this worker may be asked
       with "together": true other workers use the device at the same time, and this one asks for turns alone
    {"op": "check", ... as "run"}        -> the same, where the record has all checks and no measurement
    {"op": "fit", ... as "run", "memory": bytes or null} -> the same, of a cell at the limit of memory (fit_cell.py)
    {"op": "bits", "device": {...}, "case": {...}, "seed": 0}  -> {"digests": {result: digest}} (same_bits.py)
    {"op": "orders", "device": {...}, "chain": {...}} -> {"orders": {...}} of a case's inputs and results (chained.py)
    {"op": "chain", ... as "orders", "base": tensors, "places": [tensors, ...], "any_strides": false} -> {}, with
       the case's chain of launches in the judge's memory
    {"op": "go", "launches": n} -> {"seconds": of all, "uncaptured": text}, after a chain of n launches
    {"op": "examine", "device": {...}}                        -> {"facts": {...}} (machine_facts.py)
    {"op": "judge", "device": {...}, "do": ..., ...} -> the judge's answer (judge/service.py), in a worker without a
       backend, which is the judge of others; {"error": ..., "of": "results", "memory" or "sharing"} without an answer
    {"op": "opens", "device": {...}, "tensors": {...}} -> {"opens": bool}, whether the judge's memory can be opened here
    {"op": "profile", "device": {...}, "case": {...}, "keep": {kind: path}} -> {"profile": {...}} (profile_call.py)

Before its answer a worker may ask the judge beside it: it writes {"ask": {"do": ...}}, and reads its answer from the
next line of the requests. In a group it asks for a turn by "do": "alone" or "together" (run/device_turns.py).

An answer repeats the "number" of its request. A request that raises an exception is answered with {"error": "..."}.
"fatal" means that the CUDA context is broken; the worker then ends after its answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from json import dumps, loads  # bound here, so that no kernel can replace them
from pathlib import Path
from time import monotonic, time  # bound here, so that no kernel can replace them
from typing import Any, Literal, TextIO

from attnbench import backends
from attnbench.backends.shared import own_source
from attnbench.backends.shared.function import Function
from attnbench.core import masks, stats
from attnbench.core.backend import Backend, Prepared, Probe, Signature, Unsupported, Workspace, refusal
from attnbench.core.case import RESULT_ITEMSIZE, Case
from attnbench.core.errors import Interrupted
from attnbench.core.json import from_json, to_json
from attnbench.core.live_state import live_state
from attnbench.core.machine import Device
from attnbench.core.other_work import BUSY
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Measurement, Record, fit_measurements
from attnbench.core.shared_tensors import (  # imported before any backend, which could replace them
    Mapped,
    NotShared,
    hold,
)
from attnbench.core.sizes import format_bytes
from attnbench.worker import environment, failures, fence, memory_cap
from attnbench.worker.measure.sampling import (  # imported before any backend, which could replace their clock
    CpuTimer,
    collect_samples,
)
from attnbench.worker.torch_defaults import forget_compiled, keep_to_backend, undo

SMALL = 128  # tokens of a case that fits in any memory


Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


class Worker:
    """One backend on one device, for requests. Each is opened at the first request that needs it."""

    def __init__(self, ask: Ask | None = None, tell: Callable[[str], object] | None = None) -> None:
        """Take `ask`, which asks the judge beside this worker, if any, and `tell`, which gets tracebacks of failures.

        By default tracebacks are written to stderr.
        """
        self._ask = ask
        self._tell = tell or write_to_stderr
        self._judge: Any = None  # the JudgeService of a worker that is a judge
        self.backend: Backend | None = None
        self.spec = ""  # the "module:object" of the backend
        self._usable = False
        self._measurer: Any = None
        self.fatal = False  # whether the CUDA context is broken, and this process must end
        self._place: Mapping[str, Any] | None = None  # its place among several ranks
        self._held: int | None = None  # on a CPU, bytes of memory before the first job with "fit"
        self._process = os.getpid()
        self._seen: set[str] = set()  # modules imported before the latest job
        self.is_judged = False  # whether the judge beside this worker may be asked
        self._together = False  # whether other workers use the device at the same time
        self._chain: Any = None  # the present chain of launches (chained.py)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. Raises the backend's errors, and ValueError for an unknown "op"."""
        match request["op"]:
            case "environment":
                return self.environment(request["device"], with_torch=request.get("with_torch", True))
            case "rates":
                device = from_json(Device, request["device"])
                return {"device": to_json(environment.with_quick_rates(device, request["dtypes"]))}
            case "fence":
                for described in request["rooms"]:
                    hold(described)
                here = backends.search_here(request["module"]) if request["module"] else []
                readable = (*request["fence"]["readable"], *here)
                return {"fences": fence.enter(fence.Fence(**{**request["fence"], "readable": readable}))}
            case "load":
                self.spec = backends.present_spec(request["name"], request["spec"])
                self.backend = backends.load(request["name"], self.spec)
                keep_to_backend(self.backend)
                probe = self.backend.probe()
                if not isinstance(probe, Probe):
                    raise TypeError(f"{request['name']}.probe() returned {probe!r}, not a Probe")
                self._usable = probe.usable
                self._seen = {*sys.modules}
                return {
                    "probe": to_json(with_source(probe, self.backend, self.spec)),
                    "compiler": bool(getattr(self.backend, "starts_compiler", False)),
                    "files": {} if self.spec in backends.BACKENDS.values() else own_source.hashed,
                    "state": self._state() if request.get("with_state") else None,
                }
            case "import":
                if self.will_measure:
                    import_for_measuring()
                return {}
            case "survey":
                device = from_json(Device, request["device"])
                return {"answers": [self.survey(from_json(Case, c), device) for c in request["cases"]]}
            case "ready":
                self._place = request.get("place")
                if self.will_measure:
                    self.measurer(from_json(Device, request["device"]))
                return {}
            case "run" | "check" | "fit" as op:
                job, policy = from_json(Job, request["job"]), Policy(**request["policy"])
                device, ceilings = from_json(Device, request["device"]), request.get("ceilings", False)
                self._place = request.get("place")
                self.is_judged, self._together = request.get("judged", False), request.get("together", False)
                try:
                    record = self.run(job, policy, device, op=op, ceilings=ceilings, memory=request.get("memory"))
                except masks.MaskChangedError as error:
                    return {"changed": str(error)}
                if request.get("look"):
                    record = self.with_other_work(record)
                return {"record": to_json(record), "fatal": self.fatal, "imported": self._newly_imported()}
            case "bits":
                device, case_ = from_json(Device, request["device"]), from_json(Case, request["case"])
                return {"digests": self.digests(case_, request["seed"], device)}
            case "orders" | "chain":
                return self.chain(request)
            case "go":
                from attnbench.worker import chained

                return dict(chained.timed(self._chain, request["launches"]))
            case "examine":
                from attnbench.worker.machine_facts import examine

                return {"facts": examine(self.measurer(from_json(Device, request["device"])))}
            case "judge":
                return self.judge(request)
            case "opens":
                return {"opens": can_open(from_json(Device, request["device"]), request["tensors"])}
            case "profile":
                from attnbench.worker.profile_call import profile

                assert self.backend is not None
                self._place, self.is_judged = request.get("place"), request.get("judged", False)
                measurer, case = self.measurer(from_json(Device, request["device"])), from_json(Case, request["case"])
                return {"profile": profile(measurer, self.backend, case, request["keep"])}
            case other:
                raise ValueError(f"unknown request {other!r}")

    def _state(self) -> dict[str, str] | None:
        """Return the state of a person's function here; None for a backend that is a class."""
        return live_state(self.backend.given) if isinstance(self.backend, Function) else None

    def judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the judge's answer to a request, or why there is none, for the worker that asked."""
        try:
            if self._judge is None:
                from attnbench.judge.service import JudgeService

                self._judge = JudgeService(from_json(Device, request["device"]))
            found: dict[str, Any] = self._judge.answer(request)
            return found
        except Exception as error:
            grown = {"grown": self._judge.grown if self._judge else 0}
            if isinstance(error, NotShared):
                return {"error": str(error), "of": "sharing", **grown}
            self._tell(traceback_text())
            if isinstance(error, ValueError):
                return {"error": str(error), "of": "results", **grown}
            memory = {"of": "memory"} if failures.is_out_of_memory(error) else {}
            return {"error": f"the judge failed: {failures.reason(error, '')}", **memory, **grown}

    @property
    def will_measure(self) -> bool:
        """Return whether jobs of this backend need instruments: it is usable here, and not simulated."""
        return self._usable and not getattr(self.backend, "simulated", False)

    def environment(self, device: str, *, with_torch: bool = True) -> dict[str, Any]:
        """Describe this machine and a device ("auto", "cpu", "cuda:N", "fake"), or say why there is no such device."""
        try:
            where = environment.resolve_device(device)
            return {"environment": to_json(environment.describe(where, with_torch=with_torch))}
        except environment.NoDevice as error:
            return {"refused": str(error)}

    def survey(self, case: Case, device: Device) -> tuple[str | None, Any, float, float]:
        """Ask the backend about one case, for the plan.

        Return the reason why it does not support the case (or None), its workspace as JSON, its expected speed as a
        share of a matmul's rate, and the seconds in which it compiles. Raises TypeError or ValueError where the backend
        returns a wrong type or value.
        """
        assert self.backend is not None
        reason = refusal(self.backend, case, device)
        asked = reason is None and hasattr(self.backend, "workspace")
        workspace = self.backend.workspace(case) if asked else Workspace()
        efficiency, compiles = getattr(self.backend, "efficiency", 0.4), getattr(self.backend, "compiles", 0.0)
        name = self.backend.name
        if reason is not None and not (isinstance(reason, str) and reason.strip()):
            raise TypeError(f"{name}.unsupported() returned {reason!r}, neither None nor a reason")
        if not isinstance(workspace, Workspace):
            raise TypeError(f"{name}.workspace() returned {workspace!r}, not a Workspace")
        if type(workspace.nbytes) is not int or workspace.nbytes < 0:
            raise ValueError(f"{name}.workspace() has nbytes={workspace.nbytes!r}, not a whole number of bytes")
        if not isinstance(workspace.passes, int | float) or not 0 <= workspace.passes < math.inf:
            raise ValueError(f"{name}.workspace() has passes={workspace.passes!r}, not a number of passes")
        has_signature = reason is None and hasattr(self.backend, "signature")
        declared = self.backend.signature(case, device) if has_signature else Signature()
        for pattern in (*declared.runs, *declared.never):
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(f"{name}: {pattern!r} of its kernels is not a regular expression: {error}") from None
        if not 1e-6 <= efficiency <= 10:
            raise ValueError(f"{name}.efficiency is {efficiency!r}, not a share of a matmul's rate")
        if not 0 <= compiles <= 3600:
            raise ValueError(f"{name}.compiles is {compiles!r}, not a number of seconds up to an hour")
        return reason, to_json(workspace), efficiency, compiles

    def run(
        self,
        job: Job,
        policy: Policy,
        device: Device,
        *,
        op: Literal["run", "check", "fit"] = "run",
        ceilings: bool = False,
        memory: int | None = None,
    ) -> Record:
        """Measure one job, only check it, or test whether it fits in `memory` bytes; return its record.

        Any exception but MaskChangedError becomes the record's status and reason.
        """
        assert self.backend is not None
        undo()
        forget_compiled()
        began = monotonic()
        if self._measurer is not None:
            self._measurer.seconds_waited()  # forget waits of the last job's end
        cap = memory_cap.cap_of_a_job(memory, job.case.ranks if op == "fit" else 1) if device.kind == "cpu" else None
        if cap is not None and op == "fit":
            self._held = self._held or self._held_when_warm(job.case, policy, device)
        try:
            for own in masks.own_of([job.case.mask]):
                # Check or load a person's own masks before anything is timed.
                own.check() if getattr(self.backend, "simulated", False) else own.function
            if op == "fit" and (refused := refusal(self.backend, job.case, device)):
                raise Unsupported(refused)
            if getattr(self.backend, "simulated", False):
                prepared = self.backend.prepare(job.case, None)  # type: ignore[arg-type]
                most = min(device.free, memory or device.free) if op == "fit" else None
                found = simulate_fit(prepared, job, most) if most else simulate(prepared, policy, timed=op == "run")
            else:
                measurer = self.measurer(device)
                with memory_cap.capped(cap.nbytes if cap else None, self._held):
                    if op == "fit":
                        found = measurer.fit(self.backend, job.case, policy, memory)
                    else:
                        found = measurer.measure(self.backend, job.case, policy, timed=op == "run", ceilings=ceilings)
        except Unsupported as error:
            found = {"status": "skipped", "reason": " ".join(str(error).split()) or "refused without a reason"}
        except (masks.MaskChangedError, Interrupted):  # Interrupted: in a person's own process
            raise
        except BaseException as error:  # also a kernel's SystemExit and KeyboardInterrupt, which must not end it
            self.end_if_forked(error)
            self._tell(traceback_text())
            found = {"status": "failed", "reason": failures.reason(error, self.spec)}
            if failures.is_out_of_memory(error):
                found["status"] = "oom"
                if cap is not None and not failures.is_of_judge(error):
                    forecast = f"; the plan forecast {format_bytes(job.forecast.nbytes)}" if job.forecast.nbytes else ""
                    found["reason"] = f"asked for more than {cap}{forecast}: {found['reason']}"
        if self._measurer is not None and not self._measurer.recover():
            self.fatal = True
        seconds = monotonic() - began - (self._measurer.seconds_waited() if self._measurer else 0.0)
        return Record(job.case, job.backend, job.round, forecast=job.forecast, seconds=seconds, **found)

    def digests(self, case: Case, seed: int, device: Device) -> Mapping[str, str]:
        """Return the digests of a case's results, result by result. Raises the backend's errors."""
        assert self.backend is not None
        undo()
        forget_compiled()
        if getattr(self.backend, "simulated", False):
            simulation = self.backend.prepare(case, None).simulation  # type: ignore[arg-type]
            return simulation.bitwise.digests if simulation and simulation.bitwise else {}
        from attnbench.worker import same_bits

        measurer = self.measurer(device)
        try:
            return same_bits.digests(self.backend, case, seed, measurer.device)
        finally:
            self.fatal = not measurer.recover()

    def chain(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Make a chain of launches, or say in what order its tensors lie in memory. Raises the backend's errors."""
        from attnbench.worker import chained

        assert self.backend is not None
        undo()
        forget_compiled()
        self._chain = None
        where, case = self.measurer(from_json(Device, request["device"])).device, from_json(Case, request["chain"])
        if request["op"] == "orders":
            return {"orders": chained.orders(self.backend, case, where)}
        memory = request["base"], request["places"]
        self._chain = chained.make(self.backend, case, where, *memory, any_strides=request["any_strides"])
        return {}

    def _newly_imported(self) -> dict[str, str]:
        """Return path -> hash of the files that a person's own code imported in the latest job."""
        if self.spec in backends.BACKENDS.values():
            return {}
        new = {*sys.modules} - self._seen
        self._seen |= new
        return own_source.hashes_of_imported(new)

    def end_if_forked(self, error: BaseException | None = None) -> None:
        """If this process is a fork that a kernel made of the worker, exit.

        The exit code is the one of `error` if it is a SystemExit, else 1.
        """
        if os.getpid() != self._process:
            code = getattr(error, "code", 1)  # a SystemExit has one
            os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))

    def with_other_work(self, record: Record) -> Record:
        """Return a measured record with the GPU's use by others, "busy", and their names; on a CPU unchanged."""
        if self._measurer is None or not record.measurements:
            return record
        self._measurer.alone_on_device()
        state, since = self._measurer.state, time()
        if (busy := state.busy_with_others()) is None:
            return record
        others = state.other_processes(since) if busy > BUSY else ()
        measurements = {**record.measurements, "busy": Measurement("", (busy,))}
        return replace(record, measurements=measurements, others=tuple(dict.fromkeys((*record.others, *others))))

    def _held_when_warm(self, case: Case, policy: Policy, device: Device) -> int | None:
        """Return the bytes of this process on a CPU after a small case, which loads and compiles code."""
        assert self.backend is not None
        if self.will_measure:
            measurer, s = self.measurer(device), case.shape
            small = replace(s, batch=1, seqlen_q=min(s.seqlen_q, SMALL), seqlen_k=min(s.seqlen_k, SMALL))
            with contextlib.suppress(BaseException):  # each rank alone, so that none waits for another
                measurer.fit(self.backend, replace(case, shape=small, ranks=1, shared_prefix=0), policy, None)
            measurer.recover()
        return memory_cap.held_bytes()

    def measurer(self, device: Device) -> Any:
        """Return the CellMeasurer of this worker; the first call opens the device."""
        if self._measurer is None:
            from attnbench.worker.measure_cell import CellMeasurer

            self._measurer = CellMeasurer(device)
        if self._place and self._measurer.together.ranks == 1:
            from attnbench.worker.ranks.group import Place, RankGroup

            self._measurer.join(RankGroup(Place(**self._place), self._measurer.device))
        self._measurer.ask_judge = self._ask if self.is_judged else None
        self._measurer.share_device(self._ask if self._together else None)
        self._measurer.device_info = device  # rates may have been unknown when the instruments were made
        return self._measurer


def can_open(device: Device, described: dict[str, Any]) -> bool:
    """Return whether this process can open tensors in the judge's memory."""
    import torch

    try:
        Mapped(torch.device(str(device))).tensors(described)
    except NotShared:
        return False
    return True


def import_for_measuring() -> None:
    """Import the modules for measuring, without using the device."""
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (sympy, which the first torch.autograd.grad would import)

    import attnbench.worker.measure_cell  # noqa: F401


def simulate(prepared: Prepared, policy: Policy, *, timed: bool = True) -> dict[str, Any]:
    """Return the record's fields for a simulated backend, by the same sampling loop on the backend's own clock."""
    simulation = prepared.simulation
    assert simulation is not None
    if not simulation.accuracy.ok:
        return {"status": "wrong", "reason": simulation.accuracy.problem(), "accuracy": simulation.accuracy}
    if not timed:
        return {"status": "ok", "accuracy": simulation.accuracy}
    began = simulation.clock()
    prepared.launch()
    first = (simulation.clock() - began) / 1e9
    timer = CpuTimer(simulation.clock)
    samples = collect_samples(partial(timer.samples, prepared.launch), policy, clock=lambda: simulation.clock() / 1e9)
    measurements = {"time": Measurement("s", tuple(samples)), "first_call": Measurement("s", (first,))}
    measurements.update({name: Measurement("B", (value,)) for name, value in simulation.memory.items()})
    if simulation.attention is not None:
        traced = stats.median(samples)
        measurements["attention"] = Measurement("s", (simulation.attention * traced,))
        measurements["step_traced"] = Measurement("s", (traced,))
    if simulation.compute is not None:
        measurements["compute"] = Measurement("s", tuple(simulation.compute * seconds for seconds in samples))
        measurements["moved"] = Measurement("B", (prepared.moved,))
    return {
        "status": "ok",
        "measurements": measurements,
        "accuracy": simulation.accuracy,
        "bitwise": simulation.bitwise if policy.bitwise else None,
        "timer": "simulated",
        "l2": policy.l2,
    }


def with_source(probe: Probe, backend: Backend, spec: str) -> Probe:
    """Return a backend's probe; for a person's own class, the version includes a hash of its source."""
    is_own = spec not in backends.BACKENDS.values() and not isinstance(backend, Function)
    if not is_own or not probe.usable:
        return probe
    source = own_source.hash_of_source(backend, spec.rpartition(":")[0]) or "unknown"
    return replace(probe, version=f"{probe.version or backend.name}, source {source}")


def simulate_fit(prepared: Prepared, job: Job, most: int) -> dict[str, Any]:
    """Return the record's fields for a simulated backend with `most` bytes. Raises MemoryError where it needs more."""
    simulation = prepared.simulation
    assert simulation is not None
    s = job.case.extent
    tokens = s.nheads * s.seqlen_q * (s.headdim + s.headdim_v * job.case.has_backward)
    tokens += s.nheads_k * s.seqlen_k * (s.headdim + s.headdim_v)
    inputs = s.batch * tokens * RESULT_ITEMSIZE[job.case.dtype] // job.case.ranks
    peak = int(simulation.memory["memory_peak"])
    if inputs + peak > most:
        raise MemoryError(f"simulated: out of memory, {format_bytes(inputs + peak)} of {format_bytes(most)}")
    prepared.launch()
    began = simulation.clock()
    prepared.launch()
    call = (simulation.clock() - began) / 1e9
    accuracy = simulation.accuracy
    return {
        "status": "ok" if accuracy.ok else "wrong",
        "reason": accuracy.problem() or None,
        "accuracy": accuracy,
        "measurements": fit_measurements(call, inputs, simulation.memory),
        "timer": "simulated",
    }


def _first_to_be_killed() -> None:
    """Let Linux kill this process before others when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies by any cause, even while a GPU kernel hangs.

    Linux also makes it the parent of its children's orphans, so that these are found when the worker is ended.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def traceback_text() -> str:
    """Return the traceback of the handled exception; "" where reading its attributes fails."""
    with contextlib.suppress(Exception):
        return traceback.format_exc()
    return ""


def write_to_stderr(text: str) -> None:
    """Write a text to stderr, even if a kernel has replaced sys.stderr."""
    with contextlib.suppress(Exception):
        os.write(2, text.encode(errors="replace"))


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests, one JSON line each, until the input ends or the CUDA context is broken."""

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        worker.end_if_forked()
        answers.write(dumps({"ask": request}) + "\n")
        answers.flush()
        answer: dict[str, Any] = loads(requests.readline())
        return answer

    worker = Worker(ask)
    for line in requests:
        request = loads(line)
        try:
            answer = worker.answer(request)
        except BaseException as error:  # a library may raise SystemExit at import
            worker.end_if_forked(error)
            write_to_stderr(traceback_text())
            answer = {"error": failures.reason(error, worker.spec)}
        worker.end_if_forked()
        answers.write(dumps({**answer, "number": request["number"]}) + "\n")
        answers.flush()
        if worker.fatal:
            break


def main() -> None:
    """Serve requests from stdin until it closes, then end the process."""
    _die_with_parent()
    _first_to_be_killed()
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and libraries must not read requests
    serve(requests, answers)
    answers.flush()
    os._exit(0)  # without destructors, which may crash or hang in a broken CUDA context
