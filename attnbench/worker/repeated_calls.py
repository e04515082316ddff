"""Compares the results of calls that follow each other, as timed calls do.

A kernel may be wrong in one call of ten, or only where the next call begins at once: a counter that is not reset, a
wait that is missing. So after timing a burst is launched without flushes or pauses between its calls. All its results
are kept until the end, and none may differ from what is right. Calls over 20 ms are too long for this.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter  # own names, which no kernel can replace
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Prepared
from attnbench.core.record import Accuracy
from attnbench.worker.instruments import Instruments
from attnbench.worker.measure.sampling import do_nothing
from attnbench.worker.reference import ResultCheck

if TYPE_CHECKING:
    from torch import Tensor

CALLS = 12  # where time and memory allow, which is up to 3 ms a call
MAX_SECONDS = 0.04  # of all calls
MAX_BYTES = 2**30  # of all results: to allocate more takes longer than the calls

Results = Mapping[str, "Tensor"]


def find_wrong_call(
    instruments: Instruments, check: ResultCheck, prepared: Prepared, latency: float | None, nbytes: int
) -> tuple[tuple[Accuracy, str] | None, bool]:
    """Return the first wrong call, and whether calls share the memory of their results.

    A wrong call is its accuracy, and which one it is; None where all are right. `latency` is the seconds of one call,
    None where it was not timed; `nbytes` are those of its results. A result that has every bit of the first is right if
    that is. Of the others, as of a kernel that sums in no fixed order, the one furthest from the first is compared with
    the reference.
    """
    launch = check.launcher(prepared)
    seconds = latency or _seconds_of(instruments, launch)
    count = min(CALLS, int(MAX_SECONDS / seconds), MAX_BYTES // max(nbytes, 1))
    if count < 2:
        return None, False
    forward = check.case.has_forward
    kept, shared = _kept_results(instruments, launch, prepared, count, forward)
    for number in _to_compare(kept):
        if not (accuracy := check.check_restored(kept[number])).ok:
            return (accuracy, f"in call {number + 1} of {count}, one after the other: "), shared
    return None, shared


def _to_compare(kept: Sequence[Results]) -> list[int]:
    """Return which results are to be compared with the reference: the first, and the one furthest from it, if any."""
    first = kept[0]
    others = [
        (max(distance(results[name], first[name]) for name in first), number)
        for number, results in enumerate(kept)
        if not all(_is_equal(results[name], first[name]) for name in first)
    ]
    return [0, max(others)[1]] if others else [0]


def _kept_results(
    instruments: Instruments, launch: Callable[[], Any], prepared: Prepared, count: int, forward: bool
) -> tuple[list[Results], bool]:
    """Return the results of the last `count` calls of a burst without flushes or pauses, and whether they share memory.

    They are copies where they do. Without the forward in a call, all have the output of one.
    """
    timer, kept = instruments.timer, deque[Any](maxlen=count)
    before, timer.before = timer.before, do_nothing

    def keep(made: Callable[[], Any]) -> None:
        while len(kept) < count:
            timer.samples(lambda: kept.append(made()), count)

    try:
        keep(launch)
        named = [prepared.canonical(raw) for raw in kept]
        made = [tensor for results in named for name, tensor in results.items() if forward or name != "out"]
        places = [tensor.data_ptr() for tensor in made]
        if shared := len({*places}) < len(places):
            kept.clear()
            keep(lambda: {name: tensor.clone() for name, tensor in prepared.canonical(launch()).items()})
            named = list(kept)
    finally:
        timer.before = before
    return named, shared


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors over the largest value, infinite where there is a NaN."""
    difference = float((one.float() - other.float()).abs().max() / other.float().abs().max().clamp_min(1e-30))
    return difference if math.isfinite(difference) else math.inf


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    import torch

    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    return torch.equal(one.view(bits), other.view(bits))


def _seconds_of(instruments: Instruments, launch: Callable[[], Any]) -> float:
    """Return the seconds of one launch by the host's clock."""
    instruments.synchronize()
    began = perf_counter()
    launch()
    instruments.synchronize()
    return perf_counter() - began
