"""The procedure that measures one cell, that is one case on one backend, inside a worker.

1. Make the inputs, prepare the backend, launch once, and check the results. The memory of the outputs was filled with
   NaN before, so that what a kernel leaves unwritten is seen.
2. Measure memory, in launches of their own, before the instruments allocate any. Check the second launch too.
3. Time the launch, and compare the results of calls that follow each other.
4. Change the inputs in place, trace one launch to see which kernels ran, and check its results on the new inputs. Where
   rows are sampled, screen all of them.
5. Unless a launch is long, restore the inputs, launch again, and check once more. A kernel that returns an earlier
   result fails step 4 or 5.
6. Prepare and launch once on hard inputs, and check the results.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core import flops, stats
from attnbench.core.backend import Backend, Inputs, Prepared, Signature, operand_dtype, torch_dtype
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Measurement
from attnbench.worker import inputs, kernel_trace, reference, repeated_calls
from attnbench.worker.instruments import Instruments, TimedLaunch
from attnbench.worker.measure.memory import CpuMemory, CudaMemory

if TYPE_CHECKING:
    from torch import Tensor

ALLOCATED = 512  # bytes, of which torch's CUDA allocator gives out multiples


class Laps:
    """The wall time of the phases of a job: `seconds` by phase, which may come more than once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, phase: str) -> None:
        """Add the time since the last end to a phase."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


class CellMeasurer(Instruments):
    """Measures cells on one device with its instruments."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")  # no TF32 in fp32 cases, unless a backend chooses it
        super().__init__(device)
        self._gc_frozen = False
        reference.warm_up(self.device)
        self.memory: CpuMemory | CudaMemory = CudaMemory(self.device) if self.device.type == "cuda" else CpuMemory()

    def measure(
        self, backend: Backend, case: Case, policy: Policy, *, timed: bool = True, ceilings: bool = False
    ) -> dict[str, Any]:
        """Measure one cell and return the fields of its Record; without `timed` make the same checks and time nothing.

        With `ceilings` the device's ceilings are measured first, and are in the record too.

        Raises Unsupported where the library refuses the case, and whatever else the library raises.
        """
        laps = Laps()
        limits = self.ceilings(operand_dtype(case)) if ceilings else {}
        laps.end("ceilings")
        given = inputs.make(case, str(self.device), policy.seed)
        laps.end("inputs")
        if flaw := inputs.find_flaw(given, case.data):
            return {"status": "failed", "reason": flaw}
        began, errors = time.time(), self.state.ecc_errors()
        with self.memory.job_window():
            check = reference.make_check(case, given, policy.seed)
            self.synchronize()
            laps.end("reference")
            prepared, results, held, kept_by_call, first_call = self.prepare_and_launch(backend, case, check)
            laps.end("first call")
            accuracy = check.check_first(results)
            del results
            laps.end("check")
            if not accuracy.ok:
                return self._wrong(accuracy)
            if problem := check.fp8_problem(prepared, accuracy):
                return {"status": "wrong-kernel", "reason": problem, "accuracy": accuracy}
            memory, second = self.memory.measure_peak(check.launcher(prepared))
            laps.end("memory")
            accuracy = check.check_first(prepared.canonical(second))
            del second
            laps.end("check")
            if not accuracy.ok:
                return self._wrong(accuracy, "in the second launch: ")
            if case.has_backward and prepared.forward is not None:
                memory["memory_saved"] = self.memory.measure_held(prepared.forward)[0]
            kept = _kept_by_prepare(case, given, held, memory.get("memory_saved")) + kept_by_call
            memory.update({name: memory[name] + kept for name in ("memory_peak", "memory_driver") if name in memory})
            if check.dout_masked:
                check.drop_masked_dout()
                del prepared
                self.empty_cache()
                prepared = backend.prepare(case, given)
            self.empty_cache()
            laps.end("memory")
        # Tensors that stay alive during the launches are allocated before them. Allocated later, they would split the
        # large blocks in torch's cache that launches free and need again, and the cache would have to be emptied, which
        # costs standard attention half a second.
        original = inputs.make(case, str(self.device), policy.seed)
        laps.end("inputs")
        timing = None
        if timed:
            footprint = 2 * given.nbytes + memory["memory_peak"] + memory.get("memory_saved", 0)
            timed_launch = self.timed_launch(backend, case, given, prepared, footprint)
            timing = self.time(timed_launch, policy)
            if _is_cross_checked(case, backend.name, policy.cross_check):
                turns, notes = self.cross_check(timed_launch, policy)
                timing.measurements.update(turns)
                timing.notes += notes
            del timed_launch
            laps.end("timing")
        if changed := inputs.first_changed(given, original):
            return {"status": "wrong", "reason": f"it wrote to its input {changed}", "accuracy": accuracy}
        later = "after timing, " if timed else ""
        latency = stats.median(timing.measurements["time"].values) if timing else None
        if wrong := repeated_calls.find_wrong_call(self, check, prepared, latency, _bytes_of_results(given)):
            return self._wrong(*wrong)
        laps.end("repeats")
        renewal = reference.InputRenewal(case, given, prepared)
        checked = replace(prepared, launch=check.launcher(prepared))
        declared = signature(backend, case, self.device_info)
        traced = kernel_trace.trace_launch(self, case, declared, checked, timing, renewal.renew)
        laps.end("trace")
        others = self.state.other_processes(began)
        if traced.problem:
            shared = f"; other processes used this GPU meanwhile, which can look the same: {', '.join(others)}"
            reason = traced.problem + (shared if others else "")
            fields = {"reason": reason, "kernels": traced.kernels, "accuracy": accuracy, "others": others}
            return {"status": "wrong-kernel", **fields}
        results = prepared.canonical(traced.result)
        later_accuracy = check.check_renewed(renewal, original, results)
        if not later_accuracy.ok:
            return self._wrong(later_accuracy, f"{later}on inputs renewed in place: ")
        long_on_cpu = self.device.type == "cpu" and latency is not None and latency > kernel_trace.TOO_LONG_TO_REPEAT
        # Not earlier, since the screen's kernels are loaded into memory that counts where memory is measured
        if not long_on_cpu and (found := reference.find_wrong_rows(case, original, results["out"], declared)):
            return self._wrong(found, f"{later}in the rows furthest from another kernel's: ")
        del results
        traced = replace(traced, result=None)
        if latency is None or latency < kernel_trace.TOO_LONG_TO_REPEAT:
            renewal.restore()
            later_accuracy = check.check_restored(prepared.canonical(checked.launch()))
            if not later_accuracy.ok:
                return self._wrong(later_accuracy, f"{later}on the old inputs again: ")
            renewal.renew()
        laps.end("check")
        if timing is not None:
            timing.notes += kernel_trace.check_later_calls(self, prepared, timing)
        del prepared, checked, renewal, original
        is_hard_checked = not case.dropout_p and not long_on_cpu
        if is_hard_checked:
            hard = reference.check_hard_inputs(case, self.device, partial(backend.prepare, case))
            if not hard.ok:
                return self._wrong(hard, "on hard inputs: ")
        laps.end("hard inputs")
        check.notes += notes_on_data(case, is_hard_checked)
        if timing is None:
            return {"status": "ok", "accuracy": accuracy, "kernels": traced.kernels, "notes": tuple(check.notes)}
        measurements = {**timing.measurements, "first_call": Measurement("s", (first_call,)), **limits}
        measurements.update({name: Measurement("B", (value,)) for name, value in memory.items()})
        notes = [*check.notes, *timing.notes, *([traced.note] if traced.note else [])]
        return {
            "status": "ok",
            "measurements": {name: _round_to_7_digits(m) for name, m in measurements.items()},
            "accuracy": accuracy,
            "timer": timing.timer,
            "l2": timing.l2,
            "limits": timing.limits,
            "host_bound": timing.host_bound,
            "kernels": traced.kernels,
            "others": others,
            "ecc_errors": max(0, (self.state.ecc_errors() or 0) - errors) if errors is not None else 0,
            "notes": tuple(notes),
            "phases": laps.seconds,
        }

    def timed_launch(
        self, backend: Backend, case: Case, given: Inputs, prepared: Prepared, footprint: int
    ) -> TimedLaunch:
        """Return the cell's launch as the instruments take it; `footprint` is the memory of one more copy, in bytes."""

        def on_copies(n: int) -> Sequence[Any]:
            return [backend.prepare(case, inputs.clone(given)).launch for _ in range(n)]

        return TimedLaunch(prepared.launch, on_copies, flops.ideal_bytes(case), footprint)

    def prepare_and_launch(
        self, backend: Backend, case: Case, check: reference.ResultCheck
    ) -> tuple[Prepared, Mapping[str, Tensor], int, int, float]:
        """Prepare the backend and launch once.

        Return what was prepared, the launch's results, the bytes that `prepare` keeps allocated, those that the launch
        keeps besides its results, and the seconds that both took, compilation and tuning included.
        """
        seconds = 0.0

        def prepare() -> Prepared:
            nonlocal seconds
            began = time.perf_counter()
            ready = backend.prepare(case, check.inputs)
            self.synchronize()
            seconds = time.perf_counter() - began
            return ready

        self.fill_memory_with_nan(case)
        held, prepared = self.memory.measure_held(prepare)
        launch = check.launcher(prepared)
        self.fill_memory_with_nan(case)
        began = time.perf_counter()
        kept, raw = self.memory.measure_held(launch)
        seconds += time.perf_counter() - began
        return prepared, prepared.canonical(raw), held, max(0, kept - _bytes_of_tensors(raw)), seconds

    def fill_memory_with_nan(self, case: Case) -> None:
        """Fill the memory that the results will get with NaN, so that what a kernel leaves unwritten is seen.

        This relies on torch's CUDA allocator, which reuses freed blocks. Nothing is done on a CPU, where the operating
        system hands out large blocks as zeros.
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

    def _wrong(self, accuracy: Accuracy, when: str = "") -> dict[str, Any]:
        return {"status": "wrong", "reason": when + accuracy.problem(), "accuracy": accuracy}

    def recover(self) -> bool:
        """Free memory after a job, failed or not. Return False where the CUDA context or torch's state is broken."""
        gc.collect()
        if not self._gc_frozen:
            gc.freeze()  # imported modules stay: later collections skip them and take next to no time in a timed job
            self._gc_frozen = True
        try:
            self.synchronize()
            self.empty_cache()
        except Exception:
            return False
        return not self.broken

    def empty_cache(self) -> None:
        """Empty torch's memory cache on a GPU, where small tensors may have split blocks that large ones need."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def notes_on_data(case: Case, is_hard_checked: bool) -> tuple[str, ...]:
    """Return the notes on what the check of a case with such data tells, as sentences."""
    if case.data != "zeros":
        return ()
    only = "only the launch on hard inputs" if is_hard_checked else "nothing"
    return (f"data zeros: every right result is 0, so that {only} tells a kernel that writes zeros",)


def _bytes_of_tensors(raw: Any) -> int:
    """Return the bytes that the tensors in a launch's raw results occupy, each storage once."""
    import torch

    storages: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = -(-storage.nbytes() // ALLOCATED) * ALLOCATED
        for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
            visit(inner)

    visit(raw)
    return sum(storages.values())


def _bytes_of_results(given: Inputs) -> int:
    """Return about as many bytes as the results of a call have: those of q, and with a backward of all inputs."""
    return int(given.q.nbytes) if given.dout is None else given.nbytes


def _kept_by_prepare(case: Case, given: Inputs, held: int, saved: int | None) -> int:
    """Return the bytes that `prepare` keeps for itself, which count as memory of the cell.

    `held` is what stays allocated after `prepare`. Not counted are a copy of each input and, where only the backward is
    timed, what its forward saved (`saved`, bytes). 0 where that is not known.
    """
    if not case.has_forward:
        if saved is None:
            return 0
        held -= saved
    return max(0, held - given.nbytes)


def _round_to_7_digits(measurement: Measurement) -> Measurement:
    """Round samples to seven digits, more than any instrument resolves. This halves the size of run files.

    Bytes are counted, not measured, and stay exact.
    """
    if measurement.unit == "B":
        return measurement
    return Measurement(measurement.unit, tuple(float(f"{v:.7g}") for v in measurement.values))


def signature(backend: Backend, case: Case, device: Device) -> Signature:
    """Return the backend's signature of a case; one that allows any kernel where the backend has none."""
    return backend.signature(case, device) if hasattr(backend, "signature") else Signature()


def _is_cross_checked(case: Case, backend: str, share: float) -> bool:
    """Whether a cell is among the `share` of cells that are cross-checked. The same cells are chosen in every run."""
    digest = hashlib.sha256(f"{case.key}/{backend}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32
