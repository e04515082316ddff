"""The time of a plan: what a batch of these lengths needs once a step, before its launches (`Prepared.plan`).

The host builds most of it, so the host's clock counts, until the device has nothing left to do. torch's sync debug mode
tells how often a plan waits for the device. It sees torch's own operators; what a library waits for in code of its own
is in the time, and is not told.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter  # own names, which no kernel can replace

from attnbench.core.record import Measurement
from attnbench.core.text import count
from attnbench.worker.instruments import Instruments

PLANS = 5  # that are timed


def time_plan(instruments: Instruments, plan: Callable[[], object]) -> tuple[Measurement, str]:
    """Return the seconds of PLANS calls, and a note on how often one waits for the device, "" where it does not."""
    waits = _count_waits(plan) if instruments.device.type == "cuda" else 0
    samples = []
    for _ in range(PLANS):
        instruments.synchronize()
        began = perf_counter()
        plan()
        instruments.synchronize()
        samples.append(perf_counter() - began)
    note = f"its plan waits for the device {count(waits, 'time')}, as far as torch sees" if waits else ""
    return Measurement("s", tuple(samples)), note


def _count_waits(plan: Callable[[], object]) -> int:
    """Return how often torch's operators wait for the device in a call of the plan."""
    import torch

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            plan()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)
