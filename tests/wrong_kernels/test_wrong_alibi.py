"""Kernels with wrong ALiBi slopes. Each is found, with all rows compared or with a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, Textbook
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.alibi import alibi_slopes
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from pairs import pairs

SHAPE = Shape(2, 80, 80, 6, 2, 16, 16)
BUDGETS = (ALL_ROWS, 20_000)


def right(slopes: Tensor, distance: Tensor, _: Case) -> Tensor:
    return slopes * distance.abs()


def left_out(slopes: Tensor, distance: Tensor, _: Case) -> Tensor:
    return slopes * distance * 0


def wrong_sign(slopes: Tensor, distance: Tensor, _: Case) -> Tensor:
    """Scores rise with the distance."""
    return -slopes * distance.abs()


def signed_distance(slopes: Tensor, distance: Tensor, _: Case) -> Tensor:
    """Keys after the query get higher scores."""
    return slopes * distance


def scaled(slopes: Tensor, distance: Tensor, case: Case) -> Tensor:
    """The bias is multiplied by the softmax scale, as the scores are."""
    return slopes * distance.abs() * case.softmax_scale


def of_the_next_head(slopes: Tensor, distance: Tensor, _: Case) -> Tensor:
    return slopes.roll(1, 0) * distance.abs()


def as_for_a_power_of_two(slopes: Tensor, distance: Tensor, _: Case) -> Tensor:
    """The formula for a power of two is used for six heads."""
    powers = torch.arange(1, len(slopes) + 1, device=slopes.device)[:, None, None]
    return 2.0 ** (-8 * powers / len(slopes)) * distance.abs()


@dataclass
class Alibi(Textbook):
    """Textbook attention that subtracts `bias` of the right slopes and the distances."""

    bias: Callable[[Tensor, Tensor, Case], Tensor] = right
    name = "alibi"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        s = case.shape
        slopes = torch.tensor(alibi_slopes(s.nheads), device=inputs.q.device)[:, None, None]
        places = torch.arange(s.seqlen_k, device=inputs.q.device)
        distance = places[s.seqlen_k - s.seqlen_q :, None] - places

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, nheads, seqlen, headdim)
            k, v = (t.repeat_interleave(s.nheads // s.nheads_k, dim=1) for t in (k, v))
            scores = (q @ k.mT).float() * case.softmax_scale - self.bias(slopes, distance, case)
            if case.causal:
                scores = scores.masked_fill(distance < 0, float("-inf"))
            return torch.softmax(scores, -1).to(v.dtype) @ v

        return autograd_prepared(case, inputs, attention, "bhsd")


@pairs(dtype=["fp32", "bf16"], causal=[False, True], backend=[Alibi(), Eager()], budget=BUDGETS)
def test_right_kernels_pass(
    steady_cpu: MeasuringDevice, dtype: Any, causal: bool, backend: BackendBase, budget: int
) -> None:
    steady_cpu.passes(backend, Case(SHAPE, dtype, "fwd_bwd", causal, alibi=True), QUICK, budget)


@pairs(
    direction=["fwd", "bwd"],
    bias=[left_out, wrong_sign, signed_distance, scaled, of_the_next_head, as_for_a_power_of_two],
    budget=BUDGETS,
)
def test_other_slopes(steady_cpu: MeasuringDevice, direction: Any, bias: Any, budget: int) -> None:
    """Fault: the bias is left out, has the wrong sign, is scaled, or has the slopes of another head. Found: wrong."""
    steady_cpu.finds_wrong(Alibi(bias), Case(SHAPE, "bf16", direction, False, alibi=True), budget=budget)
