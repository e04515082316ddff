"""Other processes' work on a device, and the amount of it beside which figures cannot be believed.

The doctor, all commands that measure and all reports use these functions, so that they agree.
"""

from __future__ import annotations

import os
from pathlib import Path

from attnbench.core.machine import Device

BUSY = 0.02  # share of a GPU's time while attnbench leaves it idle; a desktop uses less
LOADED, OVERLOADED = 0.25, 0.75  # shares of a CPU's cores used by other processes


def core_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Return the seconds that this process's cores have worked for all processes since the machine's start.

    Work of another virtual machine (steal) counts. None where the system does not tell, as outside of Linux.
    """
    try:
        own, lines = os.sched_getaffinity(0), stat.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [line.split() for line in lines if line[:3] == "cpu" and line[3:4].isdigit()]
        times = [[*map(int, words[1:9])] for words in found if int(words[0][3:]) in own]
        # user, nice, system, idle, iowait, irq, softirq, steal
        return sum(sum(of) - of[3] - of[4] for of in times) / os.sysconf("SC_CLK_TCK") if times else None
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def is_too_busy(device: Device) -> bool:
    """Return whether other processes used a device too much for measurements on it, before anything was measured."""
    return device.busy is not None and device.busy > (OVERLOADED if device.kind == "cpu" else BUSY)


def is_short_of_cores(device: Device, left: float | None) -> bool:
    """Return whether other processes took so many of a CPU's cores that times may be too long by any factor.

    `left` is the number of cores that they left, on average; None where unknown. Threads that share a core wait for one
    another at each barrier, which costs a kernel far more than its share of the core.
    """
    return left is not None and device.threads is not None and left < (1 - LOADED) * device.threads


def other_work(device: Device) -> str:
    """Return other processes' use of a device in a few words: "98% of its time: train (pid 12)"."""
    if device.kind == "cpu":
        return f"work for {device.busy or 0.0:.0%} of its cores"
    who = ", ".join(device.users) or "a process that cannot be named here, as in a container"
    return f"{device.busy or 0.0:.0%} of its time: {who}"


def refusal(device: Device) -> str:
    """Return why nothing is measured on a device that other processes use, and what to do; "" for a free device.

    A CPU is never refused, as a laptop is never idle.
    """
    if device.kind == "cpu" or not is_too_busy(device):
        return ""
    return (
        f"another process uses {device} ({other_work(device)}), so that no figure could be believed; wait for its end, "
        "choose another GPU with --device cuda:N, or measure all the same with --allow-busy"
    )
