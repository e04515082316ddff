"""Kernels with a wrong mask by name. Each is found, with all rows compared or with a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, Textbook
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.pytorch.eager import Eager
from attnbench.backends.shared.masks import visibility_mask
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from pairs import pairs

SHAPE = Shape(1, 300, 300, 2, 1, 16, 16)
BUDGETS = (ALL_ROWS, 40_000)
MASKS = ("prefix:40", "strided:64", "dilated:2", "random:0.3")


def right(seen: Tensor) -> Tensor:
    return seen


def off_by_one_block(seen: Tensor) -> Tensor:
    """Each block of 64 x 64 pairs is the block of the keys before; blocks on the diagonal are right."""
    blocks = seen.roll(64, 1)
    return torch.where(blocks.new_ones(blocks.shape).tril(-64), blocks, seen)


def skipped_block(seen: Tensor) -> Tensor:
    """One block of 64 x 64 pairs is left out."""
    seen = seen.clone()
    seen[128:192, 128:192] = torch.eye(64, dtype=torch.bool)
    return seen


def band_alone(seen: Tensor) -> Tensor:
    """The mask by name is ignored."""
    return torch.ones_like(seen).tril()


def off_by_one_key(seen: Tensor) -> Tensor:
    """Each query sees the keys of the query before it."""
    return seen.roll(1, 0)


@dataclass
class Masked(Textbook):
    """Textbook attention with two changes of the right mask, one for the forward and one for the backward."""

    in_forward: Callable[[Tensor], Tensor] = right
    in_backward: Callable[[Tensor], Tensor] = right
    name = "masked"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        s = case.shape
        seen = visibility_mask(case, inputs.q.device)
        assert seen is not None

        def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
            scores = (q @ k.mT * case.softmax_scale).masked_fill(~seen, float("-inf"))
            return torch.softmax(scores, -1) @ v

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, nheads, seqlen, headdim)
            k, v = (t.repeat_interleave(s.nheads // s.nheads_k, dim=1) for t in (k, v))
            out = attend(q, k, v, self.in_forward(seen))
            if self.in_backward is self.in_forward:
                return out
            other = attend(q, k, v, self.in_backward(seen))  # has the gradient
            return other + (out - other).detach()

        return autograd_prepared(case, inputs, attention, "bhsd")


@pairs(mask=MASKS, backend=[Masked(), Eager()], budget=BUDGETS)
def test_right_kernels_pass(steady_cpu: MeasuringDevice, mask: str, backend: BackendBase, budget: int) -> None:
    steady_cpu.passes(backend, Case(SHAPE, "bf16", "fwd_bwd", True, mask=mask), QUICK, budget)


@pairs(mask=MASKS, fault=[off_by_one_block, skipped_block, band_alone, off_by_one_key], budget=BUDGETS)
def test_another_mask(steady_cpu: MeasuringDevice, mask: str, fault: Any, budget: int) -> None:
    """Fault: the mask is off by a block or a key, a block is skipped, or it is ignored. Found: wrong."""
    steady_cpu.finds_wrong(Masked(fault, fault), Case(SHAPE, "bf16", "fwd", True, mask=mask), budget=budget)


@pairs(mask=MASKS, fault=[off_by_one_block, skipped_block], budget=BUDGETS)
def test_another_mask_in_the_backward(steady_cpu: MeasuringDevice, mask: str, fault: Any, budget: int) -> None:
    """Fault: the forward is right, and the backward skips a block or reads another. Found: wrong, in a gradient."""
    reason = steady_cpu.finds_wrong(Masked(right, fault), Case(SHAPE, "bf16", "bwd", True, mask=mask), budget=budget)
    assert "out" not in reason.split(";")[0].split()[:1]
