"""The default timer on a GPU: CUDA events around each launch, behind a spin that hides the host's latency.

The host may need longer to enqueue a launch than the device needs to run it. Then events would time the host. So a
spinning kernel is queued before each batch of samples, long enough that the host stays ahead until the batch's end
(nvbench's blocking kernel: nvbench/detail/measure_cold.cuh). The gap between event and kernel, 1 to 3 microseconds
that belong to the launch, is in the samples.

Each batch ends with a reading of the SM clock (clock_gauge.py), so every batch knows the clock that it ended with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.worker.measure.clock_gauge import ClockGauge
from attnbench.worker.measure.sampling import do_nothing

if TYPE_CHECKING:
    import torch

MAX_SPIN = 0.05  # seconds
MAX_TRIES = 8  # batches, until one in which the host keeps ahead; each try uses the pace that the last one showed


class EventTimer:
    """Time launches with CUDA events on the current device and stream."""

    def __init__(self, device: torch.device, before: Callable[[], Any] = do_nothing) -> None:
        import torch

        self._cuda = torch.cuda
        self.gauge = ClockGauge()
        self.before = before
        self._sample_seconds = 0.0
        self._host_seconds = 100e-6  # time of the host to enqueue one sample; updated by each batch
        self._before_seconds = 0.0
        self.best_clock = 0.0  # Hz, the highest of all cells so far
        self.reset()

    def calibrate(self) -> None:
        """Calibrate the clock gauge and time `before`, at the first use, when no other worker uses the device."""
        if self.gauge.spin_hz:
            return
        self.gauge.calibrate()
        self.before()
        self._before_seconds = self.gauge.seconds(self.before)
        self.best_clock = self.clock_hz()

    def reset(self) -> None:
        """Forget what the last cell recorded about the host and the clock."""
        self.host_bound = False  # True: some samples contain the host's latency, because the device waited for it
        self.enqueue: list[float] = []  # seconds that the host took to enqueue each launch
        self.clocks: list[float] = []  # Hz, the SM clock at the end of each batch

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Return the seconds of n launches, or of fewer where a spin can keep the host ahead of fewer only."""
        self.calibrate()
        n = max(1, min(n, int(MAX_SPIN / (1.5 * self._host_seconds))))
        for _ in range(MAX_TRIES):
            values, caught_up, clock = self._batch(launch, n)
            if not caught_up:
                break
            n = max(1, n // 2)  # the device waited for the host: these samples contain its latency and are not used
        else:
            self.host_bound = True
        self.clocks.append(clock)
        self.best_clock = max(self.best_clock, clock)
        return values

    def hide_host(self, seconds: float) -> None:
        """Queue a spin of `seconds`, at most 0.05, during which the host gets ahead of the device."""
        self.calibrate()
        self.gauge.spin(min(seconds, MAX_SPIN))

    def clock_hz(self) -> float:
        """Return the SM clock in Hz after all queued work; waits for the device."""
        self.calibrate()
        return self.gauge.clock_hz()

    def _batch(self, launch: Callable[[], Any], n: int) -> tuple[list[float], bool, float]:
        """Time n launches behind one spin.

        Return their seconds, whether the device caught up with the host, and the SM clock after them in Hz.
        """
        cuda, clock, before = self._cuda, time.perf_counter, self.before
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(n)]
        # seconds by which the host may fall behind the device with each sample, at worst
        behind = 1.5 * self._host_seconds - 0.8 * (self._before_seconds + self._sample_seconds)
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
