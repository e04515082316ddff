"""A run of a launch without pauses until its time per call is steady, and its time, power and energy there.

Nothing runs between launches, so L2 is not flushed. NVML's energy counter moves only every 20 to 100 ms, and reading it
takes milliseconds. A thread therefore records the times of its moves, and the power of the steady part is the slope
between its first and its last move there. The time of each move is known to one polling period, so the uncertainty is
two periods over the length of the window.
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

BATCH_SECONDS = 0.05  # seconds of launches between two readings of the time
MAX_DRIFT = 0.01  # relative change of the time per call between the halves of a steady window
MIN_WINDOW = 2.0  # least seconds of steady work
POLL_SECONDS = 0.004  # seconds between two readings of the energy counter


@dataclass(frozen=True)
class SustainedRun:
    """The steady part of a long run of one launch."""

    times: tuple[float, ...]  # seconds per call, the mean of each batch
    watts: float | None  # None where NVML has no energy counter
    uncertainty: float | None  # relative uncertainty of `watts`
    steady: bool  # whether the time per call was steady within the time limit


def run_sustained(launch: Callable[[], Any], estimate: float, limit: float, state: GpuState) -> SustainedRun:
    """Run `launch`, of about `estimate` seconds, until its time is steady for 2 s, for at most `limit` seconds."""
    import torch

    count = max(1, min(512, int(BATCH_SECONDS / max(estimate, 1e-7))))
    ends: list[float] = []  # the end of each batch, in seconds of the device's clock since the first event
    with EnergyCounter(state) as counter:
        torch.cuda.synchronize()
        first = _event(torch)
        origin = time.monotonic()
        waiting = []
        while time.monotonic() - origin < limit:
            for _ in range(count):
                launch()
            waiting.append(_event(torch))
            if len(waiting) > 1:  # one batch stays queued while another runs, so that the device is never idle
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
    """Return the beginning of the last `length` seconds, if the time per batch did not drift in them; else None."""
    if not ends or ends[-1] < 1.5 * length:  # power and clock settle in the first part
        return None
    kept = [end for end in ends if end >= ends[-1] - length]
    steps = [b - a for a, b in itertools.pairwise(kept)]
    if len(steps) < 4:
        return None
    half = len(steps) // 2
    drift = stats.median(steps[half:]) / stats.median(steps[:half]) - 1
    return kept[0] if abs(drift) <= MAX_DRIFT else None


def _event(torch_: Any) -> Any:
    """Record a CUDA event now and return it."""
    event = torch_.cuda.Event(enable_timing=True)
    event.record()
    return event


class EnergyCounter:
    """The times of moves of NVML's energy counter, recorded by a thread while its block runs."""

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
        """Return the watts between the counter's first and last move in a window, and their relative uncertainty.

        The window is in time.monotonic() seconds. Return (None, None) with less than two moves in it.
        """
        moves = [move for move in self._moves if began <= move[0] <= ended]
        if len(moves) < 2:
            return None, None
        (t0, e0), (t1, e1) = moves[0], moves[-1]
        waits = [b[0] - a[0] for a, b in itertools.pairwise(self._moves)]
        edge = min(POLL_SECONDS + 0.005, stats.median(waits))
        return (e1 - e0) / (t1 - t0), 2 * edge / (t1 - t0)
