"""The measuring policy: which instrument, which state of the L2 cache, and when there are enough samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Instrument = Literal["events", "graph", "cupti"]
INSTRUMENTS: tuple[Instrument, ...] = get_args(Instrument)

# The number of the measuring method, raised when a change of gauge, flush, timer or sampling changes what a figure
# means: 1 until November 2026; 2 counts the SM clock during the calls, and flushes L2 by reads, so that no call waits
# for the flush to be written back.
METHOD = 2

# The number of the check, raised when it no longer finds fault with results that it found wrong before, which
# results/cells.py tells from others: 1 until November 2026 judged kernels by their share of a CPU's time, took eager's
# copies of pages for another kernel, and gave v of fp8's hard inputs a mean.
CHECK = 2

# Seconds. Where CUDA events read less than this, the gap between launches is a large part of the reading, so the
# kernels' own span is measured too.
SHORT = 100e-6
SPAN_LIMIT = 1e-3  # seconds by events, up to which the span is measured, so that all backends of a case can have it


@dataclass(frozen=True)
class Policy:
    """How the cells of one run are measured. A cell is one case on one backend."""

    timer: Instrument = "events"  # CUDA events, a CUDA graph or CUPTI; on a CPU perf_counter_ns is used instead
    l2: Literal["cold", "warm"] = "cold"  # whether L2 is flushed before each call
    warmup_s: float = 0.015  # least time spent on calls before the first sample; longer while they still get faster
    min_samples: int = 10  # for calls under 15 ms (6 that agree, from 5 ms on); 6 for longer calls, 3 over 50 ms
    max_samples: int = 1000
    target: float = 0.005  # stop when half the 95 % interval of the median is within this fraction of the median
    min_seconds: float = 0.02  # least time spent sampling one cell, pauses included
    max_seconds: float = 0.2  # most time spent sampling one cell, once there are min_samples
    burst_s: float = 0.015  # work between two readings of the clock; where the clock fell, a pause follows
    cross_check: float = 0.0  # fraction of the cells that are measured by all three instruments in turns
    sustained_s: float = 0.0  # longest run without pauses, to find the steady speed of a cell; 0: off
    isolate_power: bool = False  # wait before each cell until the power has fallen and the clock is back
    caches: Literal["kept", "fresh"] = "kept"  # fresh: each cell in a new process with empty compile caches
    timeout_s: float = 120.0  # a job is killed after this; later where it is forecast long or starts a compiler
    seed: int = 0  # for the random inputs and the order of the jobs
