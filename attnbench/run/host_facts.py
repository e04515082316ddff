"""Facts of the host that decide whether it is fit to measure: load, cores, container limits, CPU frequency governors.

Standard library only; reads /proc and /sys, sets nothing and needs no root. The doctor (analysis/doctor) judges them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from attnbench.core.cgroups import cpu_limit, read_text
from attnbench.core.other_work import OVERLOADED, core_seconds

CPUS = Path("/sys/devices/system/cpu")
NOW = 0.25  # seconds in which the cores are watched


def read_host_facts() -> dict[str, Any]:
    """Return the facts of this host in JSON types; None for what cannot be read.

    Call it before any worker starts, because workers add to the load average that it reads.
    """
    governors = {text for path in CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor") if (text := read_text(path))}
    return {
        "load": cpu_load(),
        "cores": os.cpu_count(),
        "cpu_limit": cpu_limit(),
        "governors": sorted(governors),
        "nvidia_driver": Path("/proc/driver/nvidia/version").exists(),
    }


def cpu_load() -> float | None:
    """Return how many cores other processes use: the load average of the last minute; None where the system has none.

    Where that is too much to measure beside, what the cores do now counts if it is less: after a run of attnbench, or
    a build, the average stays high for a minute. Call it before any worker starts.
    """
    try:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
    except (AttributeError, OSError):  # Windows, a container without /proc
        return None
    if load <= OVERLOADED * cores:
        return load
    before, began = core_seconds(), time.monotonic()
    time.sleep(NOW)
    after, seconds = core_seconds(), time.monotonic() - began
    return load if before is None or after is None else min(load, (after - before) / seconds)
