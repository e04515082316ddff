"""The child process that touches the device: `python -m attnbench.worker` runs `main`, one process per backend.

It speaks JSON lines: a request on stdin, one answer on what was stdout (anything else that prints goes to stderr).
Needs the standard library, torch and the library under test, so any interpreter that has those can be a worker.

    {"op": "environment", "device": "auto"}                     -> {"environment": {...}} or {"refused": "..."}
    {"op": "rates", "device": {...}, "dtypes": ["bf16"]}        -> {"device": {...}}, now with what it reaches
    {"op": "load", "name": "triton", "spec": "module:object"}   -> {"probe": {...}, "compiler": bool}
    {"op": "import"}                                            -> {}, what measuring needs imported
    {"op": "survey", "device": {...}, "cases": [...]}     -> {"answers": [[reason or null, workspace, efficiency], ...]}
    {"op": "ready", "device": {...}}                            -> {}, the device opened and the instruments made
    {"op": "run", "device": {...}, "policy": {...}, "job": {...}} -> {"record": {...}, "fatal": bool}
    {"op": "examine", "device": {...}}                          -> {"facts": {...}}, the machine's fitness (fitness.py)
    {"op": "profile", "device": {...}, "case": {...}, "trace": path or null} -> {"profile": {...}} (profiling.py)
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any, TextIO

from attnbench import backends
from attnbench.core.backend import Backend, Prepared, Probe, Unsupported, Workspace
from attnbench.core.case import Case
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Measurement, Record
from attnbench.worker import environment
from attnbench.worker.measure.sampling import (  # before any backend: none replaces the clock that they hold
    CpuTimer,
    collect_samples,
)


class Worker:
    """One backend and the instruments for one device, both made on first use."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self._usable = False
        self._measurer: Any = None
        self.fatal = False

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "environment":
                return self.environment(request["device"])
            case "rates":
                return {
                    "device": to_json(
                        environment.with_quick_rates(from_json(Device, request["device"]), request["dtypes"])
                    )
                }
            case "load":
                self.backend = backends.load(request["name"], request["spec"])
                probe = self.backend.probe()
                if not isinstance(probe, Probe):
                    raise TypeError(f"{request['name']}.probe() returned {probe!r}, not a Probe")
                self._usable = probe.usable
                return {"probe": to_json(probe), "compiler": bool(getattr(self.backend, "starts_compiler", False))}
            case "import":
                if self.measures:
                    import_for_measuring()
                return {}
            case "survey":
                device = from_json(Device, request["device"])
                return {"answers": [self.survey(from_json(Case, c), device) for c in request["cases"]]}
            case "ready":
                if self.measures:
                    self.measurer(from_json(Device, request["device"]))
                return {}
            case "run":
                job, policy = from_json(Job, request["job"]), Policy(**request["policy"])
                record = self.run(job, policy, from_json(Device, request["device"]))
                return {"record": to_json(record), "fatal": self.fatal}
            case "examine":
                from attnbench.worker.machine_facts import examine

                return {"facts": examine(self.measurer(from_json(Device, request["device"])))}
            case "profile":
                from attnbench.worker.profile_call import profile

                assert self.backend is not None
                measurer, case = self.measurer(from_json(Device, request["device"])), from_json(Case, request["case"])
                return {"profile": profile(measurer, self.backend, case, request["trace"])}
            case other:
                raise ValueError(f"unknown request {other!r}")

    @property
    def measures(self) -> bool:
        """Whether its jobs, if any, take instruments."""
        return self._usable and not getattr(self.backend, "simulated", False)

    def environment(self, device: str) -> dict[str, Any]:
        try:
            return {"environment": to_json(environment.describe(environment.resolve_device(device)))}
        except environment.NoDevice as error:
            return {"refused": str(error)}

    def survey(self, case: Case, device: Device) -> tuple[str | None, Any, float]:
        """Why the backend does not take the case (or None), the memory it needs, the share of a matmul's rate."""
        assert self.backend is not None
        reason = self.backend.unsupported(case, device)
        if device.kind == "fake" and not getattr(self.backend, "simulated", False):
            reason = "the simulated device runs only simulated backends"
        workspace = self.backend.workspace(case) if hasattr(self.backend, "workspace") else Workspace()
        efficiency = getattr(self.backend, "efficiency", 0.4)
        name = self.backend.name
        if reason is not None and not (isinstance(reason, str) and reason.strip()):
            raise TypeError(f"{name}.unsupported() returned {reason!r}, neither None nor a reason")
        if not isinstance(workspace, Workspace):
            raise TypeError(f"{name}.workspace() returned {workspace!r}, not a Workspace")
        if not 0 < efficiency <= 10:
            raise ValueError(f"{name}.efficiency is {efficiency!r}, not a share of a matmul's rate")
        return reason, to_json(workspace), efficiency

    def run(self, job: Job, policy: Policy, device: Device) -> Record:
        """Measures; whatever goes wrong becomes the record's status and reason."""
        assert self.backend is not None
        began = time.monotonic()
        try:
            if getattr(self.backend, "simulated", False):
                found = simulate(self.backend.prepare(job.case, None), policy)  # type: ignore[arg-type]
            else:
                found = self.measurer(device).measure(self.backend, job.case, policy)
        except Unsupported as refusal:
            found = {"status": "skipped", "reason": " ".join(str(refusal).split()) or "refused without a reason"}
        except Exception as error:
            traceback.print_exc()
            found = {"status": "oom" if _is_oom(error) else "failed", "reason": _one_line(error)}
        if self._measurer is not None and not self._measurer.recover():
            self.fatal = True
        return Record(
            job.case, job.backend, job.round, forecast=job.forecast, seconds=time.monotonic() - began, **found
        )

    def measurer(self, device: Device) -> Any:
        if self._measurer is None:
            from attnbench.worker.measure_cell import CellMeasurer

            self._measurer = CellMeasurer(device)
        self._measurer.described = device  # whose rates were not known when the instruments were made
        return self._measurer


def import_for_measuring() -> None:
    """What measuring needs, the device untouched. sympy too, which the first torch.autograd.grad would import."""
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    import attnbench.worker.measure_cell  # noqa: F401


def simulate(prepared: Prepared, policy: Policy) -> dict[str, Any]:
    """A simulated backend through the same sampling loop, on its own clock."""
    simulation = prepared.simulation
    assert simulation is not None
    if not simulation.accuracy.ok:
        return {"status": "wrong", "reason": simulation.accuracy.problem(), "accuracy": simulation.accuracy}
    began = simulation.clock()
    prepared.launch()
    first = (simulation.clock() - began) / 1e9
    timer = CpuTimer(simulation.clock)
    samples = collect_samples(partial(timer.samples, prepared.launch), policy, clock=lambda: simulation.clock() / 1e9)
    measurements = {"time": Measurement("s", tuple(samples)), "first_call": Measurement("s", (first,))}
    measurements.update({name: Measurement("B", (value,)) for name, value in simulation.memory.items()})
    return {
        "status": "ok",
        "measurements": measurements,
        "accuracy": simulation.accuracy,
        "timer": "simulated",
        "l2": policy.l2,
    }


def _is_oom(error: Exception) -> bool:
    """Out of memory, in the words of torch's allocators, CUDA and the libraries above it."""
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "cudnn_status_alloc_failed", "cublas_status_alloc_failed")
    return isinstance(error, MemoryError) or any(word in text for word in words)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split("\n\n")[0].split())
    text = re.sub(r"(Tried to allocate [\d.]+ \w+\.).*?of which ([\d.]+ \w+) is free.*", r"\1 \2 free", text)
    return f"{type(error).__name__}: {text}"[:400] if text else type(error).__name__


def _die_with_parent() -> None:
    """Linux: the kernel kills this worker when its parent dies, however it dies, even while a kernel hangs."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers until stdin closes. An exception becomes {"error", "kind"}; after a fatal one the process ends."""
    worker = Worker()
    for line in requests:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": _one_line(error)}
        sys.stderr.flush()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if worker.fatal:
            break


def main() -> None:
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not garble the answers
    serve(sys.stdin, answers)
    answers.flush()
    os._exit(0)  # without the destructors of a broken CUDA context


if __name__ == "__main__":
    main()
