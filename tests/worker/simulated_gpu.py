"""A simulated GPU in place of `torch.cuda`: one stream, and a host that fills it, on one simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from attnbench.worker.measure import device_kernels

COUNT_SECONDS = 2e-6  # duration of the kernel that begins or ends a window of the clock gauge
MULTIPROCESSORS = 4


class Event:
    """A CUDA event, reached when all work queued before it is done."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at: float | None = None

    def record(self) -> None:
        self.gpu.now += 1e-6
        self.at = max(self.gpu.free, self.gpu.now)

    def query(self) -> bool:
        assert self.at is not None
        return self.at <= self.gpu.now

    def synchronize(self) -> None:
        assert self.at is not None
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, other: Event) -> float:
        """Return milliseconds. As in CUDA, it is an error before the device has reached both events."""
        assert self.at is not None
        assert other.at is not None
        assert other.query(), "asked before it was reached"
        return (other.at - self.at) * 1e3


class Memory:
    """A tensor of whole numbers on the device, in rows; reading it waits for the device."""

    def __init__(self, gpu: Gpu, rows: int, columns: int = 0) -> None:
        self.gpu, self.shape = gpu, (rows, columns)
        self.zero_()

    def zero_(self) -> None:
        rows, columns = self.shape
        self.values: list[Any] = [[0] * columns for _ in range(rows)] if columns else [0] * rows

    def tolist(self) -> list[Any]:
        self.gpu.synchronize()
        return self.values


class Gpu:
    """The device. `hz` is its clock, `now` the host's time, `free` when it becomes idle.

    `under_load` is the clock of kernels as a share of `hz`; spins run at `hz`.
    """

    def __init__(self, hz: float = 1.5e9, under_load: float = 1.0) -> None:
        self.hz = hz
        self.under_load = under_load
        self.cycles = 0.0  # cycles of the multiprocessors in kernels
        self.now = self.free = 0.0
        self.spins: list[float] = []  # seconds of each spin
        self.Event = lambda enable_timing=False: Event(self)

    def kernel(self, seconds: float, host: float = 2e-6) -> Callable[[], None]:
        """Return a launch that takes the host `host` seconds and the device `seconds`."""

        def launch() -> None:
            self.now += host
            self.cycles += seconds * self.hz * self.under_load
            self.free = max(self.free, self.now) + seconds

        return launch

    def gauge_kernel(self, name: str) -> Callable[..., None]:
        """Return a kernel of the clock gauge, in place of device_kernels.compiled."""

        def spin(_grid: Any, _block: Any, arguments: tuple[int, Memory]) -> None:
            length, spun = arguments
            self.spins.append(length / 1e9)
            self.kernel(length / 1e9)()
            spun.values = [round(length / 1e9 * self.hz), length]

        def count(_grid: Any, _block: Any, arguments: tuple[int, Memory]) -> None:
            is_end, counted = arguments
            for values in counted.values[:MULTIPROCESSORS]:
                if not is_end:
                    values[2:] = [self.cycles, self.free]
                elif values[3]:
                    values[0] += self.cycles - values[2]
                    values[1] += 1e9 * (self.free - values[3])
            self.kernel(COUNT_SECONDS)()

        return {"spin": spin, "count": count}[name]

    def _sleep(self, cycles: int) -> None:
        self.spins.append(cycles / 2e9)
        self.kernel(cycles / self.hz)()

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _device: int) -> Any:
        return SimpleNamespace(multi_processor_count=MULTIPROCESSORS)

    def use(self, monkeypatch: Any) -> None:
        """Replace torch.cuda by this GPU, with its own kernels for the clock gauge."""
        monkeypatch.setattr(torch, "cuda", self)
        monkeypatch.setattr(torch, "zeros", lambda *shape, **_: Memory(self, *shape))
        monkeypatch.setattr(device_kernels, "compiled", self.gauge_kernel)
        monkeypatch.setattr(device_kernels, "bound", lambda kernel, blocks, of: partial(kernel, blocks, 1, of))

    def synchronize(self, *_: object) -> None:
        self.now = max(self.now, self.free)

    def clock(self) -> float:
        """Return the host's time, for time.perf_counter and time.monotonic."""
        return self.now
