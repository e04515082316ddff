"""The kernel-span timer and the trace of what ran on the GPU, from CUPTI through torch's profiler.

A trace holds some calls, with a marker before each and one at the end. The marker is the L2 flush, or a fill of one
element where L2 is to stay warm, between kernels of the clock gauge. It is launched inside a named profiler range, so
that its kernels are known by the host call that launched them. A call has the work that the host launched between two
markers, or, where the host call of a kernel is unknown, that ran between them. No kernel is therefore recognised by
name or count, and kernels launched from other threads (autograd's) or outside of torch's operators belong to their call
too. The span of a call is from the start of its first kernel to the end of its last one, without a launch gap.

Tracing slows some kernels: with CUPTI's concurrent-kernel tracing, which torch.profiler uses, they take up to 5 % more
cycles (docs/dev/measuring.md). CUDA events therefore read each traced call too. The two instruments are compared on the
same calls, and the cost of tracing is the events' reading of traced calls against their reading of untraced ones.
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
WAITS = ("StreamWaitEvent", "Synchronize")  # parts of names of calls that make a stream or the host wait
HIDING_SECONDS = 3e-3  # least seconds of a spin that hides the host; a second session is ten times as slow
MAX_TRIES = 4  # sessions until the host stays ahead; each try uses the pace of the last try


class Untraceable(Exception):
    """The profiler cannot be used, or its trace cannot be split into calls. The message says why."""


@dataclass(frozen=True)
class TracedCall:
    """The activities of one launch."""

    kernels: tuple[Activity, ...]  # in order of start; times count from the first start
    overrun: float  # seconds of its work after the start of the next marker on the stream; 0: none
    head_start: float = 0.0  # seconds of its work before the start of its marker; 0: none
    events: float = 0.0  # seconds by CUDA events
    unwaited: bool = False  # whether work ran on another stream without a wait for its end

    @property
    def span(self) -> float:
        """The seconds from the first kernel's start to the last kernel's end; 0 where nothing ran."""
        return max((k.end for k in self.kernels), default=0.0)


class Tracer:
    """The tracer of launches on the current device: a timer of kernel spans, and the record of kernels."""

    def __init__(self, events: EventTimer, before: Callable[[], Any] = do_nothing) -> None:
        import torch

        os.environ.setdefault("KINETO_LOG_LEVEL", "5")
        version = tuple(map(int, (torch.version.cuda or "0").split(".")))
        if version >= (12, 6):  # in older CUDA, graphs crash after a teardown (torch/profiler/profiler.py)
            # without a teardown each later launch costs the host 12 us more
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
        self._events = events
        self.before = before
        self._tiny = torch.zeros(1, device="cuda")
        self._host_seconds = 100e-6
        self.host_bound = False  # whether gaps in some spans are the host's; its reader resets it
        with session(cpu=False, cuda=True):  # the first session takes seconds
            self._tiny.zero_()

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Return the spans of n launches in seconds."""
        return [call.span for call in self.calls([launch] * n)]

    def calls(
        self, launches: Sequence[Callable[[], Any]], before_each_try: Callable[[], Any] = do_nothing
    ) -> list[TracedCall]:
        """Trace some launches, one after the other, and return the device's work in each.

        Where the device caught up with the host, it traces again, in at most MAX_TRIES tries. `before_each_try` is
        called untraced. Raises Untraceable.
        """
        for _ in range(MAX_TRIES):
            before_each_try()
            activities, by_events, caught_up = self._session(launches)
            if not caught_up:
                break  # else the device waited for the host, and gaps between its kernels are the host's
        else:
            self.host_bound = True
        return _split_into_calls(activities, by_events)

    def _session(self, launches: Sequence[Callable[[], Any]]) -> tuple[Sequence[Any], list[float], bool]:
        """Trace the launches once.

        Return the profiler's events, the seconds of each call by CUDA events, and whether the device caught up with the
        host.
        """
        import torch
        from torch.profiler import record_function

        before = self._tiny.zero_ if self.before is do_nothing else self.before
        event_pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in launches]
        caught_up, gauge = False, self._events.gauge
        gauge.held_hz()  # forget the counts of an earlier session
        torch.cuda.synchronize()  # so that the earlier session, torn down at the next CUDA call, ends now
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

    `events` are the profiler's events, `by_events` the seconds of each call by CUDA events. Raises Untraceable where
    markers are missing.
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
        raise Untraceable("the profiler saw no kernel; another tool may use CUPTI, or it is not permitted")
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
        if at is None:  # the host call is unknown: assign the kernel by its time
            i = bisect.bisect_right(begins, event.start_ns()) - 1
        else:
            i = bisect.bisect_right(ranges, (at, math.inf)) - 1
        if i >= 0:  # before the first marker is the spin that hides the host
            calls[min(i, n - 1)].append(event)
    own_stream = next(e.device_resource_id() for e in on_device if e.correlation_id() in marker_of)
    found = []
    for i, activities in enumerate(calls):
        unwaited = _is_unwaited(activities, own_stream, on_host, ranges[i + 1][0])
        found.append(_make_call(activities, begins[i], begins[i + 1], by_events[i], unwaited))
    return found


def _is_unwaited(activities: Sequence[Any], own_stream: int, on_host: Sequence[Any], until: int) -> bool:
    """Return whether a call sent work to other streams than `own_stream` without a wait for it.

    `on_host` are the host's calls to the CUDA runtime; waits count after the work was sent and before `until`, in ns.
    Graphs are left out, because a graph orders its own streams.
    """
    elsewhere = {e.correlation_id() for e in activities if e.device_resource_id() != own_stream}
    sent = [e.start_ns() for e in on_host if e.correlation_id() in elsewhere and "Graph" not in e.name()]
    waits = (e.start_ns() for e in on_host if any(word in e.name() for word in WAITS))
    return bool(sent) and not any(max(sent) < at < until for at in waits)


def _make_call(activities: Sequence[Any], since: int, following: int, by_events: float, unwaited: bool) -> TracedCall:
    """Return the call of some activities; its marker started at `since`, and the next one at `following`, in ns."""
    origin = activities[0].start_ns() if activities else since
    late = max((e.end_ns() for e in activities), default=0) - following
    kernels = [
        Activity(e.name(), (e.start_ns() - origin) / 1e9, (e.end_ns() - origin) / 1e9, int(e.device_resource_id()))
        for e in activities
    ]
    return TracedCall(tuple(kernels), max(0.0, late / 1e9), max(0.0, (since - origin) / 1e9), by_events, unwaited)
