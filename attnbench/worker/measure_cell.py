"""Measures one case on one backend, inside a worker: inputs -> prepare -> verify -> memory -> time -> prove -> verify.

The order matters. Results are checked before anything is timed, on outputs whose memory was filled with NaN. Memory has
passes of its own, before the instruments take any. Then the launch is timed, and traced once to see what ran, on inputs
that were written anew in place, and, unless that is dear, launched once more on the old ones: its results must follow
each time, so that no stale answer passes.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.core import flops, stats
from attnbench.core.backend import Backend, Inputs, Prepared, Signature, operand_dtype, torch_dtype
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Measurement
from attnbench.worker import inputs, kernel_trace, reference
from attnbench.worker.instruments import Instruments, TimedLaunch
from attnbench.worker.measure.memory import CpuMemory, CudaMemory

if TYPE_CHECKING:
    from torch import Tensor


class CellMeasurer(Instruments):
    """The instruments for one device, and the procedure."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")  # fp32 means fp32; a backend may still choose otherwise
        super().__init__(device)
        self._settled = False
        reference.warm_up(self.device)
        self.memory: CpuMemory | CudaMemory = CudaMemory(self.device) if self.device.type == "cuda" else CpuMemory()

    def measure(self, backend: Backend, case: Case, policy: Policy) -> dict[str, Any]:
        """The fields of a Record. Raises Unsupported when the library refuses, and whatever the library raises."""
        ceilings = self.ceilings(operand_dtype(case))
        given = inputs.make(case, str(self.device), policy.seed)
        if flaw := inputs.find_flaw(given):
            return {"status": "failed", "reason": flaw}
        began, errors = time.time(), self.state.ecc_errors() if self.state else None
        with self.memory.job_window():
            check = reference.make_check(case, given, policy.seed)
            prepared, results, held, first_call = self.first_call(backend, case, check)
            accuracy = check.check_first(results)
            del results
            if not accuracy.ok:
                return self.wrong(accuracy)
            if problem := check.fp8_problem(prepared, accuracy):
                return {"status": "wrong-kernel", "reason": problem, "accuracy": accuracy}
            memory, second = self.memory.measure_peak(check.launcher(prepared))
            accuracy = check.check_first(prepared.canonical(second))
            del second
            if not accuracy.ok:
                return self.wrong(accuracy, "in the second launch: ")
            if case.has_backward and prepared.forward is not None:
                memory["memory_saved"] = self.memory.measure_held(prepared.forward)[0]
            kept = _kept(case, given, held, memory.get("memory_saved"))
            memory.update({name: memory[name] + kept for name in ("memory_peak", "memory_driver") if name in memory})
            if check.dout_masked:
                check.drop_masked_dout()
                del prepared
                self.give_back()
                prepared = backend.prepare(case, given)
            self.give_back()
        # What lives on beside launches is made before them: in torch's cache it would split the large blocks that they
        # leave there and need again. So nothing has to be given back, which costs standard attention half a second.
        made = inputs.make(case, str(self.device), policy.seed)
        timed_launch = self.timed_launch(
            backend, case, given, prepared, 2 * given.nbytes + memory["memory_peak"] + memory.get("memory_saved", 0)
        )
        timing = self.time(timed_launch, policy)
        if _chosen(case, backend.name, policy.cross_check):
            turns, notes = self.turns(timed_launch, policy)
            timing.measurements.update(turns)
            timing.notes += notes
        del timed_launch
        if changed := inputs.first_changed(given, made):
            return {"status": "wrong", "reason": f"it wrote to its input {changed}", "accuracy": accuracy}
        renewal = reference.InputRenewal(case, given, prepared)
        checked = replace(prepared, launch=check.launcher(prepared))
        shown = kernel_trace.trace_launch(
            self, case, _signature(backend, case, self.described), checked, timing, renewal.renew
        )
        others = self.state.other_processes(began) if self.state else ()
        if shown.problem:
            shared = f"; others computed on this GPU meanwhile, which can look so: {', '.join(others)}"
            reason = shown.problem + (shared if others else "")
            fields = {"reason": reason, "kernels": shown.kernels, "accuracy": accuracy, "others": others}
            return {"status": "wrong-kernel", **fields}
        again = check.check_renewed(renewal, made, prepared.canonical(shown.result))
        if not again.ok:
            return self.wrong(again, "after timing, on inputs renewed in place: ")
        shown = replace(shown, result=None)
        if stats.median(timing.measurements["time"].values) < kernel_trace.DEAR:
            renewal.restore()
            again = check.check_restored(prepared.canonical(checked.launch()))
            if not again.ok:
                return self.wrong(again, "after timing, on the old inputs again: ")
            renewal.renew()
        timing.notes += kernel_trace.check_later_calls(self, prepared, timing)
        measurements = {**timing.measurements, "first_call": Measurement("s", (first_call,)), **ceilings}
        measurements.update({name: Measurement("B", (value,)) for name, value in memory.items()})
        notes = [*check.notes, *timing.notes, *([shown.note] if shown.note else [])]
        return {
            "status": "ok",
            "measurements": {name: _rounded(m) for name, m in measurements.items()},
            "accuracy": accuracy,
            "timer": timing.timer,
            "l2": timing.l2,
            "limits": timing.limits,
            "host_bound": timing.host_bound,
            "kernels": shown.kernels,
            "others": others,
            "ecc_errors": max(0, (self.state.ecc_errors() or 0) - errors) if self.state and errors is not None else 0,
            "notes": tuple(notes),
        }

    def timed_launch(
        self, backend: Backend, case: Case, given: Inputs, prepared: Prepared, footprint: int
    ) -> TimedLaunch:
        """The case as the instruments take it; `footprint` is the memory of one more copy, in bytes."""

        def on_copies(n: int) -> Sequence[Any]:
            return [backend.prepare(case, inputs.clone(given)).launch for _ in range(n)]

        return TimedLaunch(prepared.launch, on_copies, flops.ideal_bytes(case), footprint)

    def first_call(
        self, backend: Backend, case: Case, check: reference.ResultCheck
    ) -> tuple[Prepared, Mapping[str, Tensor], int, float]:
        """Prepares and launches once; results, bytes that it holds, and seconds (compilation and tuning included)."""
        took = 0.0

        def prepare() -> Prepared:
            nonlocal took
            began = time.perf_counter()
            made = backend.prepare(case, check.inputs)
            self.timer.synchronize()
            took = time.perf_counter() - began
            return made

        self.poison(case)
        held, prepared = self.memory.measure_held(prepare)
        launch = check.launcher(prepared)
        self.poison(case)
        began = time.perf_counter()
        raw = launch()
        self.timer.synchronize()
        took += time.perf_counter() - began
        return prepared, prepared.canonical(raw), held, took

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
            torch.full(shape, float("nan"), dtype=torch_dtype(case), device=self.device)
            for shape in shapes
            for _ in range(2)
        ]
        del blocks

    def wrong(self, accuracy: Accuracy, when: str = "") -> dict[str, Any]:
        return {"status": "wrong", "reason": when + accuracy.problem(), "accuracy": accuracy}

    def recover(self) -> bool:
        """Gives memory back after a job, failed or not; False when the CUDA context is beyond repair."""
        gc.collect()
        if not self._settled:
            gc.freeze()  # what is imported stays: from here on collecting takes no time, also while a job is timed
            self._settled = True
        try:
            self.timer.synchronize()
            self.give_back()
        except Exception:
            return False
        return not self.broken

    def give_back(self) -> None:
        """Empties torch's cache of memory, whose splits would keep large blocks from being used again."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _kept(case: Case, given: Inputs, held: int, saved: int | None) -> int:
    """Bytes of what `prepare` holds that are its own: beyond a copy of each input and what a timed backward goes over.

    0 where that is not known.
    """
    if not case.has_forward:
        if saved is None:
            return 0
        held -= saved
    return max(0, held - given.nbytes)


def _rounded(measurement: Measurement) -> Measurement:
    """To seven digits, more than any instrument has: run files are half as large."""
    return Measurement(measurement.unit, tuple(float(f"{v:.7g}") for v in measurement.values))


def _signature(backend: Backend, case: Case, device: Device) -> Signature:
    return backend.signature(case, device) if hasattr(backend, "signature") else Signature()


def _chosen(case: Case, backend: str, share: float) -> bool:
    """Whether this cell is in the sample; the same cells in every run."""
    digest = hashlib.sha256(f"{case.key}/{backend}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32
