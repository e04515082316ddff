"""The sampling loop and its pacer, with a scripted timer on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from attnbench.core.policy import Policy
from attnbench.worker.measure import sampling
from attnbench.worker.measure.sampling import (
    CALL_OF_FEW,
    LONG_CALL,
    MAX_BATCH,
    MAX_DROPPED_BURSTS,
    MAX_REST,
    MAX_WARMUP,
    MIN_BURSTS,
    MIN_CLOCK_RATIO,
    MIN_SAMPLES_LONG,
    MIN_SAMPLES_VERY_LONG,
    REST_PER_WORK,
    WARM_TOLERANCE,
    BatchClock,
    CpuTimer,
    Pacer,
    collect_samples,
)

POLICY = Policy(
    warmup_s=0.025, min_samples=10, max_samples=1000, target=0.005, min_seconds=0.1, max_seconds=0.2, burst_s=0.015
)


@dataclass
class Scripted:
    """A timer whose n-th sample is script(n) seconds, on a clock that advances by `overhead` more for each.

    It is also the pacer.
    """

    script: Callable[[int], float]
    overhead: float = 0.0
    most: int = MAX_BATCH  # most samples of a batch
    resting: float | None = None  # seconds of pause per second of work; None: no pacer
    accept_burst: Callable[[int], bool] = lambda n: True  # whether the n-th burst is accepted
    now: float = 0.0
    taken: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)  # seconds of each batch, by the clock
    paced: list[tuple[float, int]] = field(default_factory=list)  # (seconds, samples) of each burst that the pacer gets

    def sample(self, n: int) -> list[float]:
        assert n >= 1
        self.asked.append(n)
        values = [self.script(len(self.taken) + i) for i in range(min(n, self.most))]
        self.worked.append(sum(values) + len(values) * self.overhead)
        self.now += self.worked[-1]
        self.taken += values
        return values

    def rest(self) -> None:
        self.now += (self.resting or 0.0) * self.paced[-1][0] if self.paced else 0.0

    def accepts(self, worked: float, calls: int) -> bool:
        self.paced.append((worked, calls))
        return self.accept_burst(len(self.paced))

    def collect(self, policy: Policy = POLICY) -> list[float]:
        pacer: Any = None if self.resting is None else self
        return collect_samples(self.sample, policy, pacer=pacer, clock=lambda: self.now)


def noisy(scale: float, spread: float = 0.5) -> Callable[[int], float]:
    """Return a script that is never steady: values between (1 - spread) and (1 + spread) of `scale`."""
    return lambda n: scale * (1 + spread * (2 * ((n * 7) % 101) / 100 - 1))


def alternating(scale: float) -> Callable[[int], float]:
    """Return a script of two modes, with which the interval of the median never becomes narrow."""
    return lambda n: scale * (0.9 if n % 2 else 1.1)


def test_stops_when_the_interval_is_narrow_and_min_seconds_have_passed() -> None:
    values = Scripted(lambda n: 1e-3).collect()
    assert POLICY.min_seconds <= sum(values) <= POLICY.min_seconds + POLICY.burst_s + 1e-3


def test_min_seconds_hold_where_the_interval_is_narrow_at_once() -> None:
    short, long = (Scripted(lambda n: 1e-3).collect(replace(POLICY, min_seconds=s)) for s in (0.01, 0.15))
    assert len(short) < 70 < 150 <= len(long)


def test_goes_on_until_the_target_is_met() -> None:
    """Sampling goes on until the target is met: the median's interval becomes narrow with some steady samples."""

    def script(n: int) -> float:
        return noisy(1e-3)(n) if n < 300 else 1e-3

    strict, loose = Scripted(script), Scripted(script)
    strict.collect(replace(POLICY, max_seconds=10.0))
    loose.collect(replace(POLICY, max_seconds=10.0, target=1.0))
    assert 300 < len(strict.taken) < 500
    assert len(loose.taken) < 200


def test_samples_that_never_settle_end_at_the_time_cap() -> None:
    values = Scripted(alternating(1e-3)).collect()
    assert POLICY.max_seconds <= sum(values) <= POLICY.max_seconds + POLICY.burst_s + 2e-3


def test_the_time_cap_includes_the_flush() -> None:
    timer = Scripted(alternating(1e-4), overhead=9e-4)  # the flush takes longer than the call
    values = timer.collect()
    assert 0.2 <= 1e-3 * len(values) < 0.2 + MAX_BATCH * 1e-3
    assert sum(values) < 0.03


def test_the_time_cap_includes_pauses() -> None:
    tired, fresh = Scripted(alternating(1e-3), resting=REST_PER_WORK), Scripted(alternating(1e-3))
    assert len(tired.collect()) == pytest.approx(len(fresh.collect()) / (1 + REST_PER_WORK), abs=2 * 15)


@pytest.mark.parametrize(
    ("call", "samples"),
    [
        (0.9 * CALL_OF_FEW, 12),  # in bursts of three
        (1.1 * CALL_OF_FEW, 6),
        (0.9 * LONG_CALL, 6),
        (1.1 * LONG_CALL, MIN_SAMPLES_LONG),
        (0.04, MIN_SAMPLES_LONG),
        (0.06, MIN_SAMPLES_VERY_LONG),
        (30.0, MIN_SAMPLES_VERY_LONG),
    ],
)
def test_long_calls_need_fewer_samples(call: float, samples: int) -> None:
    """Long calls need fewer samples; the time cap is shorter than one of these calls."""
    assert (MIN_SAMPLES_LONG, MIN_SAMPLES_VERY_LONG) == (6, 3)
    assert len(Scripted(lambda n: call).collect(replace(POLICY, min_seconds=0.0, max_seconds=call / 2))) == samples


@pytest.mark.parametrize(("apart", "samples"), [(0.001, 6), (0.004, 10)])
@pytest.mark.parametrize("asked", [10, 40])
def test_few_samples_of_a_call_of_some_ms_are_enough_where_they_agree(apart: float, samples: int, asked: int) -> None:
    timer = Scripted(lambda n: 0.01 * (1 + apart * (n % 2)))
    policy = replace(POLICY, min_samples=asked, min_seconds=0.0, max_seconds=0.02)
    assert len(timer.collect(policy)) == samples * asked // 10


@pytest.mark.parametrize("call", [0.026, 0.3, 30.0])
def test_a_call_as_long_as_the_warm_up_is_kept(call: float) -> None:
    """A call as long as the warm-up is kept as a sample: it is expensive, and warms the device up itself."""
    timer = Scripted(lambda n: call + n / 1e6)
    values = timer.collect()
    assert values == timer.taken
    assert set(timer.asked) == {1}


def test_min_samples_are_taken_beyond_the_cap() -> None:
    values = Scripted(alternating(0.012)).collect(replace(POLICY, min_samples=30))
    assert len(values) == 30
    assert sum(values) > 1.5 * POLICY.max_seconds


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
    """The warm-up lasts its time and is not kept; its 20 ms run at half speed, as while the clock rises."""
    timer = Scripted(lambda n: (2e-3 if n < 10 else 1e-3) * (1 + n * 1e-6))  # no two samples are equal
    values = timer.collect()
    assert values == timer.taken[-len(values) :]
    assert max(values) < 1.5e-3
    assert sum(timer.taken) - sum(values) >= POLICY.warmup_s


def test_warm_up_goes_on_until_two_readings_agree() -> None:
    """The warm-up goes on until two readings agree: batches become 5 % faster for many times warmup_s, then steady."""
    timer = Scripted(lambda n: 1e-3 * max(1.0, 3 * 0.995**n))
    values = timer.collect(replace(POLICY, max_seconds=0.1))
    skipped = timer.taken[: -len(values)]
    assert sum(skipped) > 5 * POLICY.warmup_s
    assert values[0] < (1 + 2 * WARM_TOLERANCE) * 1e-3


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
    """Samples that still fall, by 15 % over 116 calls, too slowly for the warm-up, continue beyond the cap."""
    policy = replace(POLICY, target=1.0)
    calm = Scripted(lambda n: 1e-3).collect(policy)
    falling = Scripted(lambda n: 1e-3 * max(1.0, 1.15 * 0.9988**n)).collect(policy)
    assert sum(calm) < POLICY.max_seconds
    assert POLICY.max_seconds + 0.1 < sum(falling) < 3 * POLICY.max_seconds
    assert falling[-1] == 1e-3


def test_falling_for_ever_ends_at_three_times_the_cap() -> None:
    values = Scripted(lambda n: 5e-3 * 0.998**n).collect()
    assert 3 * POLICY.max_seconds <= sum(values) <= 3 * POLICY.max_seconds + 2 * POLICY.burst_s


def test_samples_that_become_slower_do_not_prolong_sampling() -> None:
    """Samples that become slower do not prolong sampling, because a clock may fall as long as the load lasts."""
    values = Scripted(lambda n: 1e-3 * 1.002**n).collect()
    assert sum(values) <= POLICY.max_seconds + 2 * POLICY.burst_s


def test_a_slow_first_call_does_not_set_the_batch_size() -> None:
    """The first sample may be 20 ms (caches, clocks) for a call of 10 us; the size of batches must follow the later
    ones.
    """
    timer = Scripted(lambda n: 0.02 if n == 0 else 1e-5)
    values = timer.collect()
    assert 0.02 not in values
    assert max(timer.asked) == MAX_BATCH
    assert len(values) >= 100


def test_all_samples_are_kept_in_order_outliers_too() -> None:
    timer = Scripted(lambda n: 5e-3 if n % 40 == 39 else 1e-3)
    values = timer.collect()
    assert values == timer.taken[-len(values) :]
    assert 5e-3 in values


@pytest.mark.parametrize("call", [1e-8, 1e-5, 4e-4, 1.6e-3, 4e-3, 7e-3])
def test_no_burst_is_longer_than_the_policy_says(call: float) -> None:
    timer = Scripted(lambda n: call, resting=REST_PER_WORK)
    timer.collect(replace(POLICY, min_samples=50))
    assert max(timer.worked) <= POLICY.burst_s
    assert max(timer.asked) <= MAX_BATCH
    assert max(timer.worked) > POLICY.burst_s / 2 or max(timer.asked) == MAX_BATCH  # no burst is needlessly short


def test_a_call_longer_than_a_burst_goes_alone() -> None:
    timer = Scripted(lambda n: 0.02, resting=REST_PER_WORK)
    timer.collect()
    assert set(timer.asked) == {1}


def test_the_pacer_gets_the_work_of_each_burst() -> None:
    timer = Scripted(noisy(1e-3), overhead=1e-4, most=9, resting=REST_PER_WORK)
    timer.collect()
    assert [worked for worked, _ in timer.paced] == pytest.approx(timer.worked)  # work without the pause
    assert [calls for _, calls in timer.paced] == [min(n, 9) for n in timer.asked]
    assert len(timer.paced) > 5


def test_a_rejected_burst_leaves_no_sample() -> None:
    """A rejected burst leaves no sample; every third burst is held down and slower."""
    timer = Scripted(lambda n: 1e-3, resting=0.0, accept_burst=lambda n: n % 3 > 0)
    timer.script = lambda n: 1e-3 if (len(timer.paced) + 1) % 3 else 2e-3
    values = timer.collect()
    assert 2e-3 in timer.taken
    assert set(values) == {1e-3}
    assert sum(values) >= MIN_BURSTS * 0.99 * POLICY.burst_s


def test_a_rejected_long_first_call_is_not_kept() -> None:
    timer = Scripted(lambda n: 0.3 + n / 100, resting=0.0, accept_burst=lambda n: n > 1)
    assert timer.collect() == timer.taken[1:]


def test_a_rejected_burst_does_not_set_the_size_of_the_next() -> None:
    timer = Scripted(lambda n: 1e-3, resting=0.0, accept_burst=lambda n: n != 6)
    timer.script = lambda n: 5e-3 if len(timer.paced) == 5 else 1e-3
    timer.collect()
    assert timer.asked[4:7] == [15, 15, 15]


@pytest.mark.parametrize(("call", "bursts"), [(1e-6, MIN_BURSTS), (4e-3, MIN_BURSTS + 2), (0.3, MIN_SAMPLES_LONG)])
def test_short_calls_have_several_bursts_at_least(call: float, bursts: int) -> None:
    """Short calls have several bursts at least, because a disturbance affects all samples of a burst."""
    timer = Scripted(lambda n: call, resting=0.0)
    values = timer.collect(replace(POLICY, min_seconds=0.0, max_seconds=0.0, target=1.0))
    assert len(values) == sum(calls for _, calls in timer.paced[-bursts:])


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(sampling.time, "sleep", found.append)
    return found


def test_a_pause_follows_the_work_up_to_its_cap(slept: list[float]) -> None:
    for worked in (0.0, 0.01, 10.0):
        sampling.pause(worked)
    assert slept == [0.0, REST_PER_WORK * 0.01, MAX_REST]


Burst = tuple[bool, list[float]]  # whether it is accepted, and the pauses after it


def clock_of(before: float, under_load: float = 0.9) -> BatchClock:
    return BatchClock(before, under_load * before, before)


def paced(
    bursts: list[float] | list[BatchClock], best: float, slept: list[float], *, worked: float = 0.01, calls: int = 10
) -> tuple[list[Burst], list[BatchClock]]:
    """Return the pacer's decisions on bursts of these clocks, and the clocks that it keeps.

    A single number is the clock before a burst, which holds 0.9 of it.
    """
    clocks: list[BatchClock] = []
    pacer, found = Pacer(clocks, best, POLICY.burst_s), []
    for burst in bursts:
        clocks.append(burst if isinstance(burst, BatchClock) else clock_of(burst))
        counts = pacer.accepts(worked, calls)
        pacer.rest()
        found.append((counts, slept[:]))
        slept.clear()
    return found, clocks


TOP, LOW = 1.98e9, 1.90e9


def test_bursts_are_accepted_without_pauses_while_the_clock_holds(slept: list[float]) -> None:
    clocks = [clock_of(share * TOP) for share in (1.0, 0.99, MIN_CLOCK_RATIO + 0.001)]
    assert paced(clocks, TOP, slept) == ([(True, [])] * 3, clocks)


def test_a_kernel_under_which_the_clock_is_always_low_is_not_held_down(slept: list[float]) -> None:
    """A kernel with an always low clock is not held down, such as cuDNN's forward on an H100: 1730 MHz, spins 1980."""
    clocks = [clock_of(TOP, under_load=0.87)] * 3
    assert paced(clocks, TOP, slept) == ([(True, [])] * 3, clocks)


def test_a_burst_below_the_cells_best_is_rejected_though_it_began_at_the_best_clock(slept: list[float]) -> None:
    clocks = [clock_of(TOP, under_load) for under_load in (0.87, 0.85, 0.87, 0.86)]
    assert [accepted for accepted, _ in paced(clocks, TOP, slept)[0]] == [True, False, True, True]


def test_the_clock_after_a_burst_rejects_nothing(slept: list[float]) -> None:
    clocks = [BatchClock(TOP, 0.9 * TOP, 0.8 * TOP)] * 2
    assert paced(clocks, TOP, slept) == ([(True, [])] * 2, clocks)


def test_a_burst_that_begins_slower_is_rejected_and_pauses_follow(slept: list[float]) -> None:
    """A burst that begins slower is rejected; the longest pause follows, then pauses in proportion to work."""
    after = REST_PER_WORK * 0.01
    found, clocks = paced([TOP, LOW, TOP, LOW, TOP], TOP, slept)
    assert found == [(True, []), (False, [MAX_REST]), (True, [after]), (False, [MAX_REST]), (True, [after])]
    assert clocks == [clock_of(TOP)] * 3


def test_a_first_burst_is_judged_by_the_clock_of_earlier_cells(slept: list[float]) -> None:
    assert paced([LOW], TOP, slept)[0] == [(False, [MAX_REST])]
    assert paced([LOW, LOW], LOW, slept)[0] == [(True, [])] * 2
    assert paced([TOP, LOW], 0.0, slept)[0] == [(True, []), (False, [MAX_REST])]  # compared with its own earlier bursts


def test_after_eight_rejections_every_burst_is_accepted(slept: list[float]) -> None:
    found, clocks = paced([LOW] * (MAX_DROPPED_BURSTS + 3), TOP, slept)
    assert found == [(False, [MAX_REST])] * MAX_DROPPED_BURSTS + [(True, [MAX_REST])] * 3
    assert clocks == [clock_of(LOW)] * 3


def test_a_call_longer_than_a_burst_is_accepted_after_a_pause(slept: list[float]) -> None:
    """A call longer than a burst is accepted after a pause, although its own work lowers the clock; a first is not."""
    dropped, kept = (False, [MAX_REST]), (True, [MAX_REST])
    assert paced([LOW] * 3, TOP, slept, worked=0.02, calls=1) == ([dropped, kept, kept], [clock_of(LOW)] * 2)
    assert paced([LOW] * 3, TOP, slept, worked=0.02, calls=2)[0] == [dropped] * 3
    assert paced([LOW] * 3, TOP, slept, worked=0.01, calls=1)[0] == [dropped] * 3


def test_without_a_gauge_every_burst_is_accepted_and_pauses_follow(slept: list[float]) -> None:
    pacer = Pacer([], TOP, POLICY.burst_s)
    assert pacer.accepts(0.01, 10)
    pacer.rest()
    assert slept == [REST_PER_WORK * 0.01]


def test_a_pause_comes_before_a_burst_and_none_after_the_last(slept: list[float]) -> None:
    clocks: list[BatchClock] = []
    bursts: list[int] = []

    def sample(n: int) -> list[float]:
        clocks.append(clock_of(LOW))
        bursts.append(n)
        return [0.2] * n

    pacer = Pacer(clocks, TOP, POLICY.burst_s)
    assert len(collect_samples(sample, POLICY, pacer=pacer, clock=lambda: 0.2 * len(bursts))) == MIN_SAMPLES_VERY_LONG
    assert slept == [MAX_REST] * (len(bursts) - 1)


def test_cpu_timer_times_the_launch_alone() -> None:
    ticks: Iterator[int] = iter(range(0, 10**12, 1_000_000))  # each reading of the clock is 1 ms later
    order: list[str] = []

    def clock() -> int:
        order.append("clock")
        return next(ticks)

    timer = CpuTimer(clock, before=lambda: order.append("before"))
    assert timer.samples(lambda: order.append("launch"), 3) == [1e-3] * 3
    assert order == ["before", "clock", "launch", "clock"] * 3


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
