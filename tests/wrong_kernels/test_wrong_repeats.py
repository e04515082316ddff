"""Kernels that are wrong in some of many calls (wrong_repeats.py), on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
from measuring_device import MeasuringDevice, case
from wrong_repeats import SumsInAnyOrder, WritesToOnePlace, WrongNowAndThen, WrongWithoutPause

from attnbench.worker import repeated_calls
from attnbench.worker.cell_steps import SHARED, UNSEEN


@pytest.mark.parametrize("every", [10, 11])
def test_wrong_in_one_call_of_some(steady_cpu: MeasuringDevice, every: int) -> None:
    """Fault: each tenth call is wrong. Found: wrong, in a call of the bursts whose results are kept."""
    reason = steady_cpu.finds_wrong(WrongNowAndThen(every), case())
    assert "in call " in reason
    assert f"of {repeated_calls.CALLS}, " in reason


def test_wrong_by_a_clock_that_does_not_move(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: each tenth call is wrong, of a kernel that was not timed, and takes 0 s by its clock. Found: wrong."""
    original = repeated_calls.find_wrong_call

    def untimed(instruments: Any, judge: Any, case: Any, prepared: Any, _: Any, nbytes: int) -> Any:
        return original(instruments, judge, case, prepared, None, nbytes)

    monkeypatch.setattr(repeated_calls, "find_wrong_call", untimed)
    monkeypatch.setattr(repeated_calls, "perf_counter", lambda: 1.0)
    assert f"of {repeated_calls.CALLS}, " in steady_cpu.finds_wrong(WrongNowAndThen(10), case())


def test_wrong_where_calls_follow_each_other(cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: it is wrong where it is called within 20 ms of its last call. Found: wrong, in calls without a pause.

    Before that it is right, as if all calls until then came after a pause.
    """
    kernel = WrongWithoutPause(0.0)
    original = repeated_calls._kept_results

    def with_short_pauses(*given: Any) -> Any:
        kernel.pause = 0.02
        return original(*given)

    monkeypatch.setattr(repeated_calls, "_kept_results", with_short_pauses)
    reason = cpu.finds_wrong(kernel, case())
    assert "one after the other: out is off by" in reason


@pytest.mark.parametrize("kernel", [SumsInAnyOrder(), WritesToOnePlace(wrong=False)])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_right_kernels_pass(steady_cpu: MeasuringDevice, kernel: Any, direction: str) -> None:
    """No fault: it rounds differently in each call, or returns each result in the same memory."""
    if direction == "bwd" and isinstance(kernel, WritesToOnePlace):
        pytest.skip("autograd cannot differentiate it")
    record = steady_cpu.passes(kernel, case(direction))
    assert (SHARED in record.notes) == isinstance(kernel, WritesToOnePlace)


def test_a_result_that_is_an_input_shares_no_memory(steady_cpu: MeasuringDevice) -> None:
    """No fault: it returns v, which is right for one key."""

    def own(q: Any, k: Any, v: Any, **options: Any) -> Any:  # noqa: ARG001
        return v

    assert not {SHARED, UNSEEN} & {*steady_cpu.passes(own, case(seqlen=1, nheads_k=4)).notes}


def test_a_wrong_result_that_the_next_one_overwrites(steady_cpu: MeasuringDevice) -> None:
    """Fault: every second call is wrong, and all return the same memory. Found: wrong."""
    steady_cpu.finds_wrong(WritesToOnePlace(wrong=True), case())
