"""The time to build a plan, which a batch of these lengths needs once a step before its launches (`Prepared.plan`).

The host builds most of it, so the time is the host's, until the device has finished all work. torch's sync debug mode
counts a plan's waits for the device. It sees torch's own operators; waits in a library's own code are in the time, but
are not counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter  # bound here, so that no kernel can replace it

from attnbench.core.record import Measurement
from attnbench.core.text import count
from attnbench.worker.instruments import Instruments

PLANS = 5  # timed plans


def time_plan(instruments: Instruments, plan: Callable[[], object]) -> tuple[Measurement, str]:
    """Return the seconds of PLANS calls, and a note on the number of waits for the device; "" without any."""
    waits = _count_waits(plan) if instruments.device.type == "cuda" else 0
    samples = []
    for _ in range(PLANS):
        instruments.synchronize()
        began = perf_counter()
        plan()
        instruments.synchronize()
        samples.append(perf_counter() - began)
    note = f"its plan waits for the device {count(waits, 'time')} or more, by torch's count" if waits else ""
    return Measurement("s", tuple(samples)), note


def _count_waits(plan: Callable[[], object]) -> int:
    """Return the number of waits for the device in a call of the plan, by torch's operators."""
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
