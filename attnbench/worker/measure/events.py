"""CUDA events around a launch, behind a spin, and two readings that come with them.

The host may be slower than the device, and its latency would be timed: so a spinning kernel is queued before each batch
of samples, long enough that the host stays ahead to the batch's end (nvbench's blocking kernel:
nvbench/detail/measure_cold.cuh). The events' own gap, 1 to 3 microseconds that belong to the launch, is included.

The spin is also an exact gauge of the clock: it lasts a known number of cycles. One of 0.1 ms ends each batch, so
every batch knows the SM clock that it ended with, without NVML's lag.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.worker.measure.sampling import nothing

if TYPE_CHECKING:
    import torch

MAX_SPIN = 0.05  # seconds
MAX_TRIES = 8  # to keep the host ahead; its pace is learnt at each
WAKE_CYCLES = 50_000_000  # after a pause of seconds the clock is low, and comes back while something runs
GAUGE_CYCLES = 200_000  # 0.1 ms; the events' own overhead, known to 0.2 us, then matters by 0.2 %


class EventTimer:
    """On the current device and stream."""

    name = "events"

    def __init__(self, device: torch.device, before: Callable[[], Any] = nothing) -> None:
        import torch

        self._cuda = torch.cuda
        self.before = before
        self._sample_seconds = 0.0
        self._host_seconds = 100e-6  # what enqueuing one sample costs the host; learnt as we go
        self._spin_hz = 0.0  # not yet calibrated
        self._spin_overhead = self._before_seconds = 0.0
        self.best_clock = 0.0  # Hz, of all cells so far
        self.reset()

    def calibrate(self) -> None:
        """Learns how long spins and `before` last; at the first use, when no other worker is using the device."""
        if self._spin_hz:
            return
        self._spin_hz = 1e9
        self._cuda._sleep(WAKE_CYCLES)
        for _ in range(2):  # the first to warm up
            short, long = (min(self._spin(n) for _ in range(7)) for n in (GAUGE_CYCLES, 11 * GAUGE_CYCLES))
        self._spin_hz = 10 * GAUGE_CYCLES / (long - short)
        self._spin_overhead = short - GAUGE_CYCLES / self._spin_hz
        self.before()
        self._before_seconds = self._seconds(self.before)
        self.best_clock = self.clock_hz()

    def reset(self) -> None:
        """Forgets what the last cell said of the host and the clock."""
        self.host_bound = False  # some samples hold the host's latency, since the device waited for it
        self.enqueue: list[float] = []  # seconds the host took to enqueue each launch
        self.clocks: list[float] = []  # Hz, the SM clock at the end of each batch

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Seconds of n launches, or of fewer where the host can keep ahead of fewer only."""
        self.calibrate()
        n = max(1, min(n, int(MAX_SPIN / (1.5 * self._host_seconds))))
        for _ in range(MAX_TRIES):
            values, caught_up, clock = self._batch(launch, n)
            if not caught_up:
                break
            n = max(1, n // 2)  # the device waited for the host, so these samples hold its latency: not used
        else:
            self.host_bound = True
        self.clocks.append(clock)
        self.best_clock = max(self.best_clock, clock)
        return values

    def hide_host(self, seconds: float) -> None:
        """Queues a spin of `seconds`, at most 0.05, behind which the host gets ahead."""
        self.calibrate()
        self._cuda._sleep(int(min(seconds, MAX_SPIN) * self._spin_hz))

    def clock_hz(self) -> float:
        """The SM clock once all queued work is done, by a spin of 0.1 ms."""
        self.calibrate()
        return GAUGE_CYCLES / (self._seconds(lambda: self._cuda._sleep(GAUGE_CYCLES)) - self._spin_overhead)

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def _batch(self, launch: Callable[[], Any], n: int) -> tuple[list[float], bool, float]:
        """Seconds of n launches behind one spin, whether the device caught up with the host, and the clock after."""
        cuda, clock, before = self._cuda, time.perf_counter, self.before
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(n)]
        behind = 1.5 * self._host_seconds - 0.8 * (self._before_seconds + self._sample_seconds)  # a sample, at worst
        enqueue = []
        cuda.synchronize()
        self.hide_host(4 * self._host_seconds + n * max(0.0, behind))
        caught_up = False
        began = clock()
        for start, end in pairs:
            before()
            start.record()
            enter = clock()
            launch()
            enqueue.append(clock() - enter)
            end.record()
            caught_up = caught_up or bool(start.query())
        self._host_seconds = (clock() - began) / n
        held = self.clock_hz()
        self.enqueue += enqueue
        values = [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]
        self._sample_seconds = stats.median(values)
        return values, caught_up, held

    def _spin(self, cycles: int) -> float:
        self._cuda.synchronize()
        return self._seconds(lambda: self._cuda._sleep(cycles))

    def _seconds(self, launch: Callable[[], Any]) -> float:
        start, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        self._cuda._sleep(GAUGE_CYCLES)
        start.record()
        launch()
        end.record()
        self._cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3
