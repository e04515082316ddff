"""Advice for a person's kernel that is wrong, fails or leaks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from measuring_device import MeasuringDevice, case
from right_attention import attention
from torch import Tensor

MIB = 2**20
ONE_BACKWARD = "only the first backward after a forward is right"


class FreesItsState(torch.autograd.Function):
    """Attention whose backward frees the tensors that its forward saved."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Any) -> Tensor:
        ctx.state, ctx.options = [t.clone() for t in (q, k, v)], options
        return attention(q, k, v, **options)

    @staticmethod
    def gradients(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        given = [t.detach().requires_grad_() for t in ctx.state]
        with torch.enable_grad():
            return torch.autograd.grad(attention(*given, **ctx.options), given, dout)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        found = FreesItsState.gradients(ctx, dout)
        del ctx.state
        return (*found, None)


class ReusesItsBuffers(FreesItsState):
    """Attention whose backward overwrites the tensors that its forward saved."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        found = FreesItsState.gradients(ctx, dout)
        for saved, gradient in zip(ctx.state, found, strict=True):
            saved.copy_(gradient)
        return (*found, None)


class LeavesGradients(FreesItsState):
    """Attention whose every backward doubles dq."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        dq, dk, dv = FreesItsState.gradients(ctx, dout)
        return 2 * dq, dk, dv, None


@pytest.mark.parametrize(("kernel", "status"), [(FreesItsState, "failed"), (ReusesItsBuffers, "wrong")])
def test_a_backward_that_runs_once_is_told_of_the_other_pass(
    steady_cpu: MeasuringDevice, kernel: Any, status: str
) -> None:
    def own(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        return kernel.apply(q, k, v, options)

    record = steady_cpu.measure(own, case("bwd"))
    assert record.status == status
    assert ONE_BACKWARD in str(record.reason)
    assert "--pass fwd_bwd" in str(record.reason)
    assert steady_cpu.measure(own, case("fwd_bwd")).status == "ok"


def test_a_backward_that_is_always_wrong_is_not(steady_cpu: MeasuringDevice) -> None:
    def own(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        return LeavesGradients.apply(q, k, v, options)  # type: ignore[no-untyped-call]

    reason = steady_cpu.finds_wrong(own, case("bwd"))
    assert ONE_BACKWARD not in reason


def test_memory_that_no_call_frees_is_a_sentence_and_no_peak(steady_cpu: MeasuringDevice) -> None:
    kept = []

    def own(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        kept.append(torch.zeros(20 * MIB // 4))
        return attention(q, k, v, **options)

    record = steady_cpu.passes(own, case())
    assert "each call leaves 20 MiB more allocated, until no memory is left" in record.notes
    assert 20 * MIB <= record.measurements["memory_peak"].values[0] < 21 * MIB


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_queries_without_keys(steady_cpu: MeasuringDevice, direction: str) -> None:
    """For queries without keys, NaN as from a plain softmax means no support for them; another output is wrong."""
    record = steady_cpu.measure(attention, case(direction, causal=True, seqlen_k=32))
    assert (record.status, record.reason) == ("skipped", "its output is NaN for queries that see no key")

    def number(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return attention(q, k, v, **options).nan_to_num(0.1)

    steady_cpu.finds_wrong(number, case(direction, causal=True, seqlen_k=32))


def test_memory_that_torch_does_not_see_is_not_the_least(steady_cpu: MeasuringDevice) -> None:
    """Memory that torch's profiler does not see, of another thread, has no figure; 0 bytes would be the best."""

    def in_a_thread(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(attention, q, k, v, **options).result()

    record = steady_cpu.passes(in_a_thread, case(seqlen=512))
    assert "memory_peak" not in record.measurements
    assert any("allocates memory outside of torch" in note for note in record.notes)
