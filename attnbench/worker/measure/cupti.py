"""What ran on the device and when: the profiler's kernel spans (CUPTI, through torch.profiler).

A trace has calls with a marker before each and one at the end: the flush, or a fill of one element where L2 shall
stay warm. The marker's kernels are known by the host call that launched them, inside a named range of ours; a call is
what the host launched between two markers, and where its launch is not known, what ran between them. So neither names
nor counts of kernels are guessed, and kernels launched from other threads (autograd's) or by other ways than torch's
operators belong to their call too. The span of a call is
from its first kernel's start to its last one's end: no launch gap is in it.

Tracing has a toll: with CUPTI's concurrent-kernel tracing, which torch.profiler uses, some kernels take up to 5 % more
cycles (docs/measuring.md). So each traced call is read by CUDA events too: the two instruments are compared on the same
calls, and what the trace costs is the events' reading of traced calls against that of others.
"""

from __future__ import annotations

import bisect
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.worker.measure.profiler_session import recorded_events, session
from attnbench.worker.measure.sampling import do_nothing

if TYPE_CHECKING:
    from attnbench.worker.measure.cuda_events import EventTimer

MARK = "attnbench.mark"
WAITS = ("StreamWaitEvent", "Synchronize")  # in the names of calls that make a stream or the host wait
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
class TracedCall:
    """One launch as the device saw it, in order of start."""

    kernels: tuple[Kernel, ...]
    overrun: float  # seconds that its work went on after the device had gone on to what came next on the stream; else 0
    head_start: float = 0.0  # seconds that its work began before the device had come to it on the stream; else 0
    events: float = 0.0  # seconds that CUDA events around it read
    unwaited: bool = False  # some ran on another stream, and the host asked nothing to wait for its end

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

    def __init__(self, events: EventTimer, before: Callable[[], Any] = do_nothing) -> None:
        import torch

        os.environ.setdefault("KINETO_LOG_LEVEL", "5")
        if _version(torch.version.cuda) >= (12, 6):  # before, CUDA graphs crash after it (torch/profiler/profiler.py)
            os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else every later launch costs the host 12 us more
        self._events = events
        self.before = before
        self._tiny = torch.zeros(1, device="cuda")
        self._host_seconds = 100e-6
        self.host_bound = False  # gaps in some spans are the host's; who reads it resets it
        with session(cpu=False, cuda=True):  # the first session takes seconds
            self._tiny.zero_()

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Seconds from the first kernel's start to the last one's end, for each of n launches."""
        return [call.span for call in self.calls([launch] * n)]

    def synchronize(self) -> None:
        self._events.synchronize()

    def calls(
        self, launches: Sequence[Callable[[], Any]], before_each_try: Callable[[], Any] = do_nothing
    ) -> list[TracedCall]:
        """What the device did in each of some launches, one after the other; `ready` comes before each try, untraced.

        Raises Untraceable.
        """
        for _ in range(MAX_TRIES):
            before_each_try()
            activities, read, caught_up = self._session(launches)
            if not caught_up:
                break  # else the device waited for the host, and gaps between its kernels are the host's
        else:
            self.host_bound = True
        return _split_into_calls(activities, read)

    def _session(self, launches: Sequence[Callable[[], Any]]) -> tuple[Sequence[Any], list[float], bool]:
        """The profiler's events, what CUDA events read of each call, and whether the device caught up with the host."""
        import torch
        from torch.profiler import record_function

        before = self._tiny.zero_ if self.before is do_nothing else self.before
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in launches]
        caught_up = False
        torch.cuda.synchronize()  # also ends the session before: its teardown comes with the next call to CUDA
        with session(cuda=True) as profiler:
            self._events.hide_host(2 * len(launches) * self._host_seconds + 1e-4)
            began = time.perf_counter()
            for launch, (start, end) in zip(launches, pairs, strict=True):
                with record_function(MARK):
                    before()
                start.record()
                launch()
                end.record()
                caught_up = caught_up or bool(start.query())
            self._host_seconds = (time.perf_counter() - began) / len(launches)
            with record_function(MARK):
                before()
            torch.cuda.synchronize()
        read = [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]
        return recorded_events(profiler), read, caught_up


def _split_into_calls(events: Sequence[Any], read: Sequence[float]) -> list[TracedCall]:
    """The device's activities, by the markers around each call; `read` is what CUDA events say of each."""
    n = len(read)
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
    launched = {e.correlation_id(): e.start_ns() for e in on_host}
    marker = {c: i for c, at in launched.items() for i, (a, b) in enumerate(ranges) if a <= at <= b}
    starts: dict[int, int] = {}  # of each marker on the device
    work = []
    for event in sorted(on_device, key=lambda e: int(e.start_ns())):
        if event.correlation_id() in marker:
            starts.setdefault(marker[event.correlation_id()], event.start_ns())
        else:
            work.append(event)
    if sorted(starts) != list(range(n + 1)):
        raise Untraceable(f"the profiler saw {len(starts)} of {n + 1} markers")
    begun = [starts[i] for i in range(n + 1)]
    calls: list[list[Any]] = [[] for _ in read]
    for event in work:
        at = launched.get(event.correlation_id())
        if at is None:  # no call of the host is known for it: by when it ran
            i = bisect.bisect_right(begun, event.start_ns()) - 1
        else:
            i = bisect.bisect_right(ranges, (at, math.inf)) - 1
        if i >= 0:  # else it is what hides the host, ahead of the first
            calls[min(i, n - 1)].append(event)
    home = next(e.device_resource_id() for e in on_device if e.correlation_id() in marker)
    return [
        _make_call(own, begun[i], begun[i + 1], read[i], _is_unwaited(own, home, on_host, ranges[i + 1][0]))
        for i, own in enumerate(calls)
    ]


def _is_unwaited(own: Sequence[Any], home: int, on_host: Sequence[Any], until: int) -> bool:
    """Whether work went to other streams than `home`, and the host asked for no wait after it and before `until`, ns.

    The host's calls are those to CUDA's runtime; a graph orders its own streams.
    """
    elsewhere = {e.correlation_id() for e in own if e.device_resource_id() != home}
    sent = [e.start_ns() for e in on_host if e.correlation_id() in elsewhere and "Graph" not in e.name()]
    waits = (e.start_ns() for e in on_host if any(word in e.name() for word in WAITS))
    return bool(sent) and not any(max(sent) < at < until for at in waits)


def _make_call(own: Sequence[Any], since: int, following: int, read: float, unwaited: bool) -> TracedCall:
    """What ran of a call whose marker and the next one started at these times, in ns."""
    origin = own[0].start_ns() if own else since
    late = max((e.end_ns() for e in own), default=0) - following
    kernels = [
        Kernel(e.name(), (e.start_ns() - origin) / 1e9, (e.end_ns() - origin) / 1e9, int(e.device_resource_id()))
        for e in own
    ]
    return TracedCall(tuple(kernels), max(0.0, late / 1e9), max(0.0, (since - origin) / 1e9), read, unwaited)


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "0").split(".") if part.isdigit())
