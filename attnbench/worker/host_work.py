"""What the host does in one profiled call: operators, launches, waits for the device, and allocations.

A call that waits for the device cannot be launched ahead of it, and no CUDA graph can hold it. It waits where it reads
a result (`tensor.item()`, a mask made of it, a copy to the host) or asks for it. A wait has the name of torch's
operator that reads, else of the operator in which the runtime waits, else of the runtime's call. On a CPU nothing
waits, and only what reads is seen. Allocations go to torch's caching allocator; what it must take from the driver waits
too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

READS = re.compile(r"aten::(_local_scalar_dense|nonzero|masked_select|_?unique\w*|equal)$")
WAITS = re.compile(r"(cuda|hip)(Device|Stream|Event)Synchronize$|(cuda|hip)Memcpy$|cuCtxSynchronize$")
LAUNCHES = re.compile(r"(cuda|hip|cu)(Module)?(Launch|GraphLaunch)")
DRIVER = re.compile(r"(cuda|hip)(Malloc|Free|HostAlloc)")


def host_work(events: Sequence[Any], since: int, until: int, device: str) -> dict[str, Any]:
    """Return the fields of an analysis.profile HostWork, of a call from `since` to `until`, in ns of the host.

    `events` are Kineto's, `device` is "CPU" or "CUDA", whose allocations count.
    """
    inside = [e for e in events if since <= e.start_ns() <= until]
    on_host = [e for e in inside if str(e.device_type()) == "DeviceType.CPU" and e.name() != "[memory]"]
    used = [e for e in inside if e.name() == "[memory]" and str(e.device_type()) == f"DeviceType.{device}"]
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
    """Return the name of each wait; one within another that is named does not count again."""
    reads = [e for e in operators if READS.match(e.name())]
    outermost = [e for e in reads if not any(_holds(other, e) for other in reads if other is not e)]
    names = [e.name() for e in outermost]
    for wait in (e for e in on_host if WAITS.match(e.name())):
        if not any(_holds(read, wait) for read in outermost):
            holding = [e for e in operators if _holds(e, wait)]
            names.append(min(holding, key=lambda e: e.end_ns() - e.start_ns(), default=wait).name())
    return names


def _holds(outer: Any, inner: Any) -> bool:
    """Whether one event of a thread lies within another."""
    same = outer.start_thread_id() == inner.start_thread_id()
    return same and bool(outer.start_ns() <= inner.start_ns() and inner.end_ns() <= outer.end_ns())
