"""What the host does in one profiled call: operators, launches, waits for the device, and allocations.

A call that waits for the device cannot be launched ahead of it, and no CUDA graph can hold it. It waits where it reads
a result (`tensor.item()`, a mask made of it, a copy to the host) or asks for it; torch's operator names that as a rule,
else the runtime's call. Allocations go to torch's caching allocator; what it must take from the driver waits too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

# torch's operators that bring a number to the host, and what of the runtime waits; the first match of a wait counts
READS = re.compile(r"aten::(_local_scalar_dense|is_nonzero|nonzero|masked_select|unique.*|equal)$")
WAITS = re.compile(r"(cuda|hip)(Device|Stream|Event)Synchronize$|(cuda|hip)Memcpy$|cuCtxSynchronize$")
LAUNCHES = re.compile(r"(cuda|hip|cu)(Module)?(Launch|GraphLaunch)")
DRIVER = re.compile(r"(cuda|hip)(Malloc|Free|HostAlloc)")


def host_work(events: Sequence[Any], since: int, until: int, device: str) -> dict[str, Any]:
    """Return the fields of an analysis.profile HostWork, of a call from `since` to `until`, in ns of the host.

    `events` are Kineto's, `device` is "CPU" or "CUDA", whose allocations count.
    """
    inside = [e for e in events if since <= e.start_ns() <= until]
    on_host = [e.name() for e in inside if str(e.device_type()) == "DeviceType.CPU"]
    used = [e for e in inside if e.name() == "[memory]" and str(e.device_type()) == f"DeviceType.{device}"]
    taken = [e.nbytes() for e in used if e.nbytes() > 0]
    waits = Counter(name for name in on_host if READS.search(name)) or Counter(filter(WAITS.search, on_host))
    return {
        "operators": sum("::" in name and not name.startswith("autograd::") for name in on_host),
        "launches": sum(bool(LAUNCHES.match(name)) for name in on_host),
        "waits": dict(waits),
        "allocations": len(taken),
        "allocated": sum(taken),
        "from_driver": sum(bool(DRIVER.match(name)) for name in on_host),
    }
