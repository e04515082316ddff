"""A flame graph of the host's work in launching calls, by pyinstrument where it is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 1.0  # seconds of sampled calls
INTERVAL = 1e-4  # seconds between samples
CALLS = 8  # launches before each wait for the device, so that its queue does not fill
MISSING = "no flame graph: pyinstrument is missing; pip install pyinstrument"


def write(launch: Callable[[], Any], wait: Callable[[], Any], path: str) -> str | None:
    """Sample the host in calls of `launch` and write the flame graph, an HTML page; return None, or why it failed.

    `wait` returns when the device has finished all launches; it is not sampled.
    """
    try:
        from pyinstrument import Profiler
    except ImportError:
        return MISSING
    profiler = Profiler(interval=INTERVAL, async_mode="disabled")
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        with profiler:
            for _ in range(CALLS):
                launch()
        wait()
    try:
        Path(path).write_text(profiler.output_html(), encoding="utf-8")
    except OSError as error:
        return f"no flame graph: {error}"
    return None
