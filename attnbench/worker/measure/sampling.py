"""How long one launch takes: an instrument gives samples, `collect` decides when there are enough.

An instrument runs its `before` (which makes L2 cold), then the launch, and reads the launch alone. This file has the
host clock for CPUs and simulated devices; events.py, graph.py and cupti.py have the three for GPUs.

Three things would spoil a figure, and each has its remedy. A kernel that is slow at first: the warm-up lasts until two
readings agree, and samples go on while they still fall. Too few samples: they go on until the 95 % interval of the
median is narrow. And power: a GPU at its cap lowers its clock within some 50 ms, so a figure would depend on how long
and after what it was taken. So samples come in bursts of at most `policy.burst_s` of work. A burst that ends with a
lower clock than it should have (the gauge of events.py) is thrown away, as nvbench does, and from then on pauses
between the bursts give the clock back. What the machine does without pauses is a metric of its own (`--sustained`,
energy.py). The figures behind this are in docs/measuring.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from attnbench.core import stats
from attnbench.core.policy import Policy

MAX_BATCH = 32  # launches queued at once; the driver's queue holds 1024 kernels
WARM_TOLERANCE = 0.02  # successive readings of a warm-up that has ended
MAX_WARMUP = 20  # times policy.warmup_s
REST_PER_WORK = 1.5  # seconds of pause for each of work
MAX_REST = 0.1  # seconds; after this a GPU held at its power cap has its clock back
MIN_CLOCK_RATIO = 0.985  # of the best clock seen; below, a burst was held down
MAX_DROPPED_BURSTS = 8  # bursts
MIN_BURSTS = 4  # of calls that are shorter than a burst
LONG_CALL = 0.015  # seconds a call; from here on MIN_LONG samples are enough, as each averages over a lot
MIN_SAMPLES_LONG = 6  # the least that has a 95 % interval
VERY_LONG_CALL, MIN_SAMPLES_VERY_LONG = 0.25, 3  # on an H200 the medians of three and of six differ by at most 0.8 %


class Timer(Protocol):
    """An instrument."""

    name: str
    before: Callable[[], Any]  # runs ahead of each sample, untimed

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Seconds of n launches, or of fewer where it can do fewer only at once."""

    def synchronize(self) -> None:
        """Waits until the device has nothing left to do."""


def do_nothing() -> None:
    """The `before` of a warm cache."""


class CpuTimer:
    """A host clock around the call. The clock and what comes before are injected: simulated devices bring their own."""

    name = "perf_counter"

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns, before: Callable[[], Any] = do_nothing) -> None:
        self.clock = clock
        self.before = before

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        values = []
        for _ in range(n):
            self.before()
            start = self.clock()
            result = launch()
            values.append((self.clock() - start) / 1e9)
            del result  # freeing is not the launch's work
        return values

    def synchronize(self) -> None:
        pass


def pause(worked: float) -> None:
    """A GPU's rest after `worked` seconds of work."""
    time.sleep(min(REST_PER_WORK * worked, MAX_REST))


class Pacer:
    """Judges the bursts of one cell by their clock, and pauses between them from the first one on that was held down.

    `clocks` grows by the clock at the end of each burst, and loses those of bursts that do not count; `best` is the
    highest seen before, in Hz. A call longer than `burst_s` is what it is once there are pauses, and after MAX_DROPPED
    bursts the machine is: then all count.
    """

    def __init__(self, clocks: list[float], best: float, burst_s: float) -> None:
        self._clocks = clocks
        self._best = best
        self._burst_s = burst_s
        self._hot = False
        self._dropped = 0
        self._tired = 0.0  # seconds of work that the next burst has to wait for

    def rest(self) -> None:
        """The pause before a burst, if one is due: after the last one nobody waits."""
        if self._tired:
            pause(self._tired)
        self._tired = 0.0

    def accepts(self, worked: float, calls: int) -> bool:
        """Whether a burst of `calls` that took `worked` seconds does."""
        fell = bool(self._clocks) and self._clocks[-1] < MIN_CLOCK_RATIO * max(self._best, *self._clocks)
        paused, self._hot = self._hot, self._hot or fell
        if self._hot:
            self._tired = math.inf if fell else worked
        long = paused and calls == 1 and worked > self._burst_s
        if not fell or long or self._dropped == MAX_DROPPED_BURSTS:
            return True
        self._dropped += 1
        self._clocks.pop()
        return False


def collect_samples(
    sample: Callable[[int], list[float]],
    policy: Policy,
    *,
    pacer: Pacer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[float]:
    """Samples in seconds, after a warm-up. `sample(n)` gives up to n; `pace` goes with each burst, and may reject it.

    Stops when the 95 % interval of the median lies within `policy.target` of it, or the time cap is reached; not
    before `policy.min_seconds` and four bursts, nor with fewer than `policy.min_samples` (6 where a call takes over
    15 ms, 3 over 250 ms), nor while samples still become faster, for which three times the cap is allowed. All
    samples of the bursts that count are kept, outliers included.
    """

    def batch(n: int) -> tuple[list[float], bool]:
        if pacer is None:
            return sample(n), True
        pacer.rest()
        started = clock()
        found = sample(n)
        return found, pacer.accepts(clock() - started, len(found))

    estimate, values = _warm_up(batch, policy, clock)
    least = (
        policy.min_samples
        if estimate < LONG_CALL
        else MIN_SAMPLES_LONG
        if estimate < VERY_LONG_CALL
        else MIN_SAMPLES_VERY_LONG
    )
    least = min(least, policy.min_samples)
    bursts = 0
    began = clock()
    while len(values) < policy.max_samples:
        size = _batch_size(estimate, policy.burst_s)
        found, counts = batch(min(size, policy.max_samples - len(values)))
        if not counts:
            continue
        estimate = stats.median(found)
        values += found
        bursts += 1
        if len(values) < least or (size > 1 and bursts < MIN_BURSTS):
            continue
        spent = clock() - began
        steady = spent >= policy.min_seconds and stats.relative_halfwidth(values) <= policy.target
        still_falling = stats.drift(values) < -WARM_TOLERANCE and spent < 3 * policy.max_seconds
        if (steady or spent >= policy.max_seconds) and not still_falling:
            break
    return values


def _warm_up(
    batch: Callable[[int], tuple[list[float], bool]], policy: Policy, clock: Callable[[], float]
) -> tuple[float, list[float]]:
    """An estimate of a call, and samples to keep: of calls that last as long as a warm-up, for they are dear."""
    began = clock()
    first, counts = batch(1)
    last = first[0]
    if last >= policy.warmup_s:
        return last, first if counts else []
    while True:
        estimate = stats.median(batch(_batch_size(last, policy.burst_s))[0])
        spent = clock() - began
        agreed = abs(estimate / last - 1) <= WARM_TOLERANCE if last else True
        if spent >= policy.warmup_s and (agreed or spent >= MAX_WARMUP * policy.warmup_s):
            return estimate, []
        last = estimate


def _batch_size(estimate: float, seconds: float) -> int:
    return max(1, min(MAX_BATCH, int(seconds / max(estimate, 1e-7))))
