"""attnbench.do_bench on a CPU: what it returns, and what it refuses. tests/gpu/api_agreement.py has a GPU."""

from __future__ import annotations

import inspect
import math
import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnbench
from attnbench.api import timing
from attnbench.core.machine import Device
from attnbench.core.record import Measurement
from attnbench.results import uncertainty
from worker_here import quick_cpu

QUICK = {"device": "cpu", "warmup": 1, "rep": 5}


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    timing._instruments.cache_clear()
    with quick_cpu():
        yield
    timing._instruments.cache_clear()


def waits() -> None:
    time.sleep(0.002)


def test_it_takes_what_tritons_takes() -> None:
    triton = pytest.importorskip("triton.testing")
    theirs, ours = (inspect.signature(f).parameters for f in (triton.do_bench, attnbench.do_bench))
    assert [*ours][: len(theirs)] == [*theirs]
    assert {name: ours[name].default for name in theirs} == {name: of.default for name, of in theirs.items()}
    assert all(ours[name].kind == of.kind for name, of in theirs.items())


@pytest.mark.parametrize(
    ("mode", "of"), [("mean", statistics.fmean), ("median", statistics.median), ("min", min), ("max", max)]
)
def test_a_number_is_in_milliseconds(mode: str, of: Any) -> None:
    assert 2.0 <= attnbench.do_bench(waits, return_mode=mode, **QUICK) < 50.0
    times = attnbench.do_bench(waits, return_mode="all", **QUICK)
    assert min(times) <= of(times) <= max(times)


def test_quantiles() -> None:
    low, middle, high = attnbench.do_bench(waits, quantiles=[0.2, 0.5, 0.8], **QUICK)
    assert 2.0 <= low <= middle <= high
    assert isinstance(attnbench.do_bench(waits, quantiles=[0.5], **QUICK), float)


def test_a_timing_says_how_it_is_known() -> None:
    found = attnbench.do_bench(waits, return_mode="timing", l2="warm", **QUICK)
    assert found.latency == statistics.median(found.samples)
    assert 0.002 <= found.latency < 0.05
    assert (found.timer, found.clock, found.host_bound) == ("perf_counter", None, False)
    assert found.l2 in ("warm", "unproven")
    assert found.interval is not None
    assert found.interval[0] < found.latency < found.interval[1]
    assert str(found).startswith(tuple("23456789"))


def test_gradients_are_set_to_none_before_each_call() -> None:
    x, seen = torch.ones(4, requires_grad=True), []

    def backward() -> None:
        seen.append(x.grad)
        x.sum().backward()

    attnbench.do_bench(backward, grad_to_none=[x], **QUICK)
    assert len(seen) > 5
    assert {*seen} == {None}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"return_mode": "avg"}, "return_mode: unknown 'avg'"),
        ({"l2": "hot"}, "l2: unknown 'hot'"),
        ({"device": "tpu"}, "device: 'tpu' is neither cuda:N nor cpu"),
        ({"quantiles": torch.tensor(0.5)}, r"quantiles: tensor\(0.5000\) is not a list of numbers from 0 to 1"),
        ({"grad_to_none": torch.tensor(1)}, r"grad_to_none: tensor\(1\) is not a list of tensors"),
        ({"warmup": 10**400}, "warmup: 10+ is not a number of milliseconds"),
        ({"quantiles": []}, r"quantiles: \[\] is not a list of numbers from 0 to 1"),
        ({"quantiles": [20]}, r"quantiles: \[20\] is not a list of numbers from 0 to 1"),
        ({"rep": "100"}, "rep: '100' is not a number"),
        ({"rep": math.nan}, "rep: nan is not a number of milliseconds"),
        ({"grad_to_none": [3]}, r"grad_to_none: \[3\] is not a list of tensors"),
    ],
)
def test_arguments_of_other_kinds_are_user_errors(more: dict[str, Any], said: str) -> None:
    with pytest.raises(attnbench.UserError, match=said):
        attnbench.do_bench(waits, **{**QUICK, **more})


def test_what_the_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        attnbench.do_bench(lambda: 1 / 0, **QUICK)


@pytest.mark.parametrize(("held", "more"), [(1.97e9, 0.0), (1.80e9, timing.HELD_DOWN), (None, 0.0)])
def test_a_clock_that_power_holds_down_makes_a_latency_less_sure(held: float | None, more: float) -> None:
    samples = Measurement("s", (1e-3,) * 10)
    measured = {"time": samples} | ({"clock_held": Measurement("Hz", (held,) * 10)} if held else {})
    found = SimpleNamespace(measurements=measured, timer="events", l2="cold", host_bound=False, notes=())
    instruments: Any = SimpleNamespace(
        time=lambda launch, policy: found,
        state=SimpleNamespace(clock_max_hz=lambda: 1.98e9),
        device_info=Device("cuda", 0, "NVIDIA H200", 2**37, 2**37, (9, 0), 132, 2**26),
    )
    known = timing._timed(instruments, lambda: None, 0.0, 0.1, (), "cold").uncertainty
    spread = uncertainty.spread(instruments.device_info)
    assert known == pytest.approx(math.hypot(uncertainty.NORMAL * spread.processes, more))
