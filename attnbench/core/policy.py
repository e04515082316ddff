"""The measuring policy: the instrument, the state of the L2 cache, and the number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Instrument = Literal["events", "graph", "cupti"]
INSTRUMENTS: tuple[Instrument, ...] = get_args(Instrument)
Timer = Literal["events", "graph", "cupti", "outside"]  # outside: the parent's clock (run/untrusted.py)

# The number of the measuring method, raised when a change of the clock's gauge, the flush of L2, the timer or the
# sampling changes the meaning of a time. Method 2 reads the SM clock during the calls (1: after them), and flushes L2
# by reads (1: by writes, so that a call waited for the flush to be written back).
METHOD = 2

# The number of the check, raised when a new version finds results right that it called wrong; results/cells.py reads
# it. Check 1 called some right kernels wrong: it judged kernels by their share of a CPU's time, took eager's copies of
# pages for another kernel, and gave v of fp8's hard inputs a mean.
CHECK = 2

# Seconds. Below this reading of CUDA events the gap between launches is a large part of it, so the kernels' own span is
# measured too.
SHORT = 100e-6
SPAN_LIMIT = 1e-3  # seconds by events; shorter calls get a span too, so that all backends of a case can have one


@dataclass(frozen=True)
class Policy:
    """How the cells of one run are measured. A cell is one case on one backend."""

    timer: Timer = "events"  # CUDA events, a CUDA graph or CUPTI; on a CPU perf_counter_ns is used instead
    l2: Literal["cold", "warm"] = "cold"  # whether L2 is flushed before each call
    warmup_s: float = 0.015  # least seconds of calls before the first sample; more while calls get faster
    min_samples: int = 10  # least samples of a call under 15 ms (6 that agree from 5 ms on); longer: 6, over 50 ms 3
    max_samples: int = 1000  # most samples of one cell
    target: float = 0.005  # stop when half the 95 % interval of the median is within this fraction of the median
    min_seconds: float = 0.02  # least seconds of sampling one cell, pauses included
    max_seconds: float = 0.2  # most seconds of sampling one cell, once there are min_samples
    burst_s: float = 0.015  # seconds of calls between two readings of the clock; if it fell, a pause follows
    cross_check: float = 0.0  # fraction of the cells that are measured by all three instruments in turns
    sustained_s: float = 0.0  # most seconds of calls without pauses, for a cell's steady speed; 0: off
    isolate_power: bool = False  # wait before each cell until the power has fallen and the clock is back
    bitwise: bool = False  # also whether each cell gives the same bits again: worker/same_bits.py
    untrusted: bool = False  # verdicts from outside the process of each kernel: run/untrusted.py
    caches: Literal["kept", "fresh"] = "kept"  # fresh: each cell in a new process with empty compile caches
    timeout_s: float = 120.0  # seconds until a job is killed; more where its forecast is long or it starts a compiler
    seed: int = 0  # seed of the random inputs and of the order of the jobs
