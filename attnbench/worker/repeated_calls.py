"""Compares the results of calls that follow each other, as timed calls do.

A kernel may be wrong in one call of ten, or only where the next call begins at once: a counter that is not reset, a
wait that is missing. So after timing, a burst is launched as the timed ones were, and one without flushes or pauses
between the calls. All results are kept until the end, and none may differ from what is right.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Prepared
from attnbench.core.record import Accuracy
from attnbench.worker import environment
from attnbench.worker.instruments import Instruments
from attnbench.worker.measure.sampling import do_nothing
from attnbench.worker.reference import ResultCheck

if TYPE_CHECKING:
    from torch import Tensor

CALLS = 12  # of each burst, where time and memory allow
MAX_SECONDS = 0.04  # of the calls of a burst; there are two at least

Results = Mapping[str, "Tensor"]


def find_wrong_call(
    instruments: Instruments, check: ResultCheck, prepared: Prepared, latency: float | None, nbytes: int
) -> tuple[Accuracy, str] | None:
    """Return how wrong the first wrong call is, and which call it is, for the begin of a reason; None where none is.

    `latency` is the seconds of one call, None where it was not timed; `nbytes` the memory that one call adds. A result
    that has every bit of the first is right if that is. Of the others, as of a kernel that sums in no fixed order, the
    one furthest from the first is compared with the reference.
    """
    launch = check.launcher(prepared)
    seconds = latency or _seconds_of(instruments, launch)
    count = max(2, min(CALLS, int(MAX_SECONDS / seconds), _free_memory(instruments) // (2 * max(nbytes, 1))))
    bursts = [(do_nothing, "one after the other")]
    if instruments.timer.before is not do_nothing and count > 2:
        bursts.insert(0, (instruments.timer.before, "with the flush between"))
    first: Results = {}
    for before, how in bursts:
        kept = _kept_results(instruments, launch, prepared, before, count)
        for number, results in _to_compare(kept, first or kept[0], with_first=not first):
            if not (accuracy := check.check_restored(results)).ok:
                return accuracy, f"in call {number} of {count}, {how}: "
        first = first or kept[0]
    return None


def _to_compare(kept: Sequence[Results], first: Results, *, with_first: bool) -> list[tuple[int, Results]]:
    """Return which results are to be compared with the reference, each with the number of its call.

    These are the first of all, and of those whose bits differ from it the one that is furthest from it.
    """
    others = [
        (max(_distance(results[name], first[name]) for name in first), number)
        for number, results in enumerate(kept, start=1)
        if not all(_is_equal(results[name], first[name]) for name in first)
    ]
    numbers = [1] if with_first else []
    if others:
        numbers.append(max(others)[1])
    return [(number, kept[number - 1]) for number in numbers]


def _kept_results(
    instruments: Instruments, launch: Callable[[], Any], prepared: Prepared, before: Callable[[], Any], count: int
) -> list[Results]:
    """Return the results of the last `count` calls of a burst; copies, where calls share memory for their results."""
    timer, kept = instruments.timer, deque[Any](maxlen=count)
    ahead, timer.before = timer.before, before

    def keep(made: Callable[[], Any]) -> None:
        while len(kept) < count:
            timer.samples(lambda: kept.append(made()), count)

    try:
        keep(launch)
        named = [prepared.canonical(raw) for raw in kept]
        places = [tensor.data_ptr() for results in named for tensor in results.values()]
        if len({*places}) < len(places):
            kept.clear()
            keep(lambda: {name: tensor.clone() for name, tensor in prepared.canonical(launch()).items()})
            named = list(kept)
    finally:
        timer.before = ahead
    return named


def _distance(one: Tensor, other: Tensor) -> float:
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
    began = time.perf_counter()
    launch()
    instruments.synchronize()
    return time.perf_counter() - began


def _free_memory(instruments: Instruments) -> int:
    """Return the bytes that are free on the device."""
    import torch

    if instruments.device.type == "cuda":
        return torch.cuda.mem_get_info(instruments.device)[0]
    return environment.host_free() or 2**30
