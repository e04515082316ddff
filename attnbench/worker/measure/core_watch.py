"""The number of cores that other processes leave to this one while it measures on a CPU."""

from __future__ import annotations

import os
from time import perf_counter, process_time  # bound here, so that no kernel can replace it

from attnbench.core.other_work import core_seconds


class CoreWatch:
    """A watch of this process's cores, from its creation on."""

    def __init__(self) -> None:
        self._before = self._now()

    def cores_left(self) -> float | None:
        """Return the average number of cores that others have not used since the creation; None where unknown.

        It is unknown too where the clock has not moved since.
        """
        worked, own, began = self._before
        worked_now, own_now, now = self._now()
        if worked is None or worked_now is None or now <= began:
            return None
        others = (worked_now - worked - (own_now - own)) / (now - began)
        return len(os.sched_getaffinity(0)) - max(0.0, others)

    @staticmethod
    def _now() -> tuple[float | None, float, float]:
        """Return the seconds worked by all cores, and by this process's threads, and the time."""
        return core_seconds(), process_time(), perf_counter()
