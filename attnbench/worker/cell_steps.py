"""One case on one backend and one device, measured and checked step by step.

measure_cell.py takes the steps in the order of cell.py; profile_call.py takes only some.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter  # bound here, so that no kernel can replace it
from typing import TYPE_CHECKING, Any, TypeVar

from attnbench.backends.shared.function import Function
from attnbench.core import flops, masks
from attnbench.core.backend import Inputs, Prepared, Signature, Unsupported
from attnbench.core.case import Case
from attnbench.core.layouts import as_slice
from attnbench.core.machine import Device
from attnbench.core.record import LEAVES, MORE, Accuracy, Approximation, Measurement
from attnbench.core.renewed_inputs import InputRenewal, storages_read
from attnbench.core.sizes import format_bytes
from attnbench.core.text import shortened
from attnbench.judge import count_pairs, inputs
from attnbench.worker import failures, kernel_trace, plan_time, repeated_calls, same_bits
from attnbench.worker.cell import Cell, Fields, notes_on_data
from attnbench.worker.instruments import TimedLaunch, Timing
from attnbench.worker.judging import CellJudge, judge_of
from attnbench.worker.measure.memory import CpuMemory, resident_bytes

if TYPE_CHECKING:
    from torch import Tensor

ALLOCATED = 512  # bytes; torch's CUDA allocator gives out multiples
LEAK = 2**20  # bytes that calls may leave allocated, in Python's objects and torch's tables
ONE_BACKWARD = (
    "only the first backward after a forward is right, and the pass bwd times the backward of one forward many times: "
    "keep what the forward saved as it is, or measure both with --pass fwd_bwd"
)
NAN_WITHOUT_KEYS = "its output is NaN for queries that see no key"
OVERFLOW = "scores there are beyond what exp holds in float32: subtract the maximum of each row from its scores"
SHARED = "its calls share the memory of their results: a later call overwrites what an earlier one returned"
UNSEEN = "its peak memory is unknown: it allocates memory outside of torch"
# Bytes that a CPU process may grow beyond what torch's allocations explain; more means memory outside of torch.
HIDDEN = 2**24
UNLIKE = 0.1  # share of the largest value; a larger difference means that results come from other inputs

T = TypeVar("T")


class CellSteps(Cell):
    """The steps of one cell on one device, and the values that they pass on: inputs, the prepared launch, and findings.

    Without `timed` no memory is measured, except for leaks of calls.
    """

    judge: CellJudge
    prepared: Prepared
    _first: Accuracy  # accuracy of the first launch
    _kept_by_first: int  # bytes that the first launch left allocated
    _seconds: float  # rough seconds of a launch; 0 where unknown
    _enqueue: float  # rough seconds of the host for a launch
    renewal: InputRenewal

    def make_inputs(self) -> Fields | None:
        """Make the inputs and the reference for them."""
        self.judge, refused = judge_of(self.instruments, self.case, self.policy.seed, self.backend)
        self._notes += [refused] if refused else []
        self.instruments.synchronize()
        self.laps.end("reference")
        return {"status": "failed", "reason": self.judge.flaw} if self.judge.flaw else None

    def launch_first(self) -> Fields | None:
        """Prepare the backend and launch once on hard inputs, if it has any; then release both.

        A kernel that is wrong here may be wrong on any inputs, which `launch_to_check` finds.
        """
        is_hard = self.judge.hard
        first_inputs = self.judge.hard_inputs() if is_hard else self.judge.to_check
        self.instruments.synchronize()
        self.laps.end("hard inputs")
        self._kept_by_first, self._first = self._measure_held(partial(self._launch_and_give_up, first_inputs))
        del first_inputs
        self.judge.forget_hard()
        self._notes += notes_on_data(self.case, is_hard)
        return None if is_hard or self._first.ok else self.wrong(self._first)

    def launch_to_check(self) -> Fields | None:
        """Prepare on the given inputs, measure a launch's memory, and check its results and the first launch's.

        Memory is measured before the instruments allocate any.
        """
        memory = self.instruments.memory
        held, self.prepared = self._measure_held(lambda: self._prepare(self.judge.to_check))
        launch = self.judge.launcher(self.prepared)
        found, kept, raw = memory.measure_peak(lambda: self._measure_seconds(launch), self.case)
        read = storages_read(self.judge.to_check, self.prepared)
        kept, results = kept - bytes_of_tensors(raw, read), bytes_of_tensors(raw, read, multiple=1)
        self.laps.end("memory")
        self.accuracy = self.judge.check_first(self.prepared.canonical(raw))
        del raw
        self.laps.end("check")
        if self.timed and self.case.has_backward and self.prepared.forward is not None:
            found["memory_saved"] = memory.measure_held(self.prepared.forward)[0]
        if leak := self._leak_of_a_call() if kept >= LEAK else 0:
            self.leak = f"{LEAVES}{format_bytes(leak)}{MORE}"
        kept = 0 if leak else max(0, kept) + max(0, self._kept_by_first)
        kept += self._kept_by_prepare(held, found.get("memory_saved"))
        self.memory = {name: value + (0 if name == "memory_saved" else kept) for name, value in found.items()}
        if self._allocates_unseen(results):
            self.memory["memory_peak"], self.unseen = self.memory.get("memory_driver", 0), True
            self._notes.append(UNSEEN)
            if leak := self._unseen_leak_of_a_call():
                self.leak = f"{LEAVES}{format_bytes(leak)}{MORE}"
        self.laps.end("memory")
        if not self.accuracy.ok:
            others = ", on the case's own inputs (it was right on hard inputs)" if self.judge.hard else ""
            when = f"in the second launch{others}: " if self._first.ok else ""
            changed = self.judge.first_changed()
            return self.wrong(self.accuracy, when, f"it wrote to its input {changed}" if changed else "")
        if problem := self.judge.fp8_problem(self.prepared, self.accuracy):
            return {"status": "wrong-kernel", "reason": problem, "accuracy": self.accuracy}
        if self._first.ok:
            return None
        return self.wrong(self._first, "on hard inputs: ", OVERFLOW if self._first.unwritten else "")

    def prepare_to_time(self) -> None:
        """Prepare the launch on a dense `dout`, where the `dout` of the checks was zero outside sampled rows.

        The cache of torch is emptied, because small tensors of the check may have split its blocks. Tensors that stay
        alive during timing are allocated here. Allocated later, they would split the large blocks that launches free
        and need again, and the cache would have to be emptied again, which costs standard attention half a second.
        """
        if self.judge.masked:
            self.judge.use_given()
            del self.prepared
            self.instruments.memory.empty_cache()
            self.prepared = self.backend.prepare(self.case, self.judge.given)
        self.instruments.memory.empty_cache()
        self.laps.end("memory")
        self.judge.keep_original()
        self.laps.end("reference")

    def time_beside(self, launch: TimedLaunch, timing: Timing) -> None:
        if _is_cross_checked(self.case, self.backend.name, self.policy.cross_check):
            turns, notes = self.instruments.cross_check(launch, self.policy)
            timing.measurements.update(turns)
            timing.notes += notes

    def first_changed(self) -> str | None:
        return self.judge.first_changed()

    def time_plan(self) -> Fields | None:
        """Time the plan of a backend that has one, and measure its memory.

        The later checks are of launches with a rebuilt plan.
        """
        if self.timing is not None and self.prepared.plan is not None:
            self.timing.measurements["plan"], note = plan_time.time_plan(self.instruments, self.prepared.plan)
            self.timing.notes += [note] if note else []
            found, _, _ = self.instruments.memory.measure_peak(self.prepared.plan, self.case)
            self.memory["plan_memory"] = found["memory_peak"]
            self.laps.end("plan")
        return None

    def trace_launch(self) -> kernel_trace.TraceFindings:
        """Change the inputs in place, and trace one launch on them; time some further long calls."""
        self.renewal = InputRenewal(self.case, self.judge.given, self.prepared, self.judge.renewal_seed)
        found = kernel_trace.trace_launch(
            self.instruments, self.case, self.signature, self._checked, self.timing, self.renewal.renew
        )
        if self.timing and not found.problem:
            self.timing.notes += kernel_trace.slow_at_first(self.instruments, self._checked.launch, self.timing)
        return found

    def check_renewed_inputs(self) -> Fields | None:
        """Check the results of the traced launch, and screen all rows where only a sample was checked.

        The screen comes this late because its kernels are loaded into memory that would count as the cell's.
        """
        results = self.prepared.canonical(self.traced.result)
        self.traced = replace(self.traced, result=None)
        accuracy = self.judge.check_renewed(self.renewal, results)
        if not accuracy.ok:
            return self.wrong(accuracy, f"{self.later}on inputs renewed in place: ")
        if not self._is_long_on_cpu and (found := self.judge.find_wrong_rows(self.renewal, results, self.signature)):
            return self.wrong(found, f"{self.later}in the rows furthest from another kernel's: ")
        self.laps.end("check")
        return None

    def check_restored_inputs(self) -> Fields | None:
        """Restore the inputs, launch again, and check, unless launches are long.

        A kernel that returns an earlier result fails here or on the renewed inputs.
        """
        if self.latency is None or self.latency < kernel_trace.TOO_LONG_TO_REPEAT:
            self.renewal.restore()
            accuracy = self.judge.check_restored(self.prepared.canonical(self._checked.launch()))
            if not accuracy.ok:
                return self.wrong(accuracy, f"{self.later}on the original inputs again: ")
            if self.timing and self.instruments.device.type == "cpu":
                self.timing.measurements.update(
                    kernel_trace.slow_on_new_inputs(
                        self.instruments, self.prepared, self.renewal.renew, self._other_renewal
                    )
                )
        self.laps.end("check")
        return None

    def check_repeated_calls(self) -> Fields | None:
        """Compare the results of successive calls on the given inputs without pauses."""
        self.renewal.restore()
        nbytes = _bytes_of_results(self.judge.given)
        wrong, shared = repeated_calls.find_wrong_call(
            self.instruments, self.judge, self.case, self.prepared, self.latency, nbytes
        )
        if shared and isinstance(self.backend, Function):
            self._notes.append(SHARED)
        self.laps.end("repeats")
        return self.wrong(*wrong) if wrong else None

    def check_strides_of_dout(self) -> Fields | None:
        """Check that gradients are the same for a dense dout and for one of the same values and other strides."""
        if (dout := self.judge.given.dout) is None:
            return None
        others = {
            "are 0, as in out.sum().backward()": dout.new_ones(()).expand_as(dout),
            "are 0 over the batch": dout[:1].expand_as(dout),
            "are 0 over the sequence": dout[:, :1].expand_as(dout),
            "put heads first, as a slice of a larger tensor": as_slice(dout.transpose(1, 2), 0, 0, 1, 8).transpose(
                1, 2
            ),
        }
        for how, other in others.items():
            dense, strided = (self._results_for(of) for of in (other.contiguous(), other))
            for name, far in self.judge.distances(strided, dense).items():
                if far > UNLIKE:
                    reason = f"{name} is off by {far:.0%} of its largest value where the strides of dout {how}"
                    return {"status": "wrong", "reason": reason, "accuracy": self.accuracy}
        self.laps.end("check")
        return None

    def compare_bits(self) -> None:
        device: Device = self.instruments.device_info
        try:
            self.bitwise = same_bits.compare(
                self.backend, self.case, self.judge.given, self._checked, device, self.latency or 0.0
            )
        except Exception as error:
            self._notes.append(f"bits were not compared: {failures.reason(error, '')}")
        self.laps.end("bits")

    def _results_for(self, dout: Tensor) -> dict[str, Tensor]:
        prepared = self._prepare(self.judge.given.with_values({"dout": dout}))
        return {name: t.clone() for name, t in prepared.canonical(self.judge.launcher(prepared)()).items()}

    def counts(self) -> dict[str, Measurement]:
        found = {}
        if masks.is_own(self.case.mask):
            found["pairs"] = Measurement("", (count_pairs(self.case, self.instruments.device),))
        if self.prepared.pairs is not None:
            found["pairs_computed"] = Measurement("", (self.prepared.pairs(),))
        return found

    @property
    def approximation(self) -> Approximation | None:
        return self.judge.approximation

    @property
    def notes(self) -> list[str]:
        return [*self.judge.notes, *super().notes]

    @property
    def signature(self) -> Signature:
        """The backend's declared kernels for the case; any kernel may run where it declares none."""
        device: Device = self.instruments.device_info
        return (
            self.backend.signature(self.case, device) if hasattr(self.backend, "signature") else Signature(float32=True)
        )

    @property
    def _checked(self) -> Prepared:
        return replace(self.prepared, launch=self.judge.launcher(self.prepared))

    @property
    def _is_long_on_cpu(self) -> bool:
        on_cpu = self.instruments.device.type == "cpu"
        return on_cpu and self.latency is not None and self.latency > kernel_trace.TOO_LONG_TO_REPEAT

    @cached_property
    def _other_renewal(self) -> Callable[[], None]:
        """Return a function that writes other values to tensors that no call reads."""
        copies = inputs.clone(self.judge.given)
        return InputRenewal(self.case, copies, replace(self.prepared, reads={}), self.judge.renewal_seed).renew

    def _prepare(self, given: Inputs) -> Prepared:
        ready = self.backend.prepare(self.case, given)
        if not isinstance(ready, Prepared):
            raise TypeError(f"{self.backend.name}.prepare() returned {shortened(repr(ready))}, not a Prepared")
        self.instruments.synchronize()
        return ready

    def _measure_held(self, make: Callable[[], T]) -> tuple[int, T]:
        """Return the bytes held by the result of `make` (0 without timing), and the result."""
        return self.instruments.memory.measure_held(make) if self.timed else (0, make())

    def _measure_seconds(self, launch: Callable[[], T]) -> T:
        """Launch once and return its result; note the seconds if no other worker of the run uses the device."""
        began = perf_counter()
        result = launch()
        self._enqueue = perf_counter() - began
        self.instruments.synchronize()
        self._seconds = 0.0 if self.instruments.memory.is_shared else perf_counter() - began
        return result

    def _launch_and_give_up(self, first_inputs: Inputs) -> Accuracy:
        """Prepare and launch once, both timed, check the result, drop all of it, and return the accuracy.

        Memory that is still allocated after that is kept by a library. The memory of the results is filled with NaN
        before, so that values that a kernel does not write are found.
        """
        self.instruments.memory.fill_with_nan(self.case)
        began = perf_counter()
        prepared = self._prepare(first_inputs)
        self.first_call = perf_counter() - began
        launch = self.judge.launcher(prepared)
        self.instruments.memory.fill_with_nan(self.case)
        began = perf_counter()
        raw = launch()
        self.instruments.synchronize()
        self.first_call += perf_counter() - began
        self.laps.end("first call")
        results: Any = prepared.canonical(raw)
        if not isinstance(results, Mapping):
            given = shortened(repr(results))
            raise TypeError(f"{self.backend.name}: canonical returned {given}, not a mapping of results by name")
        accuracy = (self.judge.check_hard if self.judge.hard else self.judge.check_first)(results)
        if not accuracy.ok and isinstance(self.backend, Function):
            self._refuse_rows_without_keys(results["out"])
        del prepared, launch, raw, results
        gc.collect()
        self.laps.end("hard inputs" if self.judge.hard else "check")
        return accuracy

    def _kept_by_prepare(self, held: int, saved: int | None) -> int:
        """Return the part of the `held` bytes of `prepare` that counts as the cell's memory; 0 where unknown.

        A copy of each input and, where only the backward is timed, the `saved` bytes of its forward do not count.
        """
        if not self.case.has_forward:
            if saved is None:
                return 0
            held -= saved
        return max(0, held - self.judge.given.nbytes)

    def timed_launch(self) -> TimedLaunch:
        def on_copies(n: int) -> Sequence[Any]:
            return [self.backend.prepare(self.case, inputs.clone(self.judge.given)).launch for _ in range(n)]

        footprint = 2 * self.judge.given.nbytes + self.memory["memory_peak"] + self.memory.get("memory_saved", 0)
        launch, nbytes = self.prepared.launch, flops.ideal_bytes(self.case)
        return TimedLaunch(launch, on_copies, nbytes, footprint, self._seconds, self._enqueue)

    def _allocates_unseen(self, results: int) -> bool:
        """Return whether a call on a CPU takes memory unseen by torch's profiler, for example in a thread or in numpy.

        `results` is the number of bytes of its results.
        """
        memory = self.instruments.memory
        if not isinstance(memory, CpuMemory):
            return False
        peak, grown = self.memory["memory_peak"], self.memory.get("memory_driver", 0)
        return grown > max(2 * peak, memory.given_out) + HIDDEN or peak < results or memory.in_other_threads

    def _leak_of_a_call(self) -> int:
        """Return the bytes that calls leave allocated after their results are freed; 0 where one of two leaves none."""

        def call() -> None:
            self.judge.launcher(self.prepared)()

        left = min(self.instruments.memory.measure_held(call)[0] for _ in range(2))
        return left if left >= LEAK else 0

    def _unseen_leak_of_a_call(self) -> int:
        """Return the bytes by which calls make this process on a CPU grow; 0 where one of four adds less than LEAK.

        Python may keep freed memory for the next call, so that only calls that all add memory leak.
        """
        left = []
        for _ in range(4):
            before = resident_bytes()
            self.judge.launcher(self.prepared)()
            gc.collect()
            left.append((resident_bytes() or 0) - (before or 0))
            if left[-1] < LEAK:
                return 0
        return min(left)

    def what_to_do(self) -> str:
        return self._in_other_order() or self._with_one_backward()

    def _refuse_rows_without_keys(self, out: Tensor) -> None:
        """Raise Unsupported where a person's function gives NaN only for queries that see no key.

        A softmax over no key is 0/0. A function without a defined output for it does not support the case, as torch's
        SDPA does not.
        """
        s, empty = self.case.shape, self.case.shape.seqlen_q - self.case.shape.seqlen_k
        if self.case.causal and empty > 0 and out.shape[1] == s.seqlen_q:
            rows = out.isnan().flatten(2).transpose(0, 1).flatten(1)
            if bool(rows[:empty].all()) and not bool(rows[empty:].any()):
                raise Unsupported(NAN_WITHOUT_KEYS)

    def _with_one_backward(self) -> str:
        """Return the remedy where the first backward after a forward is right, and the next is not; else ""."""
        if self.case.direction != "bwd":
            return ""
        try:
            judge = self.judge.again()
            for _ in range(2):
                prepared = self.backend.prepare(self.case, judge.to_check)
                try:
                    if not judge.check_first(prepared.canonical(prepared.launch()), trial=True).ok:
                        return ""
                except RuntimeError:  # torch.compile refuses to keep a graph
                    prepared = self.backend.prepare(replace(self.case, direction="fwd_bwd"), judge.to_check)
                    results = prepared.canonical(prepared.launch())
                    return ONE_BACKWARD if judge.check_first(results, trial=True).ok else ""
                with contextlib.suppress(Exception):
                    if judge.check_first(prepared.canonical(prepared.launch()), trial=True).ok:
                        return ""
        except Exception:
            return ""
        return ONE_BACKWARD

    def _in_other_order(self) -> str:
        """Return the remedy where a person's function is right with its dimensions in another order; else ""."""
        if not isinstance(self.backend, Function):
            return ""
        own: Accuracy | None = getattr(self, "accuracy", None)
        if own and own.ok and self._first.ok:  # it is right on these inputs in its own order
            return ""
        other, todo = self.backend.in_other_order()
        try:
            judge = self.judge.again()
            on_hard = judge.hard and not (own and not own.ok)  # the other order must be right where this one is not
            prepared = other.prepare(self.case, judge.hard_inputs() if on_hard else judge.to_check)
            check = judge.check_hard if on_hard else judge.check_first
            is_right = check(prepared.canonical(prepared.launch()), trial=True).ok
        except Exception:
            return ""
        return todo if is_right else ""


def bytes_of_tensors(raw: Any, read: Container[int] = (), multiple: int = ALLOCATED) -> int:
    """Return the bytes of the tensors in a launch's raw results, each storage once, rounded up to `multiple`.

    Storages of inputs, whose addresses are in `read`, do not count.
    """
    import torch

    storages: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = -(-storage.nbytes() // multiple) * multiple
        for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
            visit(inner)

    visit(raw)
    return sum(nbytes for address, nbytes in storages.items() if address not in read)


def _bytes_of_results(given: Inputs) -> int:
    """Return the rough bytes of a call's results: as many as q has, or with a backward as all inputs have."""
    states = 0 if given.state is None else given.state.nbytes
    return int(given.q.nbytes) + states if given.dout is None else given.nbytes


def _is_cross_checked(case: Case, backend: str, share: float) -> bool:
    """Return whether a cell is in the `share` of cross-checked cells, which are the same in every run."""
    digest = hashlib.sha256(f"{case.key}/{backend}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32
