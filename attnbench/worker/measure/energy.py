"""What the machine does without a pause: time, power and energy of a call once power and clock are steady.

Launches follow each other with nothing between them, so L2 is as the last call left it. The energy counter of NVML
moves every 20 to 100 ms only, and reading it takes milliseconds; so a thread notes when it moves, and the power of the
steady part is the slope between its first and its last move there. An edge is known to one polling period at each end:
the uncertainty that is reported is two periods over the window.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.core import stats
from attnbench.worker.measure.nvml import GpuState

BATCH_SECONDS = 0.05  # seconds of launches between two readings of the clock
MAX_DRIFT = 0.01  # a window of time per call within which nothing drifts by more
MIN_WINDOW = 2.0  # seconds of steady work for the energy
POLL_SECONDS = 0.004


@dataclass(frozen=True)
class SustainedRun:
    """The steady part of a long run of one launch."""

    times: tuple[float, ...]  # seconds a call, the mean of each batch
    watts: float | None  # None where NVML has no energy counter
    uncertainty: float | None  # of `watts`, relative
    steady: bool  # False: time per call still drifted when the limit came


def run_sustained(launch: Callable[[], Any], estimate: float, limit: float, state: GpuState) -> SustainedRun:
    """Runs `launch`, of `estimate` seconds, until its time per call is steady for 2 s, at most `limit` seconds."""
    import torch

    count = max(1, min(512, int(BATCH_SECONDS / max(estimate, 1e-7))))
    ends: list[float] = []  # seconds on the device's clock, from the first event, at which batches ended
    with EnergyCounter(state) as counter:
        torch.cuda.synchronize()
        first = _event(torch)
        origin = time.monotonic()
        waiting = []
        while time.monotonic() - origin < limit:
            for _ in range(count):
                launch()
            waiting.append(_event(torch))
            if len(waiting) > 1:  # one batch is queued while the other runs
                done = waiting.pop(0)
                done.synchronize()
                ends.append(first.elapsed_time(done) / 1e3)
            if _steady_start(ends, MIN_WINDOW) is not None:
                break
        torch.cuda.synchronize()
        ends += [first.elapsed_time(event) / 1e3 for event in waiting]
    began = _steady_start(ends, MIN_WINDOW)
    steady = began is not None
    if began is None:
        began = ends[-1] / 2
    kept = [end for end in ends if end >= began]
    times = [(b - a) / count for a, b in itertools.pairwise(kept)] or [ends[-1] / count / len(ends)]
    watts, uncertainty = counter.power(origin + began, origin + ends[-1])
    return SustainedRun(tuple(times), watts, uncertainty, steady)


def _steady_start(ends: Sequence[float], length: float) -> float | None:
    """When the last `length` seconds began, if the time per batch did not drift in them; else None."""
    if not ends or ends[-1] < 1.5 * length:  # the first part is for power and clock to settle
        return None
    kept = [end for end in ends if end >= ends[-1] - length]
    steps = [b - a for a, b in itertools.pairwise(kept)]
    if len(steps) < 4:
        return None
    half = len(steps) // 2
    drift = stats.median(steps[half:]) / stats.median(steps[:half]) - 1
    return kept[0] if abs(drift) <= MAX_DRIFT else None


def _event(torch_: Any) -> Any:
    event = torch_.cuda.Event(enable_timing=True)
    event.record()
    return event


class EnergyCounter:
    """Notes when NVML's energy counter moves."""

    def __init__(self, state: GpuState) -> None:
        self._state = state
        self._moves: list[tuple[float, float]] = []  # time.monotonic() seconds, joules
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> EnergyCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        last = self._state.energy_j()
        while last is not None and not self._done.wait(POLL_SECONDS):
            now = self._state.energy_j()
            if now is not None and now != last:
                self._moves.append((time.monotonic(), now))
                last = now

    def power(self, began: float, ended: float) -> tuple[float | None, float | None]:
        """Watts between the first and the last move in the window, and their relative uncertainty."""
        moves = [move for move in self._moves if began <= move[0] <= ended]
        if len(moves) < 2:
            return None, None
        (t0, e0), (t1, e1) = moves[0], moves[-1]
        waits = [b[0] - a[0] for a, b in itertools.pairwise(self._moves)]
        edge = min(POLL_SECONDS + 0.005, stats.median(waits))
        return (e1 - e0) / (t1 - t0), 2 * edge / (t1 - t0)
