"""The SM clock gauge on a simulated GPU: the clock that it reads, and the length of its spins."""

from __future__ import annotations

import pytest
import torch
from simulated_gpu import Gpu

from attnbench.worker.measure.clock_gauge import ClockGauge


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A simulated GPU in the place of torch.cuda."""
    simulated = Gpu()
    monkeypatch.setattr(torch, "cuda", simulated)
    return simulated


@pytest.fixture
def gauge(gpu: Gpu) -> ClockGauge:
    """A gauge that was calibrated at 1.5 GHz."""
    calibrated = ClockGauge()
    calibrated.calibrate()
    assert gpu.hz == 1.5e9
    return calibrated


@pytest.mark.parametrize("hz", [0.6e9, 1.5e9, 1.98e9])
def test_reads_the_clock_of_the_device(gpu: Gpu, gauge: ClockGauge, hz: float) -> None:
    """The reading excludes the gap between events, which was learnt at another clock."""
    gpu.hz = hz
    gpu.kernel(1e-3)()
    assert gauge.clock_hz() == pytest.approx(hz, rel=1e-9)


def test_the_reading_of_an_idle_device_contains_no_host_time(gpu: Gpu, gauge: ClockGauge) -> None:
    gpu.synchronize()
    assert gauge.clock_hz() == pytest.approx(1.5e9, rel=1e-9)


def test_a_spin_lasts_as_long_as_asked_for(gpu: Gpu, gauge: ClockGauge) -> None:
    gauge.spin(1e-3)
    assert gpu.spins[-1] == pytest.approx(1e-3, rel=1e-6)


def test_seconds_are_those_of_the_launch_though_the_host_is_slower(gpu: Gpu, gauge: ClockGauge) -> None:
    assert gauge.seconds(gpu.kernel(7e-6, 50e-6)) == pytest.approx(7e-6)
