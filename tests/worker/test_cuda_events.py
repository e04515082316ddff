"""CUDA events behind a spin, on a GPU in miniature: what is a sample, what is thrown away, and the gauge's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_gpu import Gpu

from attnbench.worker.measure import cuda_events
from attnbench.worker.measure.cuda_events import MAX_SPIN, MAX_TRIES, EventTimer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(cuda_events, "time", SimpleNamespace(perf_counter=made.clock))
    return made


def timer(before: Any = None) -> EventTimer:
    return EventTimer(torch.device("cpu"), *([before] if before else []))


def exactly(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("host", [1e-6, 20e-6, 300e-6])
def test_a_sample_is_the_kernels_time_though_the_host_is_slower(gpu: Gpu, host: float) -> None:
    made = timer()
    for _ in range(3):
        values = made.samples(gpu.kernel(5e-6, host), 10)
        assert values == exactly(5e-6) or values == [exactly(5e-6)] * len(values)
    assert len(values) == 10
    assert not made.host_bound


def test_what_comes_before_is_in_no_sample(gpu: Gpu) -> None:
    made = timer(gpu.kernel(40e-6, 5e-6))
    assert made.samples(gpu.kernel(7e-6), 20) == [exactly(7e-6)] * 20
    made.before = gpu.kernel(400e-6, 50e-6)  # and may be changed
    assert made.samples(gpu.kernel(7e-6), 20) == [exactly(7e-6)] * 20


def test_a_long_kernel_hides_the_host_itself(gpu: Gpu) -> None:
    made = timer()
    made.samples(gpu.kernel(5e-3, 1e-3), 5)
    gpu.spins.clear()
    assert made.samples(gpu.kernel(5e-3, 1e-3), 5) == [exactly(5e-3)] * 5
    assert max(gpu.spins) < 5e-3  # for the first sample only


def test_a_batch_in_which_the_device_caught_up_is_thrown_away(gpu: Gpu) -> None:
    """Nobody knows yet that this host takes 2 ms a launch; the first batch's samples hold them."""
    launches = []
    slow = gpu.kernel(5e-6, 2e-3)
    made = timer()
    values = made.samples(lambda: (launches.append(1), slow()), 10)
    assert values == [exactly(5e-6)] * 5
    assert len(launches) == 10 + 5
    assert not made.host_bound
    assert made.samples(slow, 10) == [exactly(5e-6)] * 10  # its pace is known now


def test_one_stall_of_the_host_is_seen_though_the_device_falls_behind_again(gpu: Gpu) -> None:
    """The third launch takes the host 60 ms; the kernels after it are long enough to hide the host themselves."""
    launches = []
    quick, stalled = gpu.kernel(5e-3, 1e-6), gpu.kernel(5e-3, 60e-3)

    def launch() -> None:
        launches.append(1)
        (stalled if len(launches) == 3 else quick)()

    made = timer()
    assert made.samples(launch, 8) == [exactly(5e-3)] * 4
    assert len(launches) == 8 + 4
    assert not made.host_bound


def test_a_host_that_a_spin_cannot_hide_is_said(gpu: Gpu) -> None:
    launches = []
    slow = gpu.kernel(5e-6, 2 * MAX_SPIN)
    made = timer()
    values = made.samples(lambda: (launches.append(1), slow()), 1)
    assert made.host_bound
    assert len(launches) == MAX_TRIES
    assert values[0] > 0.9 * MAX_SPIN  # the best there is
    made.reset()
    assert not made.host_bound


def test_fewer_samples_than_asked_where_the_host_keeps_ahead_of_fewer_only(gpu: Gpu) -> None:
    made = timer()
    made.samples(gpu.kernel(5e-6, 10e-3), 1)
    made.reset()
    values = made.samples(gpu.kernel(5e-6, 10e-3), 32)
    assert values == [exactly(5e-6)] * len(values)
    assert 1 <= len(values) < 6
    assert len(made.enqueue) == len(values)  # known before, so nothing was launched in vain


def test_no_spin_is_longer_than_its_cap(gpu: Gpu) -> None:
    made = timer()
    made.samples(gpu.kernel(5e-6, 1.0), 32)
    made.hide_host(3.0)
    assert max(gpu.spins) == pytest.approx(MAX_SPIN, rel=1e-6)


def test_hiding_the_host_takes_as_long_as_asked(gpu: Gpu) -> None:
    made = timer()
    made.calibrate()
    made.hide_host(1e-3)
    assert gpu.spins[-1] == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize("hz", [0.6e9, 1.5e9, 1.98e9])
def test_the_gauge_reads_the_clock_that_was_planted(gpu: Gpu, hz: float) -> None:
    """Without the gap between events, which was learnt at another clock."""
    made = timer()
    made.calibrate()
    gpu.hz = hz
    gpu.kernel(1e-3)()
    assert made.clock_hz() == pytest.approx(hz, rel=1e-9)


@pytest.mark.usefixtures("gpu")
def test_the_gauge_of_an_idle_device_holds_nothing_of_the_host() -> None:
    made = timer()
    made.calibrate()
    made.synchronize()
    assert made.clock_hz() == pytest.approx(1.5e9, rel=1e-9)


def test_every_batch_ends_with_a_reading_of_the_clock(gpu: Gpu) -> None:
    made = timer()
    for hz in (1.9e9, 1.7e9, 1.2e9):
        gpu.hz = hz
        made.samples(gpu.kernel(5e-6), 8)
    assert made.clocks == pytest.approx([1.9e9, 1.7e9, 1.2e9], rel=1e-3)  # what it was calibrated at is the first
    made.reset()
    assert made.clocks == []


def test_calibrates_once_and_not_before_it_is_used(gpu: Gpu) -> None:
    made = timer()
    assert gpu.spins == []
    made.calibrate()
    count = len(gpu.spins)
    assert count > 0
    made.calibrate()
    assert len(gpu.spins) == count


def test_the_hosts_time_of_each_launch_is_recorded(gpu: Gpu) -> None:
    made = timer(gpu.kernel(1e-6, 50e-6))
    made.samples(gpu.kernel(5e-6, 30e-6), 4)
    made.samples(gpu.kernel(5e-6, 10e-6), 2)
    assert made.enqueue == [exactly(30e-6)] * 4 + [exactly(10e-6)] * 2
    made.reset()
    assert made.enqueue == []


def test_synchronize_waits_for_the_device(gpu: Gpu) -> None:
    made = timer()
    gpu.kernel(0.25)()
    made.synchronize()
    assert gpu.now == gpu.free
