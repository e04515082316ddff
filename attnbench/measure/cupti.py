"""What ran on the device and when: the profiler's kernel spans (CUPTI, through torch.profiler).

A trace has calls with a marker before each and one at the end: the flush, or a fill of one element where L2 shall
stay warm. The marker's kernels are known by the host call that launched them, inside a named range of ours; a call is
what ran on the device between two markers. So neither names nor counts of kernels are guessed, and kernels launched
from other threads (autograd's) or by other ways than torch's operators belong to their call too. The span of a call is
from its first kernel's start to its last one's end: no launch gap is in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.measure.timing import nothing

if TYPE_CHECKING:
    from attnbench.measure.events import EventTimer

MARK = "attnbench.mark"
MAX_TRIES = 4  # to keep the host ahead; its pace is learnt at each


class Untraceable(Exception):
    """The profiler cannot be used here, or what it says cannot be told apart. The message says why."""


@dataclass(frozen=True)
class Kernel:
    """One activity of the device: a kernel, copy or fill. Seconds from the start of its call's first."""

    name: str
    start: float
    end: float
    stream: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Call:
    """One launch as the device saw it, in order of start."""

    kernels: tuple[Kernel, ...]
    overrun: float  # seconds that its work went on after the device had gone on to what came next on the stream; else 0

    @property
    def span(self) -> float:
        """Seconds from the first kernel's start to the last one's end; 0 where nothing ran."""
        return max((k.end for k in self.kernels), default=0.0)

    @property
    def busy(self) -> float:
        """Seconds in which at least one of its kernels ran."""
        total, until = 0.0, 0.0
        for kernel in self.kernels:
            total += max(0.0, kernel.end - max(kernel.start, until))
            until = max(until, kernel.end)
        return total


class Tracer:
    """The third instrument, and the proof of what ran."""

    name = "cupti"

    def __init__(self, events: EventTimer, before: Callable[[], Any] = nothing) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault("KINETO_LOG_LEVEL", "5")
        if _version(torch.version.cuda) >= (12, 6):  # before, CUDA graphs crash after it (torch/profiler/profiler.py)
            os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else every later launch costs the host 12 us more
        self._events = events
        self.before = before
        self._tiny = torch.zeros(1, device="cuda")
        self._host_seconds = 100e-6
        self.host_bound = False  # gaps in some spans are the host's; who reads it resets it
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True):  # the first session takes seconds
            self._tiny.zero_()

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Seconds from the first kernel's start to the last one's end, for each of n launches."""
        return [call.span for call in self.calls([launch] * n)]

    def synchronize(self) -> None:
        self._events.synchronize()

    def calls(self, launches: Sequence[Callable[[], Any]]) -> list[Call]:
        """What the device did in each of some launches, one after the other. Raises Untraceable."""
        for _ in range(MAX_TRIES):
            events, caught_up = self._session(launches)
            if not caught_up:
                break  # else the device waited for the host, and gaps between its kernels are the host's
        else:
            self.host_bound = True
        return _split(events, len(launches))

    def _session(self, launches: Sequence[Callable[[], Any]]) -> tuple[Sequence[Any], bool]:
        """The profiler's events, and whether the device caught up with the host."""
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function

        before = self._tiny.zero_ if self.before is nothing else self.before
        caught_up = False
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            self._events.hide_host(2 * len(launches) * self._host_seconds + 1e-4)
            began = time.perf_counter()
            for launch in launches:
                with record_function(MARK):
                    before()
                (reached := torch.cuda.Event()).record()
                launch()
                caught_up = caught_up or reached.query()
            self._host_seconds = (time.perf_counter() - began) / len(launches)
            with record_function(MARK):
                before()
            torch.cuda.synchronize()
        if profiler.profiler is None:
            raise Untraceable("torch.profiler gave no events")
        return profiler.profiler.kineto_results.events(), caught_up


def _split(events: Sequence[Any], n: int) -> list[Call]:
    """The device's activities, by the markers around each call."""
    on_device, on_host, ranges = [], [], []
    for event in events:
        if str(event.device_type()) == "DeviceType.CUDA":
            if not event.is_user_annotation() and event.duration_ns() > 0:
                on_device.append(event)
        elif event.name() == MARK:
            ranges.append((event.start_ns(), event.end_ns()))
        elif event.correlation_id() > 0 and event.name().startswith("cu"):
            on_host.append(event)
    if not on_device:
        raise Untraceable("the profiler saw no kernel; CUPTI may be in use by another tool, or not permitted")
    ranges.sort()
    marker = {e.correlation_id(): i for e in on_host for i, (a, b) in enumerate(ranges) if a <= e.start_ns() <= b}
    starts: dict[int, int] = {}  # of each marker on the device
    work = []
    for event in sorted(on_device, key=lambda e: int(e.start_ns())):
        if event.correlation_id() in marker:
            starts.setdefault(marker[event.correlation_id()], event.start_ns())
        else:
            work.append(event)
    if sorted(starts) != list(range(n + 1)):
        raise Untraceable(f"the profiler saw {len(starts)} of {n + 1} markers")
    return [_call(work, starts[i], starts[i + 1], last=i == n - 1) for i in range(n)]


def _call(work: Sequence[Any], since: int, following: int, *, last: bool) -> Call:
    """What ran from one marker's start to the next one's, in ns; after the last call whatever still came is its too."""
    own = [e for e in work if since <= e.start_ns() and (last or e.start_ns() < following)]
    origin = own[0].start_ns() if own else 0
    late = max((e.end_ns() for e in own), default=0) - following
    kernels = [
        Kernel(e.name(), (e.start_ns() - origin) / 1e9, (e.end_ns() - origin) / 1e9, int(e.device_resource_id()))
        for e in own
    ]
    return Call(tuple(kernels), max(0.0, late / 1e9))


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "0").split(".") if part.isdigit())
