"""A function that takes (batch, nheads, seqlen, headdim) tensors is wrong or failed, with advice on `order`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from measuring_device import MeasuringDevice, case
from right_attention import attention
from torch import Tensor

TODO = 'it is right on (batch, nheads, seqlen, headdim) tensors: if it takes them, add own.order = "bhsd" to its file'


def heads_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options).transpose(1, 2)


def demands_its_shape(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[1] % k.shape[1] or q.shape[1] > 8:
        raise ValueError(f"{q.shape[1]} query heads")
    return heads_first(q, k, v, **options)


def wrong_anyhow(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return 2 * heads_first(q, k, v, **options)


def declared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return heads_first(q, k, v, **options)


declared.order = "bhsd"  # type: ignore[attr-defined]


def writes_zeros(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return 0 * heads_first(q, k, v, **options)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_function_that_says_its_order_is_right(steady_cpu: MeasuringDevice, direction: str) -> None:
    steady_cpu.passes(declared, case(direction, causal=True, seqlen_k=96))


@pytest.mark.parametrize(("kernel", "status"), [(heads_first, "wrong"), (demands_its_shape, "failed")])
def test_a_function_in_another_order_is_told_so(steady_cpu: MeasuringDevice, kernel: Any, status: str) -> None:
    record = steady_cpu.measure(kernel, case(nheads_k=4, causal=True))
    assert record.status == status
    assert str(record.reason).endswith(TODO)


@pytest.mark.parametrize(("kernel", "data"), [(wrong_anyhow, "normal"), (writes_zeros, "zeros")])
def test_a_function_that_is_wrong_in_both_orders_is_not(steady_cpu: MeasuringDevice, kernel: Any, data: Any) -> None:
    record = steady_cpu.measure(kernel, replace(case(nheads_k=4), data=data))
    assert record.status == "wrong"
    assert "tensors" not in str(record.reason)
