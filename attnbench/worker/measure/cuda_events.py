"""The default timer on a GPU: CUDA events around each launch, behind a spin that hides the host's latency.

The host may need longer to enqueue a launch than the device needs to run it, and events would then time the host.
Therefore a spinning kernel is queued before each batch of samples, long enough that the host stays ahead until the
batch's end (nvbench's blocking kernel: nvbench/detail/measure_cold.cuh). The samples contain the gap between event and
kernel, 1 to 3 microseconds of the launch.

Every batch has its SM clock (clock_gauge.py): before it, during its launches, and after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from attnbench.core import stats
from attnbench.worker.measure.clock_gauge import ClockGauge
from attnbench.worker.measure.sampling import Alone, BatchClock, Together, do_nothing

HIDING_SECONDS = 2e-4  # seconds of a spin that hides the host for one launch
MAX_SPIN = 0.05  # seconds of the longest spin
EMPTY_SAMPLE = 1e-4  # assumed seconds of the host for a sample without its launch
MAX_RISE = 2  # factor by which a single sample may raise the known pace of the host
MAX_TRIES = 8  # batches until the host stays ahead; each try uses the pace of the last try


class EventTimer:
    """The timer of launches by CUDA events on the current device and stream."""

    def __init__(self, gauge: ClockGauge, before: Callable[[], Any] = do_nothing) -> None:
        import torch

        self._cuda = torch.cuda
        self.gauge = gauge
        self.before = before
        self.together: Together = Alone()
        self._sample_seconds = 0.0
        self._host_seconds = EMPTY_SAMPLE  # the host's seconds to enqueue a sample, updated by each batch
        self._before_seconds = 0.0
        self._calibrated = False
        self.best_clock = 0.0  # the highest clock in Hz while next to nothing ran
        self.reset()

    def calibrate(self) -> None:
        """Wake the device and time `before` at the first use; no other worker may use the device."""
        if self._calibrated:
            return
        self._calibrated = True
        self.gauge.wake()
        self.before()
        self._before_seconds = self.seconds(self.before)
        self._note_clock(self.gauge.now_hz())

    def expect(self, enqueue: float) -> None:
        """Expect the host to take `enqueue` seconds for the next launch, so that its first sample need not be repeated.

        Each batch updates this estimate; 0 means unknown.
        """
        if enqueue:
            self._host_seconds = enqueue + EMPTY_SAMPLE

    def reset(self) -> None:
        """Forget the last cell's records of the host and the clock."""
        self.host_bound = False  # whether some samples contain waits of the device for the host
        self.enqueue: list[float] = []  # the host's seconds to enqueue each launch
        self.clocks: list[BatchClock] = []  # the clock of each batch; empty where the gauge has a fault

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Return the seconds of n launches; of fewer where the longest spin cannot keep the host ahead for n."""
        self.calibrate()
        n = max(1, min(n, int(MAX_SPIN / (1.5 * self.together.most(self._host_seconds)))))
        for _ in range(MAX_TRIES):
            values, caught_up = self._batch(launch, n)
            if not self.together.most(caught_up):
                break
            n = max(1, n // 2)  # the device waited for the host: the samples contain that and are not used
        else:
            self.host_bound = True
        self.read_clock()
        return self.together.slowest(values)

    def hide_host(self, seconds: float) -> None:
        """Queue a spin of `seconds`, at most 0.05, during which the host gets ahead of the device."""
        self.calibrate()
        self.gauge.spin(min(seconds, MAX_SPIN))

    def read_clock(self) -> None:
        """Append the clock of the last batch to `clocks`; waits for the device."""
        before, held, after = self.gauge.spun_hz(), self.gauge.held_hz(), self.gauge.now_hz()
        if before and held and after:
            self.clocks.append(BatchClock(before, held, after))
            self._note_clock(before)

    def _note_clock(self, found: float | None) -> None:
        """Raise the best clock to `found`, at most to the device's highest clock."""
        self.best_clock = max(self.best_clock, min(found or 0.0, self.gauge.top_hz or math.inf))

    def _note_pace(self, seconds: float, *, is_known: bool) -> None:
        """Keep the host's time for one sample.

        `is_known` is true for a batch of several samples, or one in which the device caught up. Another single sample
        may be ten times as slow as the next ones.
        """
        self._host_seconds = seconds if is_known else min(seconds, MAX_RISE * self._host_seconds)

    def seconds(self, launch: Callable[[], Any]) -> float:
        """Return the device time in seconds of one launch behind a short spin that hides the host."""
        start, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        self.gauge.spin(HIDING_SECONDS)
        start.record()
        launch()
        end.record()
        self._cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _batch(self, launch: Callable[[], Any], n: int) -> tuple[list[float], bool]:
        """Time n launches behind one spin. Return their seconds, and whether the device caught up with the host."""
        cuda, clock, before, gauge = self._cuda, time.perf_counter, self.before, self.gauge
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(n)]
        # at worst, the host falls behind the device by these seconds with each sample
        behind = 1.5 * self._host_seconds - 0.8 * (self._before_seconds + self._sample_seconds)
        enqueue = []
        gauge.held_hz()  # forget the counts of an earlier batch
        cuda.synchronize()
        self.hide_host(4 * self._host_seconds + n * max(0.0, behind))
        caught_up = False
        began = clock()
        for start, end in pairs:
            before()
            self.together.barrier()
            gauge.begin()
            start.record()
            enter = clock()
            launch()
            enqueue.append(clock() - enter)
            end.record()
            caught_up = caught_up or bool(start.query())
            gauge.end()
        self._note_pace((clock() - began) / n, is_known=n > 1 or caught_up)
        cuda.synchronize()
        self.enqueue += enqueue
        values = [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]
        self._sample_seconds = stats.median(values)
        return values, caught_up
