"""How long one launch takes: a timer gives samples, `collect` decides when there are enough.

On a GPU a sample is the span between two CUDA events around the launch. Two things would spoil it. The host may be
slower than the device, and its latency would be timed: so a spinning kernel is queued before each batch of samples,
long enough that the host stays ahead to the batch's end. The last call may have left operands in L2: so a buffer of
twice its size is written before each sample (nvbench's "cold" measurement does both: nvbench/detail/measure_cold.cuh).
The events' own gap, 1 to 3 microseconds that belong to the launch, is included. On a CPU a sample is perf_counter_ns
around the call, with the last-level cache overwritten before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from attnbench import stats
from attnbench.types import Policy

if TYPE_CHECKING:
    import torch

MIN_FLUSH = 64 * 2**20  # bytes; where the device does not say how large its L2 is
BATCH_SECONDS = 0.05
MAX_BATCH = 32  # launches queued behind one spin; the driver's queue holds 1024 kernels
MAX_SPIN = 0.05
MAX_TRIES = 8  # to keep the host ahead; its pace is learnt at each


class Timer(Protocol):
    """An instrument."""

    name: str
    host_bound: bool  # some samples hold the host's latency, since the device waited for it

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Seconds of n launches, each with a cold cache."""

    def synchronize(self) -> None:
        """Waits until the device has nothing left to do."""


class CpuTimer:
    """A host clock around the call. The clock and the flush are injected: simulated devices bring their own."""

    name = "perf_counter"
    host_bound = False

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns, flush: Callable[[], Any] | None = None) -> None:
        self.clock = clock
        self.flush = flush

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        values = []
        for _ in range(n):
            if self.flush:
                self.flush()
            start = self.clock()
            result = launch()
            values.append((self.clock() - start) / 1e9)
            del result  # freeing is not the launch's work
        return values

    def synchronize(self) -> None:
        pass


class CudaTimer:
    """CUDA events, a cold L2 and no launch latency, on the current device and stream."""

    name = "events"
    host_bound = False

    def __init__(self, device: torch.device, l2_bytes: int) -> None:
        import torch

        self._cuda = torch.cuda
        self._buffer = torch.empty(max(2 * l2_bytes, MIN_FLUSH), dtype=torch.int8, device=device)
        self._sample_seconds = 0.0
        self._host_seconds = 100e-6  # what enqueuing one sample costs the host; learnt as we go
        self._spin_hz = self._rate_of(lambda: self._cuda._sleep(2_000_000)) * 2_000_000
        self._flush_seconds = 1 / self._rate_of(self._buffer.zero_)

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Seconds of n launches, or of fewer where the host can keep ahead of fewer only."""
        n = max(1, min(n, int(MAX_SPIN / (1.5 * self._host_seconds))))
        for _ in range(MAX_TRIES):
            values, caught_up = self._batch(launch, n)
            if not caught_up:
                return values
            n = max(1, n // 2)  # the device waited for the host, so these samples hold its latency: not used
        self.host_bound = True
        return values

    def _batch(self, launch: Callable[[], Any], n: int) -> tuple[list[float], bool]:
        """Seconds of n launches behind one spin, and whether the device caught up with the host."""
        cuda = self._cuda
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(n)]
        behind = 1.5 * self._host_seconds - 0.8 * (self._flush_seconds + self._sample_seconds)  # a sample, at worst
        cuda.synchronize()
        cuda._sleep(int(min(4 * self._host_seconds + n * max(0.0, behind), MAX_SPIN) * self._spin_hz))
        began = time.perf_counter()
        for start, end in pairs:
            self._buffer.zero_()
            start.record()
            launch()
            end.record()
        caught_up = bool(pairs[-1][0].query())
        self._host_seconds = (time.perf_counter() - began) / n
        cuda.synchronize()
        values = [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]
        self._sample_seconds = stats.median(values)
        return values, caught_up

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def _rate_of(self, launch: Callable[[], Any]) -> float:
        """Launches per second of device time, the second of two."""
        launch()
        start, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        self._cuda.synchronize()
        return 1e3 / float(start.elapsed_time(end))


def collect(
    timer: Timer, launch: Callable[[], Any], policy: Policy, clock: Callable[[], float] = time.monotonic
) -> list[float]:
    """Samples in seconds, after a warm-up by time.

    Stops when the 95 % interval of the median lies within `policy.target` of it, or the time cap is reached; not
    before `policy.min_seconds`, nor with fewer than `policy.min_samples` where one call takes under a second, else 3.
    All samples are kept, outliers included.
    """
    began = clock()
    estimate = timer.samples(launch, 1)[0]
    values = [estimate] if estimate >= policy.warmup_s else []  # a long call is too dear to throw away
    while not values and estimate < policy.warmup_s and clock() - began < policy.warmup_s:
        estimate = stats.median(timer.samples(launch, _batch(estimate, policy.warmup_s)))
    least = policy.min_samples if estimate < 1.0 else 3
    began = clock()
    while len(values) < policy.max_samples:
        missing = max(least - len(values), 1)
        batch = max(_batch(estimate, BATCH_SECONDS), min(missing, MAX_BATCH))
        values += timer.samples(launch, min(batch, policy.max_samples - len(values)))
        if len(values) < least:
            continue
        spent = clock() - began
        steady = spent >= policy.min_seconds and stats.relative_halfwidth(values) <= policy.target
        if steady or spent >= policy.max_seconds:
            break
    return values


def _batch(estimate: float, seconds: float) -> int:
    return max(1, min(MAX_BATCH, int(seconds / max(estimate, 1e-7))))
