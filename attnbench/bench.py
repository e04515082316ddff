"""Measures one case on one backend, inside a worker: inputs -> prepare -> verify -> time -> memory.

The order matters. Results are checked before anything is timed, on outputs whose memory was filled with NaN; what the
timed closure returns is checked again after its last sample; memory has passes of its own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench import environment, inputs, reference
from attnbench.measure.memory import CpuMemory, CudaMemory
from attnbench.measure.timing import CpuTimer, CudaTimer, Timer, collect
from attnbench.types import Accuracy, Backend, Case, Device, Measurement, Policy, Prepared

if TYPE_CHECKING:
    from torch import Tensor

MAX_CPU_FLUSH = 64 * 2**20  # bytes; virtual machines report the last-level cache of the whole host


class Bench:
    """The instruments for one device, and the procedure."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")  # fp32 means fp32; a backend may still choose otherwise
        self.device = torch.device(str(device))
        self._settled = False
        self.timer: Timer
        self.memory: CpuMemory | CudaMemory
        self.state = None
        reference.warm(self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.timer = CudaTimer(self.device, device.l2 or 0)
            self.memory = CudaMemory(self.device)
            self.state = environment.gpu_state(self.device)
        else:
            flush = torch.empty(min(2 * (device.l2 or MAX_CPU_FLUSH), MAX_CPU_FLUSH), dtype=torch.int8)
            self.timer = CpuTimer(flush=flush.zero_)
            self.memory = CpuMemory()

    def measure(self, backend: Backend, case: Case, policy: Policy) -> dict[str, Any]:
        """The fields of a Record. Raises Unsupported when the library refuses, and whatever the library raises."""
        given = inputs.make(case, str(self.device), policy.seed)
        sample = reference.choose(case, self.device, policy.seed)
        checked = reference.check_inputs(case, given, sample)
        with self.memory.job():
            answer = reference.reference(case, checked, sample)  # first: a launch that writes to its inputs is wrong
            prepared, results, first_call = self.first_call(backend, case, checked)
            accuracy = reference.compare(answer, results)
            del results
            if not accuracy.ok:
                return self.wrong(accuracy)
            if checked is not given:
                if case.has_backward:  # dk and dv cannot be checked after timing: a second launch must be right too
                    accuracy = reference.compare(answer, prepared.canonical(prepared.launch()))
                    if not accuracy.ok:
                        return self.wrong(accuracy, "in the second launch: ")
                del prepared
                prepared = backend.prepare(case, given)
            self.timer.host_bound = False
            times = collect(self.timer, prepared.launch, policy)
            limits = self.state.limits() if self.state else ()
            clock = self.state.clock_hz() if self.state else None
            memory, last = self.memory.peak(prepared.launch)
            by_row = ("out", "dq") if case.has_backward else ("out",)
            again = reference.compare(answer, prepared.canonical(last), None if checked is given else by_row)
            del last, answer
            if not again.ok:
                return self.wrong(again, "after timing: ")
            if case.has_backward and prepared.forward is not None:
                memory["memory_saved"] = self.memory.saved(prepared.forward)
        measurements = {"time": Measurement("s", tuple(times)), "first_call": Measurement("s", (first_call,))}
        measurements.update({name: Measurement("B", (value,)) for name, value in memory.items()})
        if clock:
            measurements["clock_sm"] = Measurement("Hz", (clock,))
        return {
            "status": "ok",
            "measurements": measurements,
            "accuracy": accuracy,
            "timer": self.timer.name,
            "l2": policy.l2,
            "limits": limits,
            "host_bound": self.timer.host_bound,
        }

    def first_call(
        self, backend: Backend, case: Case, given: inputs.Inputs
    ) -> tuple[Prepared, Mapping[str, Tensor], float]:
        """Prepares and launches once; results, and the seconds it took (compilation and tuning included)."""
        self.poison(case)
        began = time.perf_counter()
        prepared = backend.prepare(case, given)
        self.timer.synchronize()
        took = time.perf_counter() - began
        self.poison(case)
        began = time.perf_counter()
        raw = prepared.launch()
        self.timer.synchronize()
        took += time.perf_counter() - began
        return prepared, prepared.canonical(raw), took

    def poison(self, case: Case) -> None:
        """Fills the memory that the results will get with NaN, so that what a kernel leaves unwritten is seen.

        Works through torch's CUDA allocator, which hands freed blocks out again; on a CPU large blocks come zeroed.
        """
        import torch

        if self.device.type != "cuda":
            return
        s = case.shape
        torch.cuda.empty_cache()
        rows = [(s.batch, s.seqlen_q, s.nheads, s.headdim_v), (s.batch, s.seqlen_q, s.nheads, s.headdim)]
        keys = [(s.batch, s.seqlen_k, s.nheads_k, s.headdim_v), (s.batch, s.seqlen_k, s.nheads_k, s.headdim)]
        shapes = rows[:1] if not case.has_backward else rows + keys
        blocks = [
            torch.full(shape, float("nan"), dtype=inputs.torch_dtype(case), device=self.device)
            for shape in shapes
            for _ in range(2)
        ]
        del blocks

    def wrong(self, accuracy: Accuracy, when: str = "") -> dict[str, Any]:
        return {"status": "wrong", "reason": when + accuracy.complaint(), "accuracy": accuracy}

    def recover(self) -> bool:
        """Gives memory back after a job, failed or not; False when the CUDA context is beyond repair."""
        import torch

        gc.collect()
        if not self._settled:
            gc.freeze()  # what is imported stays: from here on collecting takes no time, also while a job is timed
            self._settled = True
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except Exception:
            return False
        return True
