"""Kernels of a GPU, or operators of torch on a CPU, that ran in a call, each with its start and end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill on a GPU, or an operator of torch on a CPU; start and end in seconds."""

    name: str
    start: float
    end: float
    stream: int = 0  # the GPU's stream

    @property
    def seconds(self) -> float:
        return self.end - self.start


def busy_seconds(activities: Iterable[Activity]) -> float:
    """Return the seconds in which at least one of the activities ran; overlapping time counts once."""
    total, until = 0.0, -math.inf
    for activity in sorted(activities, key=lambda a: a.start):
        total += max(0.0, activity.end - max(activity.start, until))
        until = max(until, activity.end)
    return total
