"""Comparison of the results of successive calls, as timed calls are.

A kernel may be wrong in one call of ten, or only where the next call begins at once: by a counter that is not reset, or
a missing wait. After timing, a burst is therefore launched without flushes or pauses between its calls. All its results
are kept until the end, and all must be right. Calls over 20 ms are too long for this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from time import perf_counter  # bound here, so that no kernel can replace it
from typing import TYPE_CHECKING, Any

from attnbench.core.attributes import other_attributes
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import storages_read
from attnbench.worker.instruments import Instruments
from attnbench.worker.judging import CellJudge
from attnbench.worker.measure.sampling import do_nothing

if TYPE_CHECKING:
    from torch import Tensor

CALLS = 12  # most calls; time and memory allow as many for calls up to 3 ms
MAX_SECONDS = 0.04  # most seconds of all calls
MAX_BYTES = 2**30  # most bytes of all results; allocating more takes longer than the calls

Results = Mapping[str, "Tensor"]


def find_wrong_call(
    instruments: Instruments, judge: CellJudge, case: Case, prepared: Prepared, latency: float | None, nbytes: int
) -> tuple[tuple[Accuracy, str] | None, bool]:
    """Return the first wrong call, as (accuracy, name) or None, and whether calls share the memory of their results.

    `latency` is the seconds of one call, None where it was not timed; `nbytes` is the size of its results.
    """
    launch = judge.launcher(prepared)
    seconds = latency or _seconds_of(instruments, launch)
    by_time = int(MAX_SECONDS / seconds) if seconds else CALLS  # a coarse clock may give 0
    count = min(CALLS, by_time, MAX_BYTES // max(nbytes, 1))
    if count < 2:
        return None, False
    read = storages_read(judge.given, prepared)
    kept, shared = _kept_results(instruments, launch, prepared, count, case.has_forward, read)
    accuracy, number = judge.check_calls(kept)
    if accuracy.ok:
        return None, shared
    return (accuracy, f"in call {number + 1} of {count}, one after the other: "), shared


def _kept_results(
    instruments: Instruments,
    launch: Callable[[], Any],
    prepared: Prepared,
    count: int,
    forward: bool,
    read: Container[int],
) -> tuple[list[Results], bool]:
    """Return the results of the last `count` calls of a burst without flushes or pauses, and whether they share memory.

    Shared results are copied. Without the forward in a call, all have the output of one forward. The memory of inputs,
    at the addresses in `read`, does not count.
    """
    timer, kept = instruments.timer, deque[Any](maxlen=count)

    def keep(made: Callable[[], Any]) -> None:
        while len(kept) < count:
            timer.samples(lambda: kept.append(made()), count)

    with other_attributes(timer, before=do_nothing):
        keep(launch)
        named = [prepared.canonical(raw) for raw in kept]
        made = [tensor for results in named for name, tensor in results.items() if forward or name != "out"]
        places = [tensor.data_ptr() for tensor in made if tensor.untyped_storage().data_ptr() not in read]
        if shared := len({*places}) < len(places):
            kept.clear()
            keep(lambda: {name: tensor.clone() for name, tensor in prepared.canonical(launch()).items()})
            named = list(kept)
    return named, shared


def _seconds_of(instruments: Instruments, launch: Callable[[], Any]) -> float:
    """Return the seconds of one launch by the host's clock."""
    instruments.synchronize()
    began = perf_counter()
    launch()
    instruments.synchronize()
    return perf_counter() - began
