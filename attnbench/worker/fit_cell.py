"""Whether one cell fits in memory and is right there, for `attnbench capacity`: no second copy of its inputs.

Inputs are made in the order of dimensions that the backend takes, so that `prepare` has nothing to copy.

The steps: inputs; the reference, which then waits in the host's memory; a launch; a launch whose memory and seconds are
measured, and whose results are compared with the reference once the inputs are freed. So the check needs less memory
than the call, and where it fails for want of memory all the same, the record says that it was the check. dout is zero
outside the sampled rows (judge), also where it is timed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter  # own names, which no kernel can replace
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Backend, Inputs
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import NO_ROOM_TO_CHECK, Accuracy, Measurement, fit_measurements
from attnbench.judge import ResultCheck, in_parts, inputs
from attnbench.worker import failures

if TYPE_CHECKING:
    from attnbench.worker.instruments import Instruments

NOT_FILLED = "the memory of the results was not filled with NaN before the call: no room"


class NoRoomToCheckError(Exception):
    """Raised where the check, and not the call, ran out of memory."""


def fit(instruments: Instruments, backend: Backend, case: Case, policy: Policy, memory: int | None) -> dict[str, Any]:
    """Return the fields of the record of one cell. Raises what the library raises, out of memory too.

    On a GPU torch's allocator gives out at most `memory` bytes for the call, its inputs included, and what there is for
    the check; on a CPU the worker has set that limit for both.
    """
    if not getattr(backend, "exact", True):
        return {"status": "skipped", "reason": "approximates attention; capacity checks exact attention only"}
    of_memory, device = instruments.memory, str(instruments.device)
    of_memory.empty_cache()
    given = in_order_of(backend, case, inputs.make(case, device, policy.seed))
    nbytes = given.nbytes
    with of_the_check():
        check = ResultCheck(case, given, policy.seed, lean=True)
        check.move_reference("cpu")
    before = checksums(given)
    call = [0.0]
    with at_most(instruments, memory, nbytes), of_memory.job_window():
        kept, prepared = of_memory.measure_held(partial(backend.prepare, case, given))
        prepared.launch()  # compiles and tunes, which may take memory of its own
        instruments.synchronize()

        launch = partial(timed, instruments, prepared.launch, call)
        notes: tuple[str, ...] = ()
        try:
            found, _, raw = of_memory.measure_peak(launch, case)
        except Exception as error:
            if not failures.is_out_of_memory(error):
                raise
            notes = (NOT_FILLED,)
        if notes:
            gc.collect()
            found, _, raw = of_memory.measure_peak(launch, case, fill=False)
    results = {name: value.detach() for name, value in prepared.canonical(raw).items()}
    changed = next((name for name, total in checksums(given).items() if total != before[name]), None)
    fp8 = prepared if case.dtype == "fp8" else None
    del prepared, launch, raw, given, check.inputs
    gc.collect()
    of_memory.empty_cache()
    with of_the_check():
        check.move_reference(device)
        accuracy = check.check_first(results)
    measured = fit_measurements(call[0], nbytes, {name: kept + beside for name, beside in found.items()})
    record = fields(accuracy, changed, (*check.notes, *notes), measured)
    if record["status"] == "ok" and fp8 is not None and (problem := check.fp8_problem(fp8, accuracy)):
        return {**record, "status": "wrong-kernel", "reason": problem}
    return record


def fields(
    accuracy: Accuracy, changed: str | None, notes: Sequence[str], measurements: Mapping[str, Measurement]
) -> dict[str, Any]:
    """Return the fields of the record of a call that was made; `changed` is the name of an input that it wrote to."""
    record = {"accuracy": accuracy, "notes": tuple(notes), "measurements": measurements}
    if not accuracy.ok:
        return {**record, "status": "wrong", "reason": accuracy.problem()}
    if changed:
        return {**record, "status": "wrong", "reason": f"it wrote to its input {changed}"}
    return {**record, "status": "ok"}


def in_order_of(backend: Backend, case: Case, given: Inputs) -> Inputs:
    """Return the inputs of a dense batch in the order of dimensions that the backend takes; others as they are."""
    takes = getattr(backend, "on_one", backend) if case.ranks == 1 else backend  # on one rank its kernel alone
    is_dense = not (case.is_ragged or case.is_paged)
    if is_dense and case.layout == "native" and getattr(takes, "order", "bshd") == "bhsd":
        for name in [name for name, t in given.values.items() if t.dim() == 4]:  # in turn: one is there twice at most
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
    """Raise NoRoomToCheckError where what is in the block runs out of memory."""
    try:
        yield
    except Exception as error:
        if not failures.is_out_of_memory(error):
            raise
        raise NoRoomToCheckError(NO_ROOM_TO_CHECK) from None


@contextmanager
def at_most(instruments: Instruments, memory: int | None, inputs: int) -> Iterator[None]:
    """Let torch's allocator of a GPU give out at most `memory` bytes for a call and the bytes of its `inputs`.

    What it holds beside those inputs, for instruments and matrix products, does not count. None: all there is.
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
    """Return a sum of the bits of each input, which a kernel that writes to it changes."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = {name: t.view(integers[t.dtype.itemsize]) for name, t in given.values.items()}
    return {name: sum(int(part.sum(dtype=torch.int64)) for part in in_parts(t)) for name, t in bits.items()}
