"""Compare attnbench's timer with other timers on one launch, in turns: do_bench, and the timers of libraries.

The other timers run in short bursts with pauses, because do_bench's default of 100 ms reaches the power cap, where the
clock falls. Even so each of their calls follows some ten others without a pause, while attnbench pauses where a GPU is
at its cap. Therefore both are compared in cycles too, by the clock at the end of their bursts.
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

TURNS, BURSTS = 5, 4
REST = 0.05  # seconds between bursts
SHORTEST = 0.5e-3  # seconds; below, the timers differ by the launch gap in the events
Launch = Callable[[], Any]


@dataclass(frozen=True)
class PeerTimer:
    """Another timer of a launch."""

    read: Callable[[Launch], float]  # returns the seconds of a launch
    module: str  # module that must be installed
    backends: str = "*"  # glob of the backends for which its library publishes it
    l2: Literal["cold", "warm"] = "cold"


def _do_bench(launch: Launch, **options: Any) -> float:
    from triton.testing import do_bench

    return do_bench(launch, **options) / 1e3


def _flash_attn(launch: Launch) -> float:
    from flash_attn.utils.benchmark import benchmark_forward

    return benchmark_forward(launch, repeats=30, verbose=False)[1].mean  # as in benchmark_flash_attention.py


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
    """Return name -> timer, for the installed timers of a backend."""
    return {
        name: p
        for name, p in PEER_TIMERS.items()
        if fnmatch.fnmatchcase(backend, p.backends) and _is_installed(p.module)
    }


def _is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


@dataclass(frozen=True)
class TimerComparison:
    """A comparison of attnbench's timer with another one: medians over turns."""

    latency: float  # seconds, by attnbench
    clock: float  # Hz, SM clock during attnbench's calls
    peer_clock: float  # Hz, SM clock during the peer's bursts
    ratio: float  # attnbench / peer, in seconds
    cycles: float  # attnbench / peer, in cycles


def compare_timers(measurer: CellMeasurer, launch: Launch, policy: Policy, peer: PeerTimer) -> TimerComparison | None:
    """Compare attnbench's timer with another one on a launch. Return None where the launch is too short to compare."""
    events = measurer.events
    assert events is not None
    events.before = measurer.flush if peer.l2 == "cold" else do_nothing

    def time_ours() -> tuple[float, float]:
        events.reset()
        pacer = Pacer(events.clocks, events.best_clock, policy.burst_s)
        found = stats.median(collect_samples(partial(events.samples, launch), policy, pacer=pacer))
        return found, stats.median([clock.held for clock in events.clocks])

    def time_theirs() -> tuple[float, float]:
        bursts, clocks = [], []
        for _ in range(BURSTS):
            events.gauge.begin()
            bursts.append(peer.read(launch))
            events.gauge.end()
            clocks.append(events.gauge.held_hz())
            pause(REST)
        return stats.median(bursts), stats.median(clocks)

    try:
        if time_ours()[0] < SHORTEST:
            return None
        found = []
        for turn in range(TURNS):
            if turn % 2:
                own, other = time_ours(), time_theirs()
            else:
                other, own = time_theirs(), time_ours()
            found.append((*own, *other))
    finally:
        events.before = measurer.flush
    return TimerComparison(
        latency=stats.median([own for own, _, _, _ in found]),
        clock=stats.median([hz for _, hz, _, _ in found]),
        peer_clock=stats.median([hz for _, _, _, hz in found]),
        ratio=stats.median([own / other for own, _, other, _ in found]),
        cycles=stats.median([own * hz / (other * other_hz) for own, hz, other, other_hz in found]),
    )
