"""The event timer on a simulated GPU: its samples, discarded batches, and readings of the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from simulated_gpu import Gpu

from attnbench.worker.measure import cuda_events, device_kernels
from attnbench.worker.measure.clock_gauge import ClockGauge
from attnbench.worker.measure.cuda_events import MAX_SPIN, MAX_TRIES, EventTimer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Replace torch.cuda by a simulated GPU, whose clock is also the host's."""
    timer_ = Gpu()
    timer_.use(monkeypatch)
    monkeypatch.setattr(cuda_events, "time", SimpleNamespace(perf_counter=timer_.clock))
    return timer_


def timer(before: Any = None) -> EventTimer:
    return EventTimer(ClockGauge(), *([before] if before else []))


def exactly(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("host", [1e-6, 20e-6, 300e-6])
def test_a_sample_is_the_kernels_time_where_the_host_is_slower(gpu: Gpu, host: float) -> None:
    timer_ = timer()
    for _ in range(3):
        values = timer_.samples(gpu.kernel(5e-6, host), 10)
        assert values == exactly(5e-6) or values == [exactly(5e-6)] * len(values)
    assert len(values) == 10
    assert not timer_.host_bound


def test_the_action_before_a_sample_is_not_in_it(gpu: Gpu) -> None:
    timer_ = timer(gpu.kernel(40e-6, 5e-6))
    assert timer_.samples(gpu.kernel(7e-6), 20) == [exactly(7e-6)] * 20
    timer_.before = gpu.kernel(400e-6, 50e-6)  # a test may change it
    assert timer_.samples(gpu.kernel(7e-6), 20) == [exactly(7e-6)] * 20


def test_a_long_kernel_hides_the_host_itself(gpu: Gpu) -> None:
    timer_ = timer()
    timer_.samples(gpu.kernel(5e-3, 1e-3), 5)
    gpu.spins.clear()
    assert timer_.samples(gpu.kernel(5e-3, 1e-3), 5) == [exactly(5e-3)] * 5
    assert max(gpu.spins) < 5e-3  # hides the first sample only


def test_a_batch_in_which_the_device_caught_up_is_discarded(gpu: Gpu) -> None:
    """A batch in which the device caught up is discarded.

    This is the first batch, in which the host's pace, 2 ms a launch, is not known yet.
    """
    launches = []
    slow = gpu.kernel(5e-6, 2e-3)
    timer_ = timer()
    values = timer_.samples(lambda: (launches.append(1), slow()), 10)
    assert values == [exactly(5e-6)] * 5
    assert len(launches) == 10 + 5
    assert not timer_.host_bound
    assert timer_.samples(slow, 10) == [exactly(5e-6)] * 10  # now the host's pace is known


def test_one_stall_of_the_host_is_seen_though_the_device_falls_behind_again(gpu: Gpu) -> None:
    """One stall of the host, 60 ms in the third launch, is found, although later kernels hide the host again."""
    launches = []
    quick, stalled = gpu.kernel(5e-3, 1e-6), gpu.kernel(5e-3, 60e-3)

    def launch() -> None:
        launches.append(1)
        (stalled if len(launches) == 3 else quick)()

    timer_ = timer()
    assert timer_.samples(launch, 8) == [exactly(5e-3)] * 4
    assert len(launches) == 8 + 4
    assert not timer_.host_bound


def test_samples_are_host_bound_where_no_spin_can_hide_the_host(gpu: Gpu) -> None:
    launches = []
    slow = gpu.kernel(5e-6, 2 * MAX_SPIN)
    timer_ = timer()
    values = timer_.samples(lambda: (launches.append(1), slow()), 1)
    assert timer_.host_bound
    assert len(launches) == MAX_TRIES
    assert values[0] > 0.9 * MAX_SPIN  # the longest spin hides only a part
    timer_.reset()
    assert not timer_.host_bound


def test_there_are_fewer_samples_where_the_host_keeps_ahead_of_fewer_only(gpu: Gpu) -> None:
    timer_ = timer()
    timer_.samples(gpu.kernel(5e-6, 10e-3), 1)
    timer_.reset()
    values = timer_.samples(gpu.kernel(5e-6, 10e-3), 32)
    assert values == [exactly(5e-6)] * len(values)
    assert 1 <= len(values) < 6
    assert len(timer_.enqueue) == len(values)  # the pace was known, so no batch was discarded


def test_a_pace_that_is_expected_spares_the_first_batch(gpu: Gpu) -> None:
    launches = []
    slow = gpu.kernel(5e-3, 2e-3)
    timer_ = timer()
    timer_.expect(2e-3)
    assert timer_.samples(lambda: (launches.append(1), slow()), 1) == [exactly(5e-3)]
    assert len(launches) == 1


def test_the_pace_of_one_sample_alone_is_half_believed(gpu: Gpu) -> None:
    """The launch time in a single sample counts half, because a first launch takes the host several times as long."""
    timer_ = timer()
    timer_.samples(gpu.kernel(5e-6, 30e-6), 32)
    timer_.samples(gpu.kernel(5e-6, 110e-6), 1)
    gpu.spins.clear()
    timer_.samples(gpu.kernel(5e-6, 30e-6), 32)
    assert max(gpu.spins) < 32 * 1.5 * 80e-6


def test_no_spin_is_longer_than_its_cap(gpu: Gpu) -> None:
    timer_ = timer()
    timer_.samples(gpu.kernel(5e-6, 1.0), 32)
    timer_.hide_host(3.0)
    assert max(gpu.spins) == pytest.approx(MAX_SPIN, rel=1e-6)


def test_every_batch_knows_its_clock_before_during_and_after(gpu: Gpu) -> None:
    timer_ = timer(gpu.kernel(40e-6))  # windows exclude the flush
    gpu.under_load = 0.9
    for hz in (1.2e9, 1.9e9, 1.7e9):
        gpu.hz = hz
        timer_.samples(gpu.kernel(5e-6), 8)
    expected = [(hz, 0.9 * hz, hz) for hz in (1.2e9, 1.9e9, 1.7e9)]
    assert [tuple(clock) for clock in timer_.clocks] == [pytest.approx(clock, rel=1e-4) for clock in expected]
    assert timer_.best_clock == pytest.approx(1.9e9, rel=1e-4)
    timer_.reset()
    assert timer_.clocks == []


def test_no_clock_where_its_kernels_cannot_be_compiled(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_name: str) -> None:
        raise RuntimeError("torch 2.5 cannot compile a CUDA kernel")

    monkeypatch.setattr(device_kernels, "compiled", fails)
    timer_ = timer()
    assert timer_.samples(gpu.kernel(5e-6, 20e-6), 8) == [exactly(5e-6)] * 8  # torch's own spin hides the host
    assert timer_.clocks == []
    assert "torch 2.5 cannot compile a CUDA kernel" in timer_.gauge.fault


def test_the_hosts_time_of_each_launch_is_recorded(gpu: Gpu) -> None:
    timer_ = timer(gpu.kernel(1e-6, 50e-6))
    timer_.samples(gpu.kernel(5e-6, 30e-6), 4)
    timer_.samples(gpu.kernel(5e-6, 10e-6), 2)
    assert timer_.enqueue == [exactly(30e-6)] * 4 + [exactly(10e-6)] * 2
    timer_.reset()
    assert timer_.enqueue == []
