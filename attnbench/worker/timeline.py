"""The timeline of one profiled call, from Kineto's events: kernels or operators, memory over time, the host's work.

Torch's allocators report each block that they hand out or take back to the profiler, with the host's time. On a CPU
that is the call's time. On a GPU memory is reused in stream order, so that a kernel runs with the memory allocated when
the host launched it: each kernel of the traced call gets the allocated bytes at its launch.

A call that waits for the device cannot be launched ahead of it, and no CUDA graph can hold it. It waits where it reads
a result (`tensor.item()`, a mask made of it, a copy to the host), or where it synchronises. A wait has the name of
torch's operator that reads, else of the operator in which the runtime waits, else of the runtime's call. On a CPU
nothing waits, and only operators that read are seen. Allocations go to torch's caching allocator; memory that it must
take from the driver also costs a wait.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

RANGE = "attnbench.call"
READS = re.compile(r"aten::(_local_scalar_dense|nonzero|masked_select|_?unique\w*|equal)$")
WAITS = re.compile(r"(cuda|hip)(Device|Stream|Event)Synchronize$|(cuda|hip)Memcpy$|cuCtxSynchronize$")
LAUNCHES = re.compile(r"(cuda|hip|cu)(Module)?(Launch|GraphLaunch)")
DRIVER = re.compile(r"(cuda|hip)(Malloc|Free|HostAlloc)")
WRAPPER_SHARE = 0.8  # an operator with this share of its time in one other operator is its wrapper


def session(launch: Callable[[], Any], *, on_cuda: bool) -> tuple[Any, list[Any]]:
    """Profile one call with its allocations. Return the profiler and its events."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    if on_cuda:
        torch.cuda.synchronize()  # so that the earlier session, torn down at the next CUDA call, ends now
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        with record_function("attnbench.start"):  # the first range of a session costs a millisecond
            pass
        with record_function(RANGE):
            result = launch()
        if on_cuda:
            torch.cuda.synchronize()
    del result  # freed here, so that the free is not part of the call
    return profiler, list(profiler.profiler.kineto_results.events()) if profiler.profiler else []


def host_of(events: Sequence[Any], device: str) -> dict[str, Any]:
    """Return the fields of a run.profile HostWork; `device` is "CPU" or "CUDA", whose allocations count."""
    since, until = range_of(events)
    inside = [e for e in events if since <= e.start_ns() <= until]
    on_host = [e for e in inside if is_on(e, "CPU") and e.name() != "[memory]"]
    used = [e for e in inside if e.name() == "[memory]" and is_on(e, device)]
    taken = [e.nbytes() for e in used if e.nbytes() > 0]
    operators = [e for e in on_host if "::" in e.name() and not e.name().startswith("autograd::")]
    return {
        "operators": len(operators),
        "launches": sum(bool(LAUNCHES.match(e.name())) for e in on_host),
        "waits": dict(Counter(_waits(on_host, operators))),
        "allocations": len(taken),
        "allocated": sum(taken),
        "from_driver": sum(bool(DRIVER.match(e.name())) for e in on_host),
    }


def _waits(on_host: Sequence[Any], operators: Sequence[Any]) -> list[str]:
    """Return the name of each wait; a wait within another named one does not count again."""
    reads = [e for e in operators if READS.match(e.name())]
    outermost = [e for e in reads if not any(_holds(other, e) for other in reads if other is not e)]
    names = [e.name() for e in outermost]
    for wait in (e for e in on_host if WAITS.match(e.name())):
        if not any(_holds(read, wait) for read in outermost):
            holding = [e for e in operators if _holds(e, wait)]
            names.append(min(holding, key=lambda e: e.end_ns() - e.start_ns(), default=wait).name())
    return names


def _holds(outer: Any, inner: Any) -> bool:
    """Return whether one event of a thread lies within another."""
    same = outer.start_thread_id() == inner.start_thread_id()
    return same and bool(outer.start_ns() <= inner.start_ns() and inner.end_ns() <= outer.end_ns())


def kernels_of(events: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a Profile for one call on a GPU: timeline and host work, from the events of the profiler."""
    ran = sorted((e for e in events if ran_on_device(e)), key=lambda e: int(e.start_ns()))
    since = ran[0].start_ns() if ran else 0
    times = [((e.start_ns() - since) / 1e9, (e.end_ns() - since) / 1e9) for e in ran]
    return {
        "host": host_of(events, "CUDA"),
        "what": "kernels",
        "activities": [
            {"name": e.name(), "start": start, "end": end, "stream": e.device_resource_id()}
            for e, (start, end) in zip(ran, times, strict=True)
        ],
        "length": max((end for _, end in times), default=0.0),
        "memory": [(start, nbytes) for (start, _), nbytes in zip(times, at_launch(events), strict=True)],
    }


def operators_of(events: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a Profile for one call on a CPU: timeline and host work, from the events of the profiler."""
    since, end = range_of(events)
    inside = [e for e in events if since <= e.start_ns() <= end]
    return {
        "host": host_of(events, "CPU"),
        "what": "operators",
        "activities": [
            {"name": name, "start": (a - since) / 1e9, "end": (b - since) / 1e9} for name, a, b in operators(inside)
        ],
        "length": (end - since) / 1e9,
        "memory": [((at - since) / 1e9, nbytes) for at, nbytes in zip(*_running(inside, "CPU"), strict=True)],
    }


def at_launch(events: Sequence[Any]) -> list[int]:
    """Return the allocated bytes at the host's launch of each kernel, in the order in which kernels ran."""
    times, sums = _running(events, "CUDA")
    on_host = launch_times(events)
    held, launched = [], 0
    for event in sorted((e for e in events if ran_on_device(e)), key=lambda e: int(e.start_ns())):
        # a kernel without a host call of its own counts as launched with the kernel before it
        launched = on_host.get(event.correlation_id(), launched)
        before = bisect.bisect_right(times, launched)
        held.append(sums[before - 1] if before else 0)
    return held


@dataclass
class _Node:
    """One operator with its start and end in ns, and the operators that it called."""

    name: str
    start: int
    end: int
    children: list[_Node] = field(default_factory=list)


def operators(events: Sequence[Any]) -> list[tuple[str, int, int]]:
    """Return (name, start, end) in ns of the operators that no other operator called.

    A wrapper gets the name of the operator that it wraps.
    """
    roots: list[_Node] = []
    open_: dict[int, list[_Node]] = {}  # by thread, outermost first
    own = (e for e in events if "::" in e.name() and not e.name().startswith("autograd::"))
    for event in sorted(own, key=lambda e: (e.start_ns(), -e.end_ns())):
        node = _Node(event.name(), event.start_ns(), event.end_ns())
        stack = open_.setdefault(event.start_thread_id(), [])
        while stack and stack[-1].end <= node.start:
            stack.pop()
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    return [(_wrapped(root), root.start, root.end) for root in roots]


def _wrapped(node: _Node) -> str:
    """Return the name of the innermost operator in which `node` spends most of its time."""
    longest = max(node.children, key=lambda child: child.end - child.start, default=None)
    if longest is not None and longest.end - longest.start >= WRAPPER_SHARE * (node.end - node.start):
        return _wrapped(longest)
    return node.name


def range_of(events: Sequence[Any]) -> tuple[int, int]:
    """Return the host's times of beginning and end of the profiled call, in ns; an empty range where they were lost."""
    whole = next((e for e in events if e.name() == RANGE and is_on(e, "CPU")), None)
    return (whole.start_ns(), whole.end_ns()) if whole else (0, -1)


def _running(events: Sequence[Any], device: str) -> tuple[list[int], list[int]]:
    """Return the host times in ns of uses of a device's allocator, and the bytes allocated after each."""
    used = sorted((e for e in events if e.name() == "[memory]" and is_on(e, device)), key=lambda e: int(e.start_ns()))
    return [e.start_ns() for e in used], list(itertools.accumulate(e.nbytes() for e in used))


def launch_times(events: Sequence[Any]) -> dict[int, int]:
    """Return correlation id -> time of the host's launch of its work, in ns."""
    calls = (e for e in events if not is_on(e, "CUDA") and e.correlation_id() > 0 and e.name().startswith("cu"))
    return {e.correlation_id(): e.start_ns() for e in calls}


def ran_on_device(event: Any) -> bool:
    """Return whether an event is a kernel, copy or fill of a GPU."""
    return is_on(event, "CUDA") and not event.is_user_annotation() and event.duration_ns() > 0


def is_on(event: Any, device: str) -> bool:
    """Return whether an event belongs to the host ("CPU") or to a GPU ("CUDA")."""
    return str(event.device_type()) == f"DeviceType.{device}"
