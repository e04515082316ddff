"""A GPU with scripted instruments: tests set the readings of each instrument, and inspect its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from attnbench.core.activity import Activity
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.worker.instruments import Instruments, TimedLaunch
from attnbench.worker.measure.cupti import TracedCall, Untraceable
from attnbench.worker.measure.sampling import Alone, BatchClock, do_nothing

QUICK = Policy(warmup_s=0.0, min_samples=4, min_seconds=0.0, max_seconds=0.0, target=1.0)


def timed_launch(launch: Callable[[], Any] = lambda: None, nbytes: int = 2**40) -> TimedLaunch:
    """Return a TimedLaunch of `launch`, with operands that are by default larger than any L2."""
    return TimedLaunch(launch, lambda n: [launch] * n, nbytes, 2**20)


class Events:
    """A stand-in for EventTimer: each sample reads `seconds`, each batch ends at the clock `hz`."""

    def __init__(self) -> None:
        self.before: Callable[[], Any] = do_nothing
        self.seconds, self.hz, self.best_clock = 1e-3, 1.97e9, 1.98e9
        self.slow_host = False
        self.gauge = SimpleNamespace(
            fault="", now_hz=lambda: self.now_hz(), begin=do_nothing, end=do_nothing, held_hz=lambda: self.hz
        )
        self.log: list[str] = []
        self.reset()

    def reset(self) -> None:
        self.host_bound = False
        self.enqueue: list[float] = []
        self.clocks: list[BatchClock] = []

    def calibrate(self) -> None:
        """Do nothing."""

    def expect(self, enqueue: float) -> None:
        """Do nothing."""

    def read_clock(self) -> None:
        self.clocks.append(BatchClock(self.best_clock, self.hz, self.hz))

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        self.log.append("events")
        for _ in range(n):
            launch()
        self.enqueue += [7e-6] * n
        self.read_clock()
        self.host_bound |= self.slow_host
        return [self.seconds] * n

    def now_hz(self) -> float:
        return self.hz


class Tracer:
    """A stand-in for the Tracer of kernel spans; with `lost` it cannot split its trace into calls."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.before: Callable[[], Any] = do_nothing
        self.lost = False

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        return [call.span for call in self.calls([launch] * n)]

    def calls(
        self, launches: Sequence[Callable[[], Any]], before_each_try: Callable[[], Any] = do_nothing
    ) -> list[TracedCall]:
        """Return traced calls that take 1 % longer than untraced ones."""
        if self.lost:
            raise Untraceable("the profiler saw 1 of 2 markers")
        self.events.log.append("cupti")
        launches[0]()
        traced = 1.01 * self.events.seconds
        return [TracedCall((Activity("ours", 0.0, traced - 2e-6, 7),), 0.0, events=traced)] * len(launches)


class Gpu(Instruments):
    """Instruments of a GPU with scripted events and tracer, and a set state of L2 for every timer."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self.device_info = Device("cuda", 0, "Played GPU", 2**36, 2**36, copy=4e12)
        self.l2_bytes = 50 * 2**20
        self.flush = lambda: None  # type: ignore[assignment]
        self.scripted = Events()
        self.events = self.timer = self.scripted  # type: ignore[assignment]
        self.tracer = Tracer(self.scripted)  # type: ignore[assignment]
        self.state = SimpleNamespace(  # type: ignore[assignment]
            available=False, power_limit_w=lambda: 700.0, power_average_w=lambda: 100.0, limits=lambda: ()
        )
        self.broken = False
        self.together = Alone()
        self._l2_states = {(name, l2): l2 for name in ("events", "graph", "cupti", "") for l2 in ("cold", "warm")}
        self._ceilings_read_at = 0.0


def values(timing: Any, name: str) -> tuple[float, ...]:
    """Return the samples of one measurement; empty without one."""
    return timing.measurements[name].values if name in timing.measurements else ()
