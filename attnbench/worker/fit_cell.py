"""The test of `attnbench capacity`: whether one cell fits in memory and is right, without a second copy of its inputs.

`fit` has the steps, LeanCell their parts for a case on one device, and ranks/lean_ranks.py for one of several ranks.
Inputs are made in the order of dimensions that the backend takes, so that `prepare` has nothing to copy.

The steps are: inputs; the reference, which then waits in the host's memory; a launch on inputs that are changed in
place, so that a kernel that returns earlier results is wrong in the next launch; a launch whose memory and seconds are
measured, and whose results are compared with the reference after the inputs are freed. The check then needs less memory
than the call; where it nevertheless lacks memory, the record says that it was the check. dout is zero outside the
sampled rows (judge/), also in the timed launch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter  # by name: a kernel that replaces time.perf_counter does not change it here
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Backend, Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import LEAVES, MORE, NO_ROOM_TO_CHECK, Accuracy, fit_measurements
from attnbench.core.renewed_inputs import InputRenewal
from attnbench.core.sizes import format_bytes
from attnbench.judge import ResultCheck, in_parts, inputs
from attnbench.worker import failures
from attnbench.worker.cell import Fields
from attnbench.worker.cell_steps import LEAK, bytes_of_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.worker.instruments import Instruments

NOT_FILLED = "the memory of the results was not filled with NaN before the call: no room"


class NoRoomToCheckError(Exception):
    """The check, and not the call, ran out of memory."""


class LeanCell:
    """One case on one device, with the least memory beside the call's own, for `fit`."""

    given: Inputs

    def __init__(self, instruments: Instruments, backend: Backend, case: Case, policy: Policy) -> None:
        self.instruments, self.backend, self.case, self.policy = instruments, backend, case, policy
        self.notes: list[str] = []  # sentences on missing checks and measurements

    def make_inputs(self) -> Fields | None:
        """Make the inputs, and the reference in the host's memory; return a record's fields if they end the cell."""
        device, seed = str(self.instruments.device), self.policy.seed
        self.given = in_order_of(self.backend, self.case, inputs.make(self.case, device, seed))
        self._check = ResultCheck(self.case, self.given, seed, lean=True)
        self._check.move_reference("cpu")
        return None

    def forget_inputs(self) -> None:
        """Free the inputs."""
        del self.given, self._check.inputs

    def measure_launch(self, launch: Callable[[], Any]) -> tuple[dict[str, int], Any]:
        """Launch once, with the memory of the results filled with NaN if there is room. Return its memory and result.

        The memory is a mapping of names to bytes.
        """
        memory, filled = self.instruments.memory, True
        try:
            found, held, raw = memory.measure_peak(launch, self.case)
        except Exception as error:
            if not failures.is_out_of_memory(error):
                raise
            filled = False
        if not filled:
            self.notes.append(NOT_FILLED)
            gc.collect()
            found, held, raw = memory.measure_peak(launch, self.case, fill=False)
        if leak := self._leak(launch, held - bytes_of_tensors(raw)):
            self.notes.append(f"{LEAVES}{format_bytes(leak)}{MORE}")
        return found, raw

    def _leak(self, launch: Callable[[], Any], left: int) -> int:
        """Return the bytes that calls leave allocated, after one call left `left`; 0 unless two more leave some too."""
        if left < LEAK:
            return 0

        def call() -> None:
            launch()

        try:
            left = min(left, *(self.instruments.memory.measure_held(call)[0] for _ in range(2)))
        except Exception as error:
            if not failures.is_out_of_memory(error):
                raise
        return left if left >= LEAK else 0

    def check(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of the launch."""
        self._check.move_reference(str(self.instruments.device))
        accuracy = self._check.check_first(results)
        self.notes[:0] = self._check.notes
        return accuracy

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        """Return the sign that the launch of an fp8 cell does not compute in fp8; None without one."""
        return self._check.fp8_problem(prepared, accuracy)

    def all(self, value: Any) -> list[Any]:
        """Return the value of each rank."""
        return [value]


def fit(
    instruments: Instruments,
    backend: Backend,
    case: Case,
    policy: Policy,
    memory: int | None,
    kind: type[LeanCell] = LeanCell,
) -> Fields:
    """Return the record's fields for one cell. Raises the library's errors, out of memory included.

    On a GPU torch's allocator gives out at most `memory` bytes for the call with its inputs, and any amount for the
    check; on a CPU the worker has set the limit for both. All ranks call this.
    """
    if not getattr(backend, "exact", True):
        return {"status": "skipped", "reason": "approximates attention; capacity checks exact attention only"}
    of_memory = instruments.memory
    of_memory.empty_cache()
    with of_the_check():
        cell = kind(instruments, backend, case, policy)
        if flawed := cell.make_inputs():
            return flawed
    before, nbytes = checksums(cell.given), cell.given.nbytes
    call = [0.0]
    with at_most(instruments, memory, nbytes), of_memory.job_window():
        kept, prepared = of_memory.measure_held(partial(backend.prepare, case, cell.given))
        renewal = InputRenewal(case, cell.given, prepared, policy.seed)
        renewal.renew()
        prepared.launch()  # compilation and tuning may take further memory
        instruments.synchronize()
        renewal.restore()
        del renewal
        used, raw = cell.measure_launch(partial(timed, instruments, prepared.launch, call))
    results = {name: value.detach() for name, value in prepared.canonical(raw).items()}
    changed = [name for name, total in checksums(cell.given).items() if total != before[name]]
    fp8 = prepared if case.dtype == "fp8" else None
    del prepared, raw
    cell.forget_inputs()
    gc.collect()
    of_memory.empty_cache()
    with of_the_check():
        accuracy = cell.check(results)
    most = {name: max(cell.all(kept + beside)) for name, beside in used.items()}
    measured = fit_measurements(max(cell.all(call[0])), nbytes, most)
    record: Fields = {"accuracy": accuracy, "notes": tuple(cell.notes), "measurements": measured}
    changed = [name for names in cell.all(changed) for name in names]
    if not accuracy.ok:
        return {**record, "status": "wrong", "reason": accuracy.problem()}
    if changed:
        return {**record, "status": "wrong", "reason": f"it wrote to its input {changed[0]}"}
    if fp8 is not None and (problem := cell.fp8_problem(fp8, accuracy)):
        return {**record, "status": "wrong-kernel", "reason": problem}
    return {**record, "status": "ok"}


def in_order_of(backend: Backend, case: Case, given: Inputs) -> Inputs:
    """Return the inputs of a dense batch in the order of dimensions that the backend takes; other inputs unchanged."""
    takes = getattr(backend, "on_one", backend) if case.ranks == 1 else backend  # on one rank only its kernel runs
    is_dense = not (case.is_ragged or case.is_paged)
    if is_dense and case.layout == "native" and getattr(takes, "order", "bshd") == "bhsd":
        for name in [name for name, t in given.values.items() if t.dim() == 4]:  # in turn, one copy at a time
            given = given.with_values({name: given.values[name].transpose(1, 2).contiguous().transpose(1, 2)})
    return given


def timed(instruments: Instruments, launch: Callable[[], Any], call: list[float]) -> Any:
    """Return the result of a launch; `call` gets its seconds."""
    began = perf_counter()
    result = launch()
    instruments.synchronize()
    call[0] = perf_counter() - began
    return result


@contextmanager
def of_the_check() -> Iterator[None]:
    """Raise NoRoomToCheckError where memory runs out in the block."""
    try:
        yield
    except Exception as error:
        if not failures.is_out_of_memory(error):
            raise
        raise NoRoomToCheckError(NO_ROOM_TO_CHECK) from None


@contextmanager
def at_most(instruments: Instruments, memory: int | None, inputs: int) -> Iterator[None]:
    """Let torch's allocator of a GPU give out at most `memory` bytes for a call and the bytes of its `inputs`.

    Its other memory, for instruments and matrix products, does not count. None sets no limit.
    """
    import torch

    instruments.memory.empty_cache()
    if memory is None or instruments.device.type != "cuda":
        yield
        return
    beside = torch.cuda.memory_reserved(instruments.device) - inputs
    total = torch.cuda.get_device_properties(instruments.device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (beside + memory) / total), instruments.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, instruments.device)


def checksums(given: Inputs) -> dict[str, int]:
    """Return a sum of the bits of each input, which changes where a kernel writes to it."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = {name: t.view(integers[t.dtype.itemsize]) for name, t in given.values.items()}
    return {name: sum(int(part.sum(dtype=torch.int64)) for part in in_parts(t)) for name, t in bits.items()}
