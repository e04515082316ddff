"""The sampling loop: `collect_samples` takes samples of one launch from a timer until there are enough.

A timer runs its `before` (which makes L2 cold), then the launch, and times only the launch. `CpuTimer` here is the host
clock for CPUs and simulated devices; cuda_events.py, cuda_graph.py and cupti.py have the three timers for GPUs.

Three effects would distort a figure:

- A kernel that is slow at first. So the warm-up lasts until two readings agree, and sampling goes on while samples
  still become faster.
- Too few samples. So sampling goes on until the 95 % interval of the median is narrow.
- Power. A GPU at its power cap lowers its clock within some 50 ms, so a figure would depend on how long sampling took
  and on what ran before. So samples come in bursts of at most `policy.burst_s` of work. A burst at a clock below the
  best (clock_gauge.py) is discarded, as nvbench does, and from then on pauses between the bursts let the clock
  recover. What the machine does without pauses is a metric of its own (`--sustained`, energy.py).

docs/dev/measuring.md has the measurements behind these choices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from time import monotonic  # bound here, so that no kernel can replace it
from typing import Any, NamedTuple, Protocol

from attnbench.core import stats
from attnbench.core.policy import Policy

MAX_BATCH = 32  # most launches queued at once; the driver's queue holds 1024 kernels
WARM_TOLERANCE = 0.02  # the difference of two successive readings that ends a warm-up
MAX_WARMUP = 20  # the longest warm-up, as a multiple of policy.warmup_s
REST_PER_WORK = 1.5  # seconds of pause per second of work
MAX_REST = 0.1  # seconds in which a GPU at its power cap recovers its clock
MIN_CLOCK_RATIO = 0.985  # share of the best clock; a slower burst was held down
MAX_DROPPED_BURSTS = 8
WHOLE_BURST = 0.015  # seconds of work after which the clock has fallen to the level that the kernel's power allows
MIN_BURSTS = 2  # least bursts, for calls that are shorter than a burst
# Seconds. For calls between CALL_OF_FEW and LONG_CALL 6 samples within 0.3 % of each other are enough, as each averages
# over much work: in 214 such cells on an H100 and 184 on an H200, the medians of 6 and of all samples differ by 0.06 %
# in the 90th percentile, and at most by 0.6 %.
CALL_OF_FEW = 0.005
AGREEING, AGREEMENT = 0.6, 0.6  # shares of policy.min_samples and policy.target
LONG_CALL = 0.015  # seconds; for longer calls MIN_SAMPLES_LONG samples are enough, as each averages over much work
MIN_SAMPLES_LONG = 6  # the fewest samples that have a 95 % interval
VERY_LONG_CALL = 0.05  # seconds; for longer calls MIN_SAMPLES_VERY_LONG samples are enough
# In 57 cells with calls over VERY_LONG_CALL on an H200 and 46 on an H100, the medians of the first three samples and of
# all six differ by 0.4 % in the 90th percentile, and at most by 1.5 %. Six would take a tenth of a whole run.
MIN_SAMPLES_VERY_LONG = 3


class Timer(Protocol):
    """An instrument that times launches."""

    before: Callable[[], Any]  # runs before each sample, untimed

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        """Return the seconds of n launches, or of fewer where the timer can take only fewer at once."""


class Together(Protocol):
    """The agreement of a worker's ranks, so that all make the same launches (worker/ranks/group.py)."""

    ranks: int

    def barrier(self) -> None:
        """Let the devices wait for each other, in stream order."""

    def most(self, value: float) -> float:
        """Return the largest value of any rank."""

    def slowest(self, samples: Sequence[float]) -> list[float]:
        """Return the seconds of the slowest rank for each call."""

    def clock(self) -> float:
        """Return seconds by a clock that is the same for all ranks."""


class Alone:
    """One rank, which agrees with itself."""

    ranks = 1

    def barrier(self) -> None: ...

    def most(self, value: float) -> float:
        return value

    def slowest(self, samples: Sequence[float]) -> list[float]:
        return list(samples)

    def clock(self) -> float:
        return monotonic()


def do_nothing() -> None:
    """Do nothing, as the `before` of a timer whose cache stays warm."""


class CpuTimer:
    """The timer of calls by a host clock in ns. A simulated device passes its own clock."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns, before: Callable[[], Any] = do_nothing) -> None:
        self.clock = clock
        self.before = before
        self.together: Together = Alone()

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        values = []
        for _ in range(n):
            self.before()
            self.together.barrier()
            start = self.clock()
            result = launch()
            values.append((self.clock() - start) / 1e9)
            del result  # freed here, outside the timed part
        return self.together.slowest(values)


def pause(worked: float) -> None:
    """Let the GPU rest after `worked` seconds of work: 1.5 times as long, at most 0.1 s."""
    time.sleep(min(REST_PER_WORK * worked, MAX_REST))


class BatchClock(NamedTuple):
    """The SM clock of one batch of samples, in Hz."""

    before: float  # before the first launch, while next to nothing ran
    held: float  # during the launches
    after: float  # after the last launch, while next to nothing ran


class Pacer:
    """Accepts or rejects the bursts of one cell by their clock, and pauses between bursts once the clock has fallen.

    The timer appends the clock of each burst to `clocks`; the pacer removes the clocks of rejected bursts. `best` is
    the highest clock of the device while next to nothing ran, in Hz. A burst is rejected if it began below 98.5 % of
    `best`, because the device had not recovered from earlier work, or if its launches ran below 98.5 % of the cell's
    best whole burst. (In a shorter burst the clock has not yet fallen to the level that the kernel's power allows.) But
    a single call longer than `burst_s` is accepted once there are pauses, since nothing more can be done for it, and
    after MAX_DROPPED_BURSTS rejections every burst is accepted. Where `clocks` stays empty, because the device has no
    gauge, every burst is accepted and there are pauses from the first.
    """

    def __init__(
        self,
        clocks: list[BatchClock],
        best: float,
        burst_s: float,
        together: Together | None = None,
        *,
        worked: float = 0.0,
    ) -> None:
        """Take `worked`, the seconds of work that need a rest before the first burst."""
        self._together = together or Alone()
        self._clocks = clocks
        self._best = best
        self._burst_s = burst_s
        self._pausing = False
        self._dropped = 0
        self._worked = worked  # seconds of work that need a rest before the next burst
        self.best_held = 0.0  # Hz, in this cell's whole bursts, rejected ones included

    def rest(self) -> None:
        """Pause if a pause is due. Called before a burst and not after it, so that the last burst costs no pause."""
        if self._worked:
            pause(self._worked)
        self._worked = 0.0

    def accepts(self, worked: float, calls: int) -> bool:
        """Return whether a burst of `calls` calls that took `worked` seconds counts."""
        if self._clocks and (worked >= min(self._burst_s, WHOLE_BURST) / 2 or calls >= MAX_BATCH):
            self.best_held = max(self.best_held, self._clocks[-1].held)
        clock_fell = bool(self._together.most(bool(self._clocks) and self._is_low(self._clocks[-1])))
        was_pausing, self._pausing = self._pausing, self._pausing or clock_fell or not self._clocks
        if self._pausing:
            self._worked = math.inf if clock_fell else worked
        is_long_call = was_pausing and calls == 1 and worked > self._burst_s
        if not clock_fell or is_long_call or self._dropped == MAX_DROPPED_BURSTS:
            return True
        self._dropped += 1
        if self._clocks:  # with several ranks, one may have no gauge
            self._clocks.pop()
        return False

    def _is_low(self, clock: BatchClock) -> bool:
        return clock.before < MIN_CLOCK_RATIO * self._best or clock.held < MIN_CLOCK_RATIO * self.best_held


def collect_samples(
    sample: Callable[[int], list[float]],
    policy: Policy,
    *,
    pacer: Pacer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[float]:
    """Return samples in seconds, taken after a warm-up.

    `sample(n)` returns up to n samples. `pacer` rests before each burst and may reject it.

    Sampling stops when the 95 % interval of the median lies within `policy.target` of it, or at the time cap
    `policy.max_seconds`. It does not stop before `policy.min_seconds` and two bursts, nor with fewer than
    `policy.min_samples` samples (6 where a call takes over 15 ms, 3 over 50 ms), nor while samples still become faster,
    for which three times the cap is allowed. For a call of 5 to 15 ms six samples that agree end it too. All samples of
    accepted bursts are kept, outliers included.
    """

    def take_batch(n: int) -> tuple[list[float], bool]:
        if pacer is None:
            return sample(n), True
        pacer.rest()
        started = clock()
        found = sample(n)
        return found, pacer.accepts(clock() - started, len(found))

    estimate, values = _warm_up(take_batch, policy, clock)
    min_samples = _min_samples(estimate, policy)
    bursts = 0
    began = clock()
    while len(values) < policy.max_samples:
        size = _batch_size(estimate, policy.burst_s)
        found, accepted = take_batch(min(size, policy.max_samples - len(values)))
        if not accepted:
            continue
        estimate = stats.median(found)
        values += found
        bursts += 1
        agree = CALL_OF_FEW <= estimate < LONG_CALL and _agree(values, policy)
        if not agree and (len(values) < min_samples or (size > 1 and bursts < MIN_BURSTS)):
            continue
        spent = clock() - began
        steady = spent >= policy.min_seconds and (agree or stats.relative_halfwidth(values) <= policy.target)
        still_falling = stats.drift(values) < -WARM_TOLERANCE and spent < 3 * policy.max_seconds
        if (steady or spent >= policy.max_seconds) and not still_falling:
            break
    return values


def _warm_up(
    take_batch: Callable[[int], tuple[list[float], bool]], policy: Policy, clock: Callable[[], float]
) -> tuple[float, list[float]]:
    """Warm up. Return an estimate of the seconds per call, and samples to keep.

    Only a first call as long as a whole warm-up is kept, because such calls are expensive.
    """
    began = clock()
    first, accepted = take_batch(1)
    last = first[0]
    if last >= policy.warmup_s:
        return last, first if accepted else []
    while True:
        estimate = stats.median(take_batch(_batch_size(last, policy.burst_s))[0])
        spent = clock() - began
        agreed = abs(estimate / last - 1) <= WARM_TOLERANCE if last else True
        if spent >= policy.warmup_s and (agreed or spent >= MAX_WARMUP * policy.warmup_s):
            return estimate, []
        last = estimate


def _agree(values: Sequence[float], policy: Policy) -> bool:
    """Return whether samples are enough because they hardly differ, for a call of CALL_OF_FEW to LONG_CALL seconds."""
    apart = max(values) - min(values)
    return len(values) >= AGREEING * policy.min_samples and apart <= AGREEMENT * policy.target * stats.median(values)


def _min_samples(estimate: float, policy: Policy) -> int:
    """Return the least samples for calls of `estimate` seconds: fewer for long calls, never more than the policy's."""
    if estimate < LONG_CALL:
        return policy.min_samples
    return min(policy.min_samples, MIN_SAMPLES_LONG if estimate < VERY_LONG_CALL else MIN_SAMPLES_VERY_LONG)


def _batch_size(estimate: float, seconds: float) -> int:
    """Return the number of calls of `estimate` seconds that fit in `seconds`, from 1 to MAX_BATCH."""
    return max(1, min(MAX_BATCH, int(seconds / max(estimate, 1e-7))))
