"""How much other work a device does, and from when on figures measured beside it cannot be believed.

The doctor, every command that measures and every report ask these functions, so that they agree.
"""

from __future__ import annotations

from attnbench.core.machine import Device

BUSY = 0.02  # of a GPU's time while attnbench lets it idle; a desktop's share is less
LOADED, OVERLOADED = 0.25, 0.75  # of a CPU's cores, by other processes


def is_too_busy(device: Device) -> bool:
    """Return whether other processes used a device so much, before anything was measured, that it was unfit."""
    return device.busy is not None and device.busy > (OVERLOADED if device.kind == "cpu" else BUSY)


def other_work(device: Device) -> str:
    """Return what was seen of other processes on a device, in a few words: "98% of its time: train (pid 12)"."""
    if device.kind == "cpu":
        return f"work for {device.busy or 0.0:.0%} of its cores"
    who = ", ".join(device.users) or "a process that cannot be named here, as in a container"
    return f"{device.busy or 0.0:.0%} of its time: {who}"


def refusal(device: Device) -> str:
    """Return why nothing is measured on a device that other processes use, and what to do; "" where it is free.

    A CPU is never refused, as a laptop is never idle.
    """
    if device.kind == "cpu" or not is_too_busy(device):
        return ""
    return (
        f"another process uses {device} ({other_work(device)}), so that no figure could be believed; wait for its end, "
        "choose another GPU with --device cuda:N, or measure all the same with --allow-busy"
    )
