"""The SM clock gauge: kernels that count the cycles of the multiprocessors and the time.

- `begin` and `end` queue one small kernel each, around a launch. Each multiprocessor counts its cycles between the two:
  `held_hz` is the clock at which the launch ran.
- `spin` is a kernel that lasts a given time and counts its own cycles: `spun_hz` is the clock while next to nothing
  ran, which is the clock that the power controller allows.

The two clocks differ. While tensor cores work, the clock is lower at once, even far below the power cap: on an H100,
cuDNN's forward at 16k ran at 1708 MHz between spins at 1965 (docs/dev/measuring.md). Under a steady load NVML reports
the clock of the launch, 0.1 s late.

The gauge needs no calibration, and a reading of 0.1 ms repeats to 1 MHz. Some 0.1 ms after a load the clock overshoots
NVML's highest clock: an H100 of 1980 MHz spun at up to 2099, and over 25 ms at 2029. Therefore only a long reading far
above the highest clock is a fault of the gauge. With a fault, or where the kernels cannot be compiled, there are no
readings, `fault` says why, and NVML's clock is used.
"""

from __future__ import annotations

from attnbench.core import stats
from attnbench.worker.measure import device_kernels

SPIN_SECONDS = 2e-4  # seconds of a reading of the clock; exact to 1 MHz where `globaltimer` ticks every 32 ns
FALLBACK_HZ = 2e9  # cycles per second of torch's own spin kernel, where the clock is unknown
WAKE_SECONDS = 0.025  # seconds of work that raise the low clock after a long pause
OVERSHOOT = 1.1  # the highest valid reading over WAKE_SECONDS, as a multiple of NVML's highest clock


class ClockGauge:
    """The clock gauge of the current CUDA device and stream. `top_hz` is the device's highest clock, if known."""

    def __init__(self, top_hz: float | None = None) -> None:
        import torch

        self._torch = torch
        self.top_hz = top_hz
        self._opened = False
        self.fault = ""  # why there are no readings

    def open(self) -> None:
        """Compile the kernels at the first call, in half a second."""
        if self._opened:
            return
        self._opened = True
        torch = self._torch
        try:
            self._spin, count = (device_kernels.compiled(name) for name in ("spin", "count"))
            blocks = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
            self._spun = torch.zeros(2, dtype=torch.int64, device="cuda")
            self._counted = torch.zeros(device_kernels.MAX_MULTIPROCESSORS, 4, dtype=torch.int64, device="cuda")
            self._begin, self._end = (device_kernels.bound(count, blocks, [is_end, self._counted]) for is_end in (0, 1))
        except Exception as error:  # a failure of the compiler never fails a job
            self.fault = f"the cycles of the multiprocessors cannot be counted: {' '.join(str(error).split())}"[:300]

    def wake(self) -> None:
        """Let the device raise its clock, and check whether readings can be trusted."""
        self.spin(WAKE_SECONDS)
        found = self.spun_hz()
        if found and self.top_hz and found > OVERSHOOT * self.top_hz:
            self.fault = f"the gauge reads {found / 1e6:.0f} MHz, but the device's highest is {self.top_hz / 1e6:.0f}"

    def spin(self, seconds: float) -> None:
        """Queue a kernel that does nothing for `seconds`."""
        self.open()
        if self.fault:
            self._torch.cuda._sleep(int(seconds * FALLBACK_HZ))
        else:
            self._spin((1, 1, 1), (1, 1, 1), [int(seconds * 1e9), self._spun])

    def begin(self) -> None:
        """Queue the start of a window in which cycles are counted."""
        if not self.fault:
            self._begin()

    def end(self) -> None:
        """Queue the end of the window."""
        if not self.fault:
            self._end()

    def held_hz(self) -> float | None:
        """Return the clock in Hz over all windows since the last call, the median of the multiprocessors; else None.

        It waits for the device.
        """
        self.open()
        if self.fault:
            return None
        counted = [(cycles, ns) for cycles, ns, *_ in self._counted.tolist() if ns]
        self._counted.zero_()
        return stats.median([1e9 * cycles / ns for cycles, ns in counted]) if counted else None

    def spun_hz(self) -> float | None:
        """Return the clock in Hz during the last spin; waits for the device. None where there is none."""
        if self.fault:
            return None
        cycles, ns = self._spun.tolist()
        return 1e9 * cycles / ns if ns else None

    def now_hz(self) -> float | None:
        """Return the clock in Hz after all queued work, while next to nothing runs; waits for the device."""
        self.spin(SPIN_SECONDS)
        return self.spun_hz()
