"""Facts of the host that decide whether it is fit to measure: load, cores, container limits, CPU frequency governors.

The module uses the standard library only, reads /proc and /sys, changes nothing and needs no root. The doctor
(analysis/doctor) judges the facts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from attnbench.core.cgroups import cpu_limit, read_text
from attnbench.core.other_work import OVERLOADED, core_seconds

CPUS = Path("/sys/devices/system/cpu")
NOW = 0.25  # seconds in which the present use of the cores is measured


def read_host_facts() -> dict[str, Any]:
    """Return the facts of this host in JSON types; None for a fact that cannot be read.

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
    """Return the number of cores that other processes use; None where the system does not tell.

    It is the load average of the last minute. Where that is too high to measure, the present use of the cores counts if
    it is lower, because the average stays high for a minute after a run of attnbench or a build. Call this before any
    worker starts.
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
