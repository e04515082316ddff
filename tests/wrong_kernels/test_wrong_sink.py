"""Kernels with a wrong attention sink. Each is found, with all rows compared or with a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, Textbook
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from pairs import pairs

SHAPE = Shape(2, 80, 80, 4, 2, 16, 16)
BUDGETS = (ALL_ROWS, 20_000)


def right(sink: Tensor, _: Case) -> Tensor:
    return sink


def ignored(sink: Tensor, _: Case) -> Tensor:
    """The sink takes no probability."""
    return sink * 0 - 1e4


def scaled(sink: Tensor, case: Case) -> Tensor:
    """The sink is multiplied by the softmax scale, as the scores are."""
    return sink * case.softmax_scale


def of_the_next_head(sink: Tensor, _: Case) -> Tensor:
    """Each head has the sink of the next."""
    return sink.roll(1)


def of_the_key_head(sink: Tensor, case: Case) -> Tensor:
    """All query heads of a key head have the sink of the first."""
    group = case.shape.nheads // case.shape.nheads_k
    return sink[::group].repeat_interleave(group)


def constant(sink: Tensor, _: Case) -> Tensor:
    """The sink's gradient is always zero."""
    return sink.detach() + sink * 0


def twice(sink: Tensor, _: Case) -> Tensor:
    """Its gradient is counted twice."""
    return sink.detach() + 2 * (sink - sink.detach())


@dataclass
class Sink(Textbook):
    """Textbook attention with the right sink changed by `changes`."""

    changes: Callable[[Tensor, Case], Tensor] = right
    name = "sink"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        s = case.shape

        def attention(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:  # (batch, nheads, seqlen, headdim)
            k, v = (t.repeat_interleave(s.nheads // s.nheads_k, dim=1) for t in (k, v))
            scores = q @ k.mT * case.softmax_scale
            if case.causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            beside = self.changes(sink, case)[:, None, None].expand(*scores.shape[:-1], 1)
            return torch.softmax(torch.cat([scores, beside], -1), -1)[..., :-1] @ v

        return autograd_prepared(case, inputs, attention, "bhsd")


@pairs(
    direction=["fwd", "fwd_bwd"],
    dtype=["fp32", "bf16"],
    causal=[False, True],
    backend=[Sink(), Eager()],
    budget=BUDGETS,
)
def test_right_kernels_pass(
    steady_cpu: MeasuringDevice, direction: Any, dtype: Any, causal: bool, backend: BackendBase, budget: int
) -> None:
    steady_cpu.passes(backend, Case(SHAPE, dtype, direction, causal, sink=True), QUICK, budget)


@pairs(
    direction=["fwd", "bwd"],
    causal=[False, True],
    changes=[ignored, scaled, of_the_next_head, of_the_key_head],
    budget=BUDGETS,
)
def test_another_sink(steady_cpu: MeasuringDevice, direction: Any, causal: bool, changes: Any, budget: int) -> None:
    """Fault: the sink is ignored, scaled, or another head's. Found: wrong."""
    steady_cpu.finds_wrong(Sink(changes), Case(SHAPE, "bf16", direction, causal, sink=True), budget=budget)


@pairs(dtype=["fp32", "bf16"], changes=[constant, twice], budget=BUDGETS)
def test_another_gradient_of_the_sink(steady_cpu: MeasuringDevice, dtype: Any, changes: Any, budget: int) -> None:
    """Fault: the gradient of the sink alone is wrong. Found: wrong, in dsink."""
    assert "dsink" in steady_cpu.finds_wrong(Sink(changes), Case(SHAPE, dtype, "bwd", True, sink=True), budget=budget)
