"""When sampling stops and how it rests, with a scripted instrument on a scripted clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from attnbench.measure import timing
from attnbench.measure.timing import AGREE, MAX_BATCH, MAX_REST, MAX_WARMUP, REST, CpuTimer, collect
from attnbench.types import Policy

POLICY = Policy(
    warmup_s=0.025, min_samples=10, max_samples=1000, target=0.005, min_seconds=0.1, max_seconds=0.2, burst_s=0.015
)


@dataclass
class Scripted:
    """An instrument whose n-th sample is script(n) seconds, on a clock that passes `overhead` more for each."""

    script: Callable[[int], float]
    overhead: float = 0.0
    most: int = MAX_BATCH  # that it gives at once
    resting: float = 0.0  # seconds of pause for each of work
    now: float = 0.0
    taken: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)  # of each batch, by the clock
    rests: list[float] = field(default_factory=list)

    def sample(self, n: int) -> list[float]:
        assert n >= 1
        self.asked.append(n)
        values = [self.script(len(self.taken) + i) for i in range(min(n, self.most))]
        self.worked.append(sum(values) + len(values) * self.overhead)
        self.now += self.worked[-1]
        self.taken += values
        return values

    def rest(self, worked: float) -> None:
        self.rests.append(worked)
        self.now += self.resting * worked

    def collect(self, policy: Policy = POLICY) -> list[float]:
        return collect(self.sample, policy, rest=self.rest if self.resting else None, clock=lambda: self.now)


def noisy(scale: float, spread: float = 0.5) -> Callable[[int], float]:
    """Never steady: evenly between (1 - spread) and (1 + spread) of `scale`."""
    return lambda n: scale * (1 + spread * (2 * ((n * 7) % 101) / 100 - 1))


def alternating(scale: float) -> Callable[[int], float]:
    """Two modes, between which the interval of the median never closes."""
    return lambda n: scale * (0.9 if n % 2 else 1.1)


def test_stops_when_the_median_is_sure_and_min_seconds_have_passed() -> None:
    values = Scripted(lambda n: 1e-3).collect()
    assert POLICY.min_seconds <= sum(values) <= POLICY.min_seconds + POLICY.burst_s + 1e-3


def test_min_seconds_hold_although_the_median_is_sure_at_once() -> None:
    short, long = (Scripted(lambda n: 1e-3).collect(replace(POLICY, min_seconds=s)) for s in (0.01, 0.15))
    assert len(short) < 30 < 150 <= len(long)


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
    values = Scripted(alternating(1e-3)).collect()
    assert POLICY.max_seconds <= sum(values) <= POLICY.max_seconds + POLICY.burst_s + 2e-3


def test_the_cap_counts_wall_time_with_what_surrounds_the_samples() -> None:
    timer = Scripted(alternating(1e-4), overhead=9e-4)  # the flush of the cache costs more than the call
    values = timer.collect()
    assert 0.2 <= 1e-3 * len(values) < 0.2 + MAX_BATCH * 1e-3
    assert sum(values) < 0.03


def test_the_cap_counts_pauses_too() -> None:
    tired, fresh = Scripted(alternating(1e-3), resting=REST), Scripted(alternating(1e-3))
    assert len(tired.collect()) == pytest.approx(len(fresh.collect()) / (1 + REST), abs=2 * 15)


@pytest.mark.parametrize(
    ("call", "samples"), [(0.03, 10), (0.049, 10), (0.051, 6), (0.9, 6), (1.1, 3), (30.0, 3)]
)
def test_how_many_samples_a_call_of_that_length_takes_at_least(call: float, samples: int) -> None:
    """With a time cap that one of them exceeds; none of what was paid for is thrown away."""
    timer = Scripted(lambda n: call)
    assert len(timer.collect(replace(POLICY, max_seconds=call / 2))) == samples
    assert len(timer.taken) == samples


@pytest.mark.parametrize("call", [1e-3, 0.3, 2.0])
def test_a_policy_may_ask_for_fewer(call: float) -> None:
    values = Scripted(lambda n: call).collect(replace(POLICY, min_samples=2, min_seconds=0.0, max_seconds=0.0))
    assert 2 <= len(values) <= 15
    assert len(values) == 2 or call < POLICY.burst_s


def test_min_samples_are_taken_beyond_the_cap() -> None:
    values = Scripted(alternating(0.04)).collect(replace(POLICY, min_samples=12))
    assert len(values) == 12
    assert sum(values) > 2 * POLICY.max_seconds


@pytest.mark.parametrize("most", [1, 7, 10, 100, 101])
@pytest.mark.parametrize("call", [1e-6, 1e-3, 0.3])
def test_never_more_than_max_samples(most: int, call: float) -> None:
    values = Scripted(alternating(call)).collect(replace(POLICY, max_samples=most, max_seconds=60.0))
    assert len(values) == most


def test_an_instrument_may_give_fewer_than_asked() -> None:
    timer = Scripted(lambda n: 1e-4, most=3)
    values = timer.collect()
    assert sum(values) >= POLICY.min_seconds
    assert max(timer.asked) == MAX_BATCH


def test_warm_up_lasts_its_time_and_is_not_kept() -> None:
    """The first 20 ms run at half speed, as while the clock rises."""
    timer = Scripted(lambda n: (2e-3 if n < 10 else 1e-3) * (1 + n * 1e-6))  # no two alike
    values = timer.collect()
    assert values == timer.taken[-len(values) :]
    assert max(values) < 1.5e-3
    assert sum(timer.taken) - sum(values) >= POLICY.warmup_s


def test_warm_up_goes_on_until_two_readings_agree() -> None:
    """Each batch 5 % faster than the last, for many times warmup_s; then steady."""
    timer = Scripted(lambda n: 1e-3 * max(1.0, 3 * 0.995**n))
    values = timer.collect(replace(POLICY, max_seconds=0.1))
    skipped = timer.taken[: -len(values)]
    assert sum(skipped) > 5 * POLICY.warmup_s
    assert values[0] < (1 + 2 * AGREE) * 1e-3


def test_warm_up_that_agrees_at_once_lasts_no_longer_than_it_must() -> None:
    timer = Scripted(lambda n: 1e-3 * (1 + n * 1e-6))
    values = timer.collect()
    assert POLICY.warmup_s <= sum(timer.taken) - sum(values) < POLICY.warmup_s + POLICY.burst_s + 1e-3


def test_readings_that_never_agree_do_not_warm_up_for_ever() -> None:
    timer = Scripted(lambda n: 1e-3 * (1 + n * 1e-7 + (len(timer.asked) % 2) / 2))  # batches alternate
    values = timer.collect()
    cap = MAX_WARMUP * POLICY.warmup_s
    assert cap <= sum(timer.taken) - sum(values) <= cap + 2 * POLICY.burst_s


def test_samples_that_still_fall_go_on_beyond_the_cap() -> None:
    """15 % slower at first, too slowly for the warm-up to see, and steady after 116 calls."""
    policy = replace(POLICY, target=1.0)
    calm = Scripted(lambda n: 1e-3).collect(policy)
    falling = Scripted(lambda n: 1e-3 * max(1.0, 1.15 * 0.9988**n)).collect(policy)
    assert sum(calm) < POLICY.max_seconds
    assert POLICY.max_seconds + 0.1 < sum(falling) < 3 * POLICY.max_seconds
    assert falling[-1] == 1e-3


def test_falling_for_ever_ends_at_three_times_the_cap() -> None:
    values = Scripted(lambda n: 5e-3 * 0.998**n).collect()
    assert 3 * POLICY.max_seconds <= sum(values) <= 3 * POLICY.max_seconds + 2 * POLICY.burst_s


def test_what_becomes_slower_is_not_waited_for() -> None:
    """A clock that falls under load would fall for as long as it is watched."""
    values = Scripted(lambda n: 1e-3 * 1.002**n).collect()
    assert sum(values) <= POLICY.max_seconds + 2 * POLICY.burst_s


def test_a_slow_first_call_does_not_decide_how_long_the_rest_is() -> None:
    """The first sample may be 20 ms (caches, clocks) for a call of 10 us: batches must follow the later ones."""
    timer = Scripted(lambda n: 0.02 if n == 0 else 1e-5)
    values = timer.collect()
    assert 0.02 not in values
    assert max(timer.asked) == MAX_BATCH
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


@pytest.mark.parametrize("call", [1e-8, 1e-5, 4e-4, 1.6e-3, 4e-3, 7e-3])
def test_no_burst_is_longer_than_the_policy_says(call: float) -> None:
    timer = Scripted(lambda n: call, resting=REST)
    timer.collect(replace(POLICY, min_samples=50))
    assert max(timer.worked) <= POLICY.burst_s
    assert max(timer.asked) <= MAX_BATCH
    assert max(timer.worked) > POLICY.burst_s / 2 or max(timer.asked) == MAX_BATCH  # nor needlessly short


def test_a_call_longer_than_a_burst_goes_alone() -> None:
    timer = Scripted(lambda n: 0.02, resting=REST)
    timer.collect()
    assert set(timer.asked) == {1}


def test_every_batch_is_followed_by_a_rest_for_its_work_alone() -> None:
    timer = Scripted(noisy(1e-3), overhead=1e-4, resting=REST)
    timer.collect()
    assert timer.rests == pytest.approx(timer.worked)  # the pause itself is no work
    assert len(timer.rests) == len(timer.asked) > 5


def test_a_pause_follows_the_work_up_to_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    for worked in (0.0, 0.01, 10.0):
        timing.pause(worked)
    assert slept == [0.0, REST * 0.01, MAX_REST]


def test_cpu_timer_times_the_launch_alone() -> None:
    ticks: Iterator[int] = iter(range(0, 10**12, 1_000_000))  # every look at the clock is 1 ms later
    order: list[str] = []

    def clock() -> int:
        order.append("clock")
        return next(ticks)

    timer = CpuTimer(clock, before=lambda: order.append("before"))
    assert timer.samples(lambda: order.append("launch"), 3) == [1e-3] * 3
    assert order == ["before", "clock", "launch", "clock"] * 3


def test_what_comes_before_a_sample_may_be_changed() -> None:
    seen: list[Any] = []
    timer = CpuTimer(before=lambda: seen.append("flush"))
    timer.samples(lambda: None, 1)
    timer.before = timing.nothing
    timer.samples(lambda: None, 5)
    assert seen == ["flush"]


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
