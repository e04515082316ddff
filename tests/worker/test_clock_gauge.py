"""The SM clock gauge on a simulated GPU: its readings, its faults, and the length of its spins."""

from __future__ import annotations

import pytest
from simulated_gpu import Gpu

from attnbench.worker.measure.clock_gauge import OVERSHOOT, ClockGauge


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Replace torch.cuda by a simulated GPU."""
    simulated = Gpu()
    simulated.use(monkeypatch)
    return simulated


@pytest.fixture
def gauge(gpu: Gpu) -> ClockGauge:  # noqa: ARG001  (it must be there)
    opened = ClockGauge(top_hz=1.98e9)
    opened.open()
    return opened


def test_a_gauge_that_was_not_opened_has_no_reading(gpu: Gpu) -> None:  # noqa: ARG001
    assert ClockGauge().held_hz() is None


@pytest.mark.parametrize("hz", [0.6e9, 1.5e9, 1.98e9])
def test_the_clock_now_is_that_while_next_to_nothing_runs(gpu: Gpu, gauge: ClockGauge, hz: float) -> None:
    gpu.hz, gpu.under_load = hz, 0.8
    gpu.kernel(1e-3)()
    assert gauge.now_hz() == pytest.approx(hz, rel=1e-6)


def test_the_clock_held_is_that_of_the_launches_between_begin_and_end(gpu: Gpu, gauge: ClockGauge) -> None:
    gpu.kernel(5e-3)()
    gpu.under_load = 0.8
    for _ in range(3):
        gauge.begin()
        gpu.kernel(1e-3)()
        gauge.end()
    gpu.kernel(5e-3)()
    assert gauge.held_hz() == pytest.approx(0.8 * 1.5e9, rel=0.01)  # each window includes the gauge's own kernel
    assert gauge.held_hz() is None  # no work since the last reading


@pytest.mark.parametrize(("share", "is_fault"), [(1.0, False), (OVERSHOOT - 0.001, False), (OVERSHOOT + 0.001, True)])
def test_a_reading_above_what_the_device_can_do_is_a_fault(
    gpu: Gpu, gauge: ClockGauge, share: float, is_fault: bool
) -> None:
    gpu.hz = share * 1.98e9
    gauge.wake()
    assert ("MHz, but the device's highest is 1980" in gauge.fault) == is_fault
    gpu.hz = 1.9e9
    gauge.wake()
    assert (gauge.now_hz() is None) == is_fault  # it stays untrusted


def test_a_short_reading_above_it_is_none(gpu: Gpu, gauge: ClockGauge) -> None:
    gpu.hz = 2.04e9  # a reading of an H100 of 1980 MHz right after a load
    assert gauge.now_hz() == pytest.approx(2.04e9, rel=1e-6)
    assert not gauge.fault


def test_a_spin_lasts_as_long_as_asked_for(gpu: Gpu, gauge: ClockGauge) -> None:
    gauge.spin(1e-3)
    assert gpu.spins[-1] == pytest.approx(1e-3, rel=1e-6)
