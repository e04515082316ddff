"""A simulated GPU that stands in for `torch.cuda`: one stream, and a host that fills it, on one simulated clock."""

from __future__ import annotations

from collections.abc import Callable

SPIN_OVERHEAD = 3e-6  # seconds that two events read around a spin of no cycles


class Event:
    """A CUDA event: reached when everything that was queued before it is done."""

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
        """Return milliseconds. As in CUDA, it is an error to ask before the device has reached the events."""
        assert self.at is not None
        assert other.at is not None
        assert other.query(), "asked before it was reached"
        return (other.at - self.at) * 1e3


class Gpu:
    """The device. `hz` is its clock, which a spin follows, `now` the host's time, `free` when it becomes idle."""

    def __init__(self, hz: float = 1.5e9) -> None:
        self.hz = hz
        self.now = self.free = 0.0
        self.spins: list[float] = []  # seconds
        self.Event = lambda enable_timing=False: Event(self)

    def kernel(self, seconds: float, host: float = 2e-6) -> Callable[[], None]:
        """Return a launch that takes the host `host` seconds and the device `seconds`."""

        def launch() -> None:
            self.now += host
            self.free = max(self.free, self.now) + seconds

        return launch

    def _sleep(self, cycles: int) -> None:
        self.spins.append(cycles / self.hz)
        self.kernel(SPIN_OVERHEAD + cycles / self.hz)()

    def synchronize(self, *_: object) -> None:
        self.now = max(self.now, self.free)

    def clock(self) -> float:
        """Return the host's time, for time.perf_counter and time.monotonic."""
        return self.now
