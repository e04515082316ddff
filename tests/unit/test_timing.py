"""When sampling stops, with a scripted timer on a scripted clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from attnbench.measure.timing import MAX_BATCH, CpuTimer, collect
from attnbench.types import Policy

POLICY = Policy(warmup_s=0.025, min_samples=10, max_samples=1000, target=0.005, min_seconds=0.1, max_seconds=0.2)


@dataclass
class Scripted:
    """A timer whose n-th sample is script(n) seconds, on a clock that passes `overhead` more for each."""

    script: Callable[[int], float]
    overhead: float = 0.0
    now: float = 0.0
    taken: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    name: str = "scripted"

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        assert n >= 1
        self.batches.append(n)
        values = [self.script(len(self.taken) + i) for i in range(n)]
        self.now += sum(values) + n * self.overhead
        self.taken += values
        return values

    def synchronize(self) -> None:
        pass

    def collect(self, policy: Policy = POLICY) -> list[float]:
        return collect(self, lambda: None, policy, clock=lambda: self.now)


def noisy(scale: float, spread: float = 0.5) -> Callable[[int], float]:
    """Never steady: evenly between (1 - spread) and (1 + spread) of `scale`."""
    return lambda n: scale * (1 + spread * (2 * ((n * 7) % 101) / 100 - 1))


def seconds_of(timer: Scripted, values: list[float]) -> float:
    return sum(values) + len(values) * timer.overhead


def test_stops_when_the_median_is_sure_and_min_seconds_have_passed() -> None:
    timer = Scripted(lambda n: 1e-3)
    values = timer.collect()
    assert POLICY.min_seconds <= sum(values) < POLICY.min_seconds + MAX_BATCH * 1e-3


def test_min_seconds_hold_although_the_median_is_sure_at_once() -> None:
    short, long = (Scripted(lambda n: 1e-3).collect(replace(POLICY, min_seconds=s)) for s in (0.01, 0.15))
    assert len(short) < 50 < 150 <= len(long)


def test_goes_on_until_the_target_is_met() -> None:
    """Noisy samples, then steady ones: the interval of the median narrows only with some of those."""

    def script(n: int) -> float:
        return noisy(1e-3)(n) if n < 300 else 1e-3

    strict, loose = Scripted(script), Scripted(script)
    strict.collect(replace(POLICY, max_seconds=10.0))
    loose.collect(replace(POLICY, max_seconds=10.0, target=1.0))
    assert 300 < len(strict.taken) < 500
    assert len(loose.taken) < 200


def test_what_never_settles_is_capped_by_time() -> None:
    timer = Scripted(noisy(1e-3))
    values = timer.collect()
    assert POLICY.max_seconds <= sum(values) < POLICY.max_seconds + 2 * MAX_BATCH * 1e-3


def test_the_cap_counts_wall_time_with_what_surrounds_the_samples() -> None:
    timer = Scripted(noisy(1e-4), overhead=9e-4)  # the flush of the cache costs more than the call
    values = timer.collect()
    assert POLICY.max_seconds <= seconds_of(timer, values) < POLICY.max_seconds + 2 * MAX_BATCH * 1e-3
    assert sum(values) < 0.1


def test_min_samples_are_taken_beyond_the_cap() -> None:
    values = Scripted(noisy(0.3)).collect()
    assert len(values) == POLICY.min_samples
    assert sum(values) > 10 * POLICY.max_seconds


@pytest.mark.parametrize(("call", "samples"), [(0.9, 10), (1.1, 3), (30.0, 3)])
def test_calls_of_over_a_second_take_three_samples(call: float, samples: int) -> None:
    timer = Scripted(lambda n: call)
    assert len(timer.collect()) == samples
    assert len(timer.taken) == samples  # and none of them is thrown away


def test_max_samples_end_it() -> None:
    timer = Scripted(noisy(1e-6))
    values = timer.collect(replace(POLICY, max_samples=100, max_seconds=60.0))
    assert 100 <= len(values) < 100 + MAX_BATCH


def test_warm_up_lasts_its_time_and_is_not_kept() -> None:
    """The first 20 ms run at half speed, as while the clock rises."""
    timer = Scripted(lambda n: (2e-3 if n < 10 else 1e-3) * (1 + n * 1e-6))  # no two alike
    values = timer.collect()
    assert values == timer.taken[-len(values) :]
    assert max(values) < 1.5e-3
    assert sum(timer.taken) - sum(values) >= POLICY.warmup_s
    assert sum(timer.taken) - sum(values) < POLICY.warmup_s + MAX_BATCH * 2e-3


def test_a_slow_first_call_does_not_decide_how_long_the_rest_is() -> None:
    """The first sample may be 20 ms (caches, clocks) for a call of 10 us: batches must follow the later ones."""
    timer = Scripted(lambda n: 0.02 if n == 0 else 1e-5)
    values = timer.collect()
    assert 0.02 not in values
    assert max(timer.batches) == MAX_BATCH
    assert len(values) >= 100


def test_a_long_first_estimate_is_kept() -> None:
    timer = Scripted(lambda n: 0.5 + n / 100)
    values = timer.collect()
    assert values[0] == 0.5
    assert values == timer.taken


def test_all_samples_are_kept_in_order_outliers_too() -> None:
    timer = Scripted(lambda n: 5e-3 if n % 40 == 39 else 1e-3)
    values = timer.collect()
    assert values == timer.taken[-len(values) :]
    assert 5e-3 in values


def test_a_single_timer_call_never_exceeds_the_batch() -> None:
    timer = Scripted(lambda n: 1e-8)
    timer.collect(replace(POLICY, min_samples=500))
    assert max(timer.batches) <= MAX_BATCH


def test_cpu_timer_times_the_launch_alone() -> None:
    ticks: Iterator[int] = iter(range(0, 10**12, 1_000_000))  # every look at the clock is 1 ms later
    order: list[str] = []

    def clock() -> int:
        order.append("clock")
        return next(ticks)

    timer = CpuTimer(clock, flush=lambda: order.append("flush"))
    assert timer.samples(lambda: order.append("launch"), 3) == [1e-3] * 3
    assert order == ["flush", "clock", "launch", "clock"] * 3


def test_cpu_timer_frees_each_result_before_the_next_launch() -> None:
    alive = []

    class Result:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def launch() -> Result:
        assert not alive
        return Result()

    assert len(CpuTimer().samples(launch, 3)) == 3
    assert not alive
