"""Measures how many cores other processes leave to this one while it measures on a CPU."""

from __future__ import annotations

import os
from time import perf_counter, process_time  # own names, which no kernel can replace

from attnbench.core.other_work import core_seconds


class CoreWatch:
    """Watches the cores of this process from its creation on."""

    def __init__(self) -> None:
        self._before = self._now()

    def cores_left(self) -> float | None:
        """Return how many of its cores others have not used since, on average; None where that cannot be read."""
        worked, own, began = self._before
        worked_now, own_now, now = self._now()
        if worked is None or worked_now is None:
            return None
        others = (worked_now - worked - (own_now - own)) / (now - began)
        return len(os.sched_getaffinity(0)) - max(0.0, others)

    @staticmethod
    def _now() -> tuple[float | None, float, float]:
        """Return the seconds that all cores have worked, those of this process's threads, and the time."""
        return core_seconds(), process_time(), perf_counter()
