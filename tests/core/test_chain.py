"""The link of a chain of launches: small, dense, and the same in each order in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench.core import chain
from attnbench.core.case import Case, Shape

torch = pytest.importorskip("torch")

PLAIN = Case(Shape(2, 64, 64, 4, 4, 32, 32), "bf16", "fwd")


def linked(base: Any, result: Any) -> Any:
    """Return q of the next launch."""
    into = {"q": torch.empty_like(base)}
    chain.link({"q": base}, {"out": result}, into)
    return into["q"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [64, 1])
def test_nearly_all_values_change_a_little(dtype: Any, rows: int) -> None:
    base, result = torch.randn(2, 64, 4, 32).to(dtype), torch.randn(2, rows, 4, 32).to(dtype)
    new = linked(base, result)
    least = torch.finfo(dtype).smallest_normal  # below it a mantissa is all of a value
    assert ((new - base).double().abs() < 0.26 * base.double().abs().clamp(min=least)).all()
    assert (new != base).double().mean() > 0.9
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    change = new.view(bits) ^ base.view(bits)
    assert (change[:, 1:] == change[:, :-1]).double().mean() < 0.1  # softmax would not notice rows that change alike


def test_one_bit_of_one_result_changes_all_inputs() -> None:
    base, result = torch.randn(2, 64, 4, 32), torch.randn(2, 64, 4, 32)
    other = result.clone()
    other.view(torch.int32)[0, 0, 0, 0] ^= 1
    assert (linked(base, result) != linked(base, other)).double().mean() > 0.9


def test_the_order_in_memory_changes_nothing_where_shapes_are_alike() -> None:
    base, result = torch.randn(2, 64, 4, 32), torch.randn(2, 64, 4, 32)
    order = [0, 2, 1, 3]
    swapped = linked(chain.in_order(base, order), chain.in_order(result, order))
    assert torch.equal(swapped, linked(base, result))
    assert chain.order_of(swapped) == order
    assert chain.order_of(base[:, ::2]) is None
    with pytest.raises(ValueError, match="no order"):
        chain.in_order(base, [0, 1, 1, 3])


def test_a_case_without_a_chain_says_why() -> None:
    assert chain.refusal(PLAIN) is None
    assert "a backward alone" in (chain.refusal(replace(PLAIN, direction="bwd")) or "")
    assert "dropout" in (chain.refusal(replace(PLAIN, dropout_p=0.1)) or "")
    assert "person's own code" in (chain.refusal(replace(PLAIN, mask="./mine.py:mask")) or "")
