"""How to measure: the instrument, the state of the cache, and when there are enough samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Instrument = Literal["events", "graph", "cupti"]

INSTRUMENTS: tuple[Instrument, ...] = get_args(Instrument)

SHORT = 100e-6  # seconds as CUDA events read; below, a launch gap counts and the kernels' own span is read too


@dataclass(frozen=True)
class Policy:
    """How to measure: instrument, cache state, and when there are enough samples."""

    timer: Instrument = "events"  # on a CPU perf_counter_ns takes its place
    l2: Literal["cold", "warm"] = "cold"
    warmup_s: float = 0.025
    min_samples: int = 10  # where one call takes under 15 ms; else 6, and 3 over 250 ms
    max_samples: int = 1000
    target: float = 0.005  # stop when the 95 % interval of the median is within this fraction of it
    min_seconds: float = 0.04  # of sampling, pauses included
    max_seconds: float = 0.2  # time cap of the samples of one cell, once min_samples are there
    burst_s: float = 0.015  # work between two looks at the clock, and pauses where it fell
    cross_check: float = 0.0  # share of the cells that all three instruments measure, in turns
    sustained_s: float = 0.0  # how long a cell may run without pauses to find its steady speed; 0 for not
    isolate_power: bool = False  # wait before each cell until the last one's power and heat are gone
    caches: Literal["kept", "fresh"] = "kept"  # fresh: each cell in a new process that finds no compiled kernel
    timeout_s: float = 120.0  # for a job before it is killed; more where it is forecast long, or starts a compiler
    seed: int = 0
