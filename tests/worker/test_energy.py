"""The steady part of a run without pauses, and power as the slope of the energy counter, on a simulated GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_gpu import Gpu

from attnbench.worker.measure import energy
from attnbench.worker.measure.energy import (
    MAX_DRIFT,
    MIN_WINDOW,
    POLL_SECONDS,
    EnergyCounter,
    _steady_start,
    run_sustained,
)


def ends(step: Callable[[float], float], until: float) -> list[float]:
    """Return the ends of batches, where a batch that begins at t lasts step(t) seconds."""
    at, found = 0.0, []
    while at < until:
        at += step(at)
        found.append(at)
    return found


def test_the_window_of_a_steady_run_is_its_last_seconds() -> None:
    found = _steady_start(ends(lambda t: 0.05, 4.0), 2.0)
    assert found is not None
    assert found == pytest.approx(ends(lambda t: 0.05, 4.0)[-1] - 2.0, abs=0.051)


def test_drift_before_the_window_does_not_matter() -> None:
    assert _steady_start(ends(lambda t: 0.2 if t < 1.5 else 0.05, 4.0), 2.0) is not None


@pytest.mark.parametrize("until", [0.0, 1.0, 2.9])
def test_there_is_no_window_before_power_had_time_to_settle(until: float) -> None:
    """There is no window before power had time to settle, 1.5 times the window: 3 s for a window of 2 s."""
    assert _steady_start(ends(lambda t: 0.05, until), 2.0) is None
    assert _steady_start(ends(lambda t: 0.05, 3.01), 2.0) is not None


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_there_is_no_window_while_the_time_per_call_drifts(slope: float) -> None:
    def drifts(by: float) -> list[float]:
        """Return batches whose median in the window's second half is slower by `by` than in the first."""
        return ends(lambda t: 0.01 * (1 + slope * by * (t - 3)), 4.0)

    assert _steady_start(drifts(0.8 * MAX_DRIFT), 2.0) is not None
    assert _steady_start(drifts(1.3 * MAX_DRIFT), 2.0) is None


def test_outliers_are_no_drift() -> None:
    assert _steady_start(ends(lambda t: 0.3 if 5.0 < t < 5.05 else 0.05, 6.0), 2.0) is not None


def test_there_is_no_window_of_a_few_batches() -> None:
    assert _steady_start(ends(lambda t: 0.6, 6.0), 2.0) is None


def counter(moves: list[tuple[float, float]]) -> EnergyCounter:
    made = EnergyCounter(SimpleNamespace(energy_j=lambda: None))  # type: ignore[arg-type]
    made._moves = moves
    return made


def every(period: float, watts: float, until: float = 10.0) -> list[tuple[float, float]]:
    return [(period * i, watts * period * i) for i in range(1, round(until / period) + 1)]


@pytest.mark.parametrize("period", [0.02, 0.1])
@pytest.mark.parametrize("watts", [90.0, 700.0])
def test_power_is_the_slope_between_moves(period: float, watts: float) -> None:
    found, error = counter(every(period, watts)).power(3.01, 5.01)
    assert found == pytest.approx(watts)
    assert error == pytest.approx(2 * (POLL_SECONDS + 0.005) / 2.0, rel=2 * period)


def test_only_moves_in_the_window_count() -> None:
    """Only moves of the counter in the window count: power is 500 W within it, 100 W before and after."""
    moves, joules = [], 0.0
    for i in range(1, 101):
        joules += 0.1 * (500 if 4.0 <= 0.1 * (i - 1) < 6.0 else 100)
        moves.append((0.1 * i, joules))
    assert counter(moves).power(4.05, 6.05)[0] == pytest.approx(500)
    assert counter(moves).power(0.0, 3.05)[0] == pytest.approx(100)


@pytest.mark.parametrize("moves", [[], every(0.1, 300.0)[:20], [(4.0, 7.0)]])
def test_there_is_no_power_where_the_counter_moved_less_than_twice(moves: list[tuple[float, float]]) -> None:
    assert counter(moves).power(3.05, 5.0) == (None, None)


def test_only_moves_of_the_counter_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POLL_SECONDS", 0.0002)
    done = threading.Event()

    def readings() -> Any:
        yield from (5.0, 5.0, 7.0, 7.0, None, 7.0, 12.0)
        done.set()
        while True:
            yield 12.0

    script = readings()
    with EnergyCounter(SimpleNamespace(energy_j=lambda: next(script))) as made:  # type: ignore[arg-type]
        assert done.wait(10)
    assert [joules for _, joules in made._moves] == [7.0, 12.0]
    assert made._moves[0][0] <= made._moves[1][0]


NO_COUNTER = SimpleNamespace(energy_j=lambda: None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=made.clock))
    return made


def run(gpu: Gpu, seconds: Callable[[float], float], limit: float, state: Any = NO_COUNTER) -> energy.SustainedRun:
    """Run a launch whose duration depends on the device's time, from 100 s on."""
    gpu.now = gpu.free = 100.0
    return run_sustained(lambda: gpu.kernel(seconds(gpu.free - 100.0))(), seconds(0.0), limit, state)


def test_stops_when_the_time_of_a_call_is_steady(gpu: Gpu) -> None:
    found = run(gpu, lambda t: 1e-3 if t < 1.0 else 1.5e-3, 60.0)
    assert found.steady
    assert found.times == pytest.approx([1.5e-3] * len(found.times))
    assert len(found.times) * 50 * 1.5e-3 == pytest.approx(MIN_WINDOW, abs=0.1)
    assert gpu.free - 100.0 < 3.5
    assert (found.watts, found.uncertainty) == (None, None)


def test_a_run_that_is_never_steady_ends_at_the_limit_and_says_so(gpu: Gpu) -> None:
    found = run(gpu, lambda t: 1e-3 * (1 + 0.05 * t), 8.0)
    assert not found.steady
    assert 8.0 <= gpu.free - 100.0 < 8.3
    assert min(found.times) > 1.15e-3  # only batches of the second half count
    assert max(found.times) == pytest.approx(1.4e-3, rel=0.02)


def test_one_call_longer_than_the_limit(gpu: Gpu) -> None:
    found = run(gpu, lambda t: 5.0, 1.0)
    assert not found.steady
    assert found.times == pytest.approx([5.0] * len(found.times))


def test_the_device_is_never_without_work(gpu: Gpu) -> None:
    """The device always has work: one batch is queued while another runs, so that the clock cannot rise."""
    busy: list[float] = []

    def launch() -> None:
        busy.append(gpu.free - gpu.now)
        gpu.kernel(1e-3)()

    run_sustained(launch, 1e-3, 5.0, NO_COUNTER)  # type: ignore[arg-type]
    assert min(busy[60:]) > 0


def test_watts_are_those_of_the_steady_part(gpu: Gpu) -> None:
    """Watts are of the steady part: the counter's moves and the batches are on one clock."""

    class Planted(EnergyCounter):
        def __init__(self, state: Any) -> None:
            super().__init__(state)
            self._moves = [(100.0 + 0.1 * i, 10.0 * i + (1000.0 if i < 10 else 0.0)) for i in range(400)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "EnergyCounter", Planted)
        found = run(gpu, lambda t: 1e-3 if t < 1.0 else 1.5e-3, 60.0)
    assert found.watts == pytest.approx(100.0)
    assert found.uncertainty == pytest.approx(2 * (POLL_SECONDS + 0.005) / MIN_WINDOW, rel=0.1)
