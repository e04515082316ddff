"""The SM clock gauge: reads the clock of the multiprocessors from a kernel that spins for a known number of cycles.

The clock is the number of cycles over the time that CUDA events read, less the events' own overhead, which is found
once with spins of two lengths. A reading takes 0.1 ms and has no lag, whereas NVML's clock lags by up to 0.1 s.
The same spin hides the host's latency from the samples (cuda_events.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WAKE_CYCLES = 50_000_000  # after a pause of seconds the clock is low, and rises while something runs
GAUGE_CYCLES = 200_000  # 0.1 ms; the events' own overhead, known to 0.2 us, then matters by 0.2 %


class ClockGauge:
    """Spins of a known number of cycles on the current CUDA device and stream. Call `calibrate` before the rest."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self.spin_hz = 0.0  # cycles per second of a spin at calibration; 0 until then
        self._spin_overhead = 0.0  # seconds that events read beyond the spin's own time

    def calibrate(self) -> None:
        """Learn the spin's rate and the events' overhead from spins of two lengths. Wakes the device first."""
        self.spin_hz = 1e9
        self._cuda._sleep(WAKE_CYCLES)
        for _ in range(2):  # the first pass warms up
            short, long = (min(self._spin_seconds(n) for _ in range(7)) for n in (GAUGE_CYCLES, 11 * GAUGE_CYCLES))
        self.spin_hz = 10 * GAUGE_CYCLES / (long - short)
        self._spin_overhead = short - GAUGE_CYCLES / self.spin_hz

    def clock_hz(self) -> float:
        """Return the SM clock in Hz after all queued work, from a spin of 0.1 ms. Waits for the device."""
        return GAUGE_CYCLES / (self.seconds(lambda: self._cuda._sleep(GAUGE_CYCLES)) - self._spin_overhead)

    def spin(self, seconds: float) -> None:
        """Queue a spin that lasts `seconds` at the clock of the calibration."""
        self._cuda._sleep(int(seconds * self.spin_hz))

    def seconds(self, launch: Callable[[], Any]) -> float:
        """Return the device time in seconds of one launch, by CUDA events behind a short spin that hides the host."""
        start, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        self._cuda._sleep(GAUGE_CYCLES)
        start.record()
        launch()
        end.record()
        self._cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _spin_seconds(self, cycles: int) -> float:
        self._cuda.synchronize()
        return self.seconds(lambda: self._cuda._sleep(cycles))
