"""What ran on a CPU: the operators that one call went through, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def operators(launch: Callable[[], Any]) -> list[str]:
    """Names of torch's operators in one call, in order; what runs outside torch is not seen."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        launch()
    if profiler.profiler is None:
        return []
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda e: int(e.start_ns()))
    return [e.name() for e in events if "::" in e.name()]
