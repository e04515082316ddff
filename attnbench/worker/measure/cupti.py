"""The kernel-span timer and the trace of what ran on the GPU, from CUPTI through torch's profiler.

A trace holds some calls, with a marker before each and one at the end. The marker is the L2 flush, or a fill of one
element where L2 is to stay warm, between kernels of the clock gauge. It is launched inside a named profiler range, so
its kernels are known by the host call that launched them. A call is what the host launched between two markers; where
the host call of a kernel is not known, what ran between them. So no kernel is recognised by name or count, and kernels
that were launched from other threads (autograd's) or past torch's operators belong to their call too. The span of a
call is from the start of its first kernel to the end of its last one; it holds no launch gap.

Tracing slows some kernels: with CUPTI's concurrent-kernel tracing, which torch.profiler uses, they take up to 5 % more
cycles (docs/dev/measuring.md). So CUDA events read each traced call too. The two instruments are compared on the same
calls, and the cost of tracing is the events' reading of traced calls against that of untraced ones.
"""

from __future__ import annotations

import bisect
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core.activity import Activity
from attnbench.worker.measure.profiler_session import recorded_events, session
from attnbench.worker.measure.sampling import do_nothing

if TYPE_CHECKING:
    from attnbench.worker.measure.cuda_events import EventTimer

MARK = "attnbench.mark"
WAITS = ("StreamWaitEvent", "Synchronize")  # parts of the names of calls that make a stream or the host wait
HIDING_SECONDS = 3e-3  # of a spin that hides the host, at least: a second session takes ten times as long
MAX_TRIES = 4  # sessions, until one in which the host keeps ahead; each try uses the pace that the last one showed


class Untraceable(Exception):
    """Raised where the profiler cannot be used, or its trace cannot be split into calls. The message says why."""


@dataclass(frozen=True)
class TracedCall:
    """The activities of one launch."""

    kernels: tuple[Activity, ...]  # in order of start; their times count from the start of the first
    overrun: float  # seconds by which it ended after the next marker on the stream began; 0 where it did not
    head_start: float = 0.0  # seconds by which it began before the marker ahead of it; 0 where it did not
    events: float = 0.0  # seconds between CUDA events around it
    unwaited: bool = False  # True: some ran on another stream, and the host made nothing wait for its end

    @property
    def span(self) -> float:
        """The seconds from the first kernel's start to the last one's end; 0 where nothing ran."""
        return max((k.end for k in self.kernels), default=0.0)


class Tracer:
    """Traces launches on the current device: a timer of kernel spans, and the record of which kernels ran."""

    def __init__(self, events: EventTimer, before: Callable[[], Any] = do_nothing) -> None:
        import torch

        os.environ.setdefault("KINETO_LOG_LEVEL", "5")
        version = tuple(map(int, (torch.version.cuda or "0").split(".")))
        if version >= (12, 6):  # older CUDA: graphs crash after it (torch/profiler/profiler.py)
            # without a teardown every later launch costs the host 12 us more
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
        self._events = events
        self.before = before
        self._tiny = torch.zeros(1, device="cuda")
        self._host_seconds = 100e-6
        self.host_bound = False  # True: gaps in some spans are the host's. The reader of this flag resets it
        with session(cpu=False, cuda=True):  # the first session takes seconds
            self._tiny.zero_()

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Return the spans of n launches in seconds."""
        return [call.span for call in self.calls([launch] * n)]

    def calls(
        self, launches: Sequence[Callable[[], Any]], before_each_try: Callable[[], Any] = do_nothing
    ) -> list[TracedCall]:
        """Trace some launches, one after the other, and return what the device did in each.

        Traces again where the device caught up with the host, at most MAX_TRIES times. `before_each_try` is called
        untraced. Raises Untraceable.
        """
        for _ in range(MAX_TRIES):
            before_each_try()
            activities, by_events, caught_up = self._session(launches)
            if not caught_up:
                break  # where it did, the device waited for the host, and gaps between its kernels are the host's
        else:
            self.host_bound = True
        return _split_into_calls(activities, by_events)

    def _session(self, launches: Sequence[Callable[[], Any]]) -> tuple[Sequence[Any], list[float], bool]:
        """Trace the launches once.

        Return the profiler's events, the seconds that CUDA events read of each call, and whether the device caught up
        with the host.
        """
        import torch
        from torch.profiler import record_function

        before = self._tiny.zero_ if self.before is do_nothing else self.before
        event_pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in launches]
        caught_up, gauge = False, self._events.gauge
        gauge.held_hz()  # forgets what an earlier session counted
        torch.cuda.synchronize()  # the session before is torn down at the next CUDA call: let that happen now
        with session(cuda=True) as profiler:
            self._events.hide_host(2 * len(launches) * self._host_seconds + HIDING_SECONDS)
            began = time.perf_counter()
            for launch, (start, end) in zip(launches, event_pairs, strict=True):
                with record_function(MARK):
                    gauge.end()
                    before()
                    gauge.begin()
                start.record()
                launch()
                end.record()
                caught_up = caught_up or bool(start.query())
            self._host_seconds = (time.perf_counter() - began) / len(launches)
            with record_function(MARK):
                gauge.end()
                before()
            torch.cuda.synchronize()
        by_events = [float(start.elapsed_time(end)) / 1e3 for start, end in event_pairs]
        return recorded_events(profiler), by_events, caught_up


def _split_into_calls(events: Sequence[Any], by_events: Sequence[float]) -> list[TracedCall]:
    """Assign the device's activities to calls by the markers around each call.

    `events` are the profiler's events, `by_events` the seconds that CUDA events read of each call. Raises Untraceable
    where markers are missing.
    """
    n = len(by_events)
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
    marker_of = {c: i for c, at in launched.items() for i, (a, b) in enumerate(ranges) if a <= at <= b}
    marker_starts: dict[int, int] = {}  # marker -> its start on the device, in ns
    work = []
    for event in sorted(on_device, key=lambda e: int(e.start_ns())):
        if event.correlation_id() in marker_of:
            marker_starts.setdefault(marker_of[event.correlation_id()], event.start_ns())
        else:
            work.append(event)
    if sorted(marker_starts) != list(range(n + 1)):
        raise Untraceable(f"the profiler saw {len(marker_starts)} of {n + 1} markers")
    begins = [marker_starts[i] for i in range(n + 1)]
    calls: list[list[Any]] = [[] for _ in by_events]
    for event in work:
        at = launched.get(event.correlation_id())
        if at is None:  # its host call is not known: assign it by when it ran
            i = bisect.bisect_right(begins, event.start_ns()) - 1
        else:
            i = bisect.bisect_right(ranges, (at, math.inf)) - 1
        if i >= 0:  # else it is the spin that hides the host, ahead of the first marker
            calls[min(i, n - 1)].append(event)
    own_stream = next(e.device_resource_id() for e in on_device if e.correlation_id() in marker_of)
    found = []
    for i, activities in enumerate(calls):
        unwaited = _is_unwaited(activities, own_stream, on_host, ranges[i + 1][0])
        found.append(_make_call(activities, begins[i], begins[i + 1], by_events[i], unwaited))
    return found


def _is_unwaited(activities: Sequence[Any], own_stream: int, on_host: Sequence[Any], until: int) -> bool:
    """Whether a call sent work to other streams than `own_stream`, and nothing was made to wait for it.

    `on_host` are the host's calls to the CUDA runtime; a wait counts after the work was sent and before `until`, in ns.
    Graphs are left out, as a graph orders its own streams.
    """
    elsewhere = {e.correlation_id() for e in activities if e.device_resource_id() != own_stream}
    sent = [e.start_ns() for e in on_host if e.correlation_id() in elsewhere and "Graph" not in e.name()]
    waits = (e.start_ns() for e in on_host if any(word in e.name() for word in WAITS))
    return bool(sent) and not any(max(sent) < at < until for at in waits)


def _make_call(activities: Sequence[Any], since: int, following: int, by_events: float, unwaited: bool) -> TracedCall:
    """Return the call of some activities whose own marker started at `since` and the next one at `following`, in ns."""
    origin = activities[0].start_ns() if activities else since
    late = max((e.end_ns() for e in activities), default=0) - following
    kernels = [
        Activity(e.name(), (e.start_ns() - origin) / 1e9, (e.end_ns() - origin) / 1e9, int(e.device_resource_id()))
        for e in activities
    ]
    return TracedCall(tuple(kernels), max(0.0, late / 1e9), max(0.0, (since - origin) / 1e9), by_events, unwaited)
