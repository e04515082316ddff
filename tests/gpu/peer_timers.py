"""attnbench's timer against the peers', on one closure, in turns: do_bench, and what libraries publish to time theirs.

A peer reads in bursts with pauses, since do_bench's default of 100 ms runs into the power cap, where the clock falls.
Even so each of its calls comes behind some ten others without a pause, and attnbench gives a GPU at its cap pauses: so
both are compared in cycles too, by the clock that their bursts ended with.
"""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from attnbench.core import stats
from attnbench.core.policy import Policy
from attnbench.worker.measure.sampling import Pacer, collect_samples, do_nothing, pause
from attnbench.worker.measure_cell import CellMeasurer

TURNS, BURSTS, REST = 5, 4, 0.05  # REST in seconds
SHORTEST = 0.5e-3  # seconds; below, the peers differ by the launch gap that events contain
Launch = Callable[[], Any]


@dataclass(frozen=True)
class PeerTimer:
    """Another's way to time a launch, in seconds."""

    read: Callable[[Launch], float]
    module: str  # that must be there
    backends: str = "*"  # glob: whose library publishes it
    l2: Literal["cold", "warm"] = "cold"


def _do_bench(launch: Launch, **options: Any) -> float:
    from triton.testing import do_bench

    return do_bench(launch, **options) / 1e3


def _flash_attn(launch: Launch) -> float:
    from flash_attn.utils.benchmark import benchmark_forward

    return benchmark_forward(launch, repeats=30, verbose=False)[1].mean  # as benchmark_flash_attention.py


def _flashinfer(launch: Launch) -> float:
    from flashinfer.testing import bench_gpu_time

    return stats.median([float(ms) for ms in bench_gpu_time(launch, dry_run_time_ms=1, repeat_time_ms=10)]) / 1e3


PEER_TIMERS: Mapping[str, PeerTimer] = {
    "do_bench": PeerTimer(partial(_do_bench, warmup=1, rep=10, return_mode="median"), "triton"),
    # the arguments of flash-attention's benchmarks/benchmark_attn.py, which serves FA2, FA3 and FA4
    "benchmark_attn.py": PeerTimer(partial(_do_bench, warmup=5, rep=10), "triton", "fa[234]"),
    "flash_attn.utils.benchmark": PeerTimer(_flash_attn, "flash_attn.utils.benchmark", "fa2", l2="warm"),
    "flashinfer.testing": PeerTimer(_flashinfer, "flashinfer.testing", "flashinfer*"),
}


def peer_timers_for(backend: str) -> dict[str, PeerTimer]:
    """Those that can be called here and are meant for this backend."""
    return {
        name: p
        for name, p in PEER_TIMERS.items()
        if fnmatch.fnmatchcase(backend, p.backends) and _is_installed(p.module)
    }


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


@dataclass(frozen=True)
class TimerComparison:
    """Medians over turns."""

    latency: float  # seconds, by attnbench
    clock: float  # Hz of the multiprocessors as attnbench's bursts ended
    peer_clock: float
    ratio: float  # attnbench / peer, in seconds
    cycles: float  # the same in cycles


def compare_timers(measurer: CellMeasurer, launch: Launch, policy: Policy, peer: PeerTimer) -> TimerComparison | None:
    """None for what is too short to compare."""
    events = measurer.events
    assert events is not None
    events.before = measurer.flush if peer.l2 == "cold" else do_nothing

    def ours() -> tuple[float, float]:
        events.reset()
        pacer = Pacer(events.clocks, events.best_clock, policy.burst_s)
        found = stats.median(collect_samples(partial(events.samples, launch), policy, pacer=pacer))
        return found, stats.median(events.clocks)

    def theirs() -> tuple[float, float]:
        bursts, clocks = [], []
        for _ in range(BURSTS):
            bursts.append(peer.read(launch))
            clocks.append(events.clock_hz())
            pause(REST)
        return stats.median(bursts), stats.median(clocks)

    try:
        if ours()[0] < SHORTEST:
            return None
        found = []
        for turn in range(TURNS):
            if turn % 2:
                mine, other = ours(), theirs()
            else:
                other, mine = theirs(), ours()
            found.append((*mine, *other))
    finally:
        events.before = measurer.flush
    return TimerComparison(
        latency=stats.median([own for own, _, _, _ in found]),
        clock=stats.median([hz for _, hz, _, _ in found]),
        peer_clock=stats.median([hz for _, _, _, hz in found]),
        ratio=stats.median([own / other for own, _, other, _ in found]),
        cycles=stats.median([own * hz / (other * other_hz) for own, hz, other, other_hz in found]),
    )
