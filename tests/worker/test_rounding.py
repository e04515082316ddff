"""Rounding errors of a fused backward on data with large scores, which rounding.py estimates, unlike eager's error.

The fused backward (fused_kernel.py) is right and in float64, except for its scores, which have the errors of float32
sums in different orders in the forward and in the backward.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from fused_kernel import first, fused, last
from torch import Tensor

from attnbench import judge
from attnbench.core.backend import Inputs
from attnbench.core.case import Case, Shape
from attnbench.judge import hard_inputs, inputs
from pairs import pairs

CPU = torch.device("cpu")


def made(data: str, causal: bool, headdim: int = 128, sink: bool = False) -> tuple[Case, Inputs, judge.Reference]:
    """Return a case in fp32 on `data`, which may be "hard", with its reference."""
    shape = Shape(1, 256, 256, 2, 2, headdim, headdim)
    own_data: Any = "normal" if data == "hard" else data
    case = Case(shape, "fp32", "bwd", causal, data=own_data, sink=sink)
    given = hard_inputs.make_hard(case, CPU, 0) if data == "hard" else inputs.make(case, "cpu", 0)
    sample = judge.choose_rows(case, CPU)
    assert sample.whole
    return case, given, judge.compute_reference(case, given, sample, hard=data == "hard")


@pairs(
    data=["outliers", "hard"],
    headdim=[32, 128],
    causal=[False, True],
    orders=[(first, last), (last, first), (first, first), (last, last)],
)
def test_a_fused_backward_passes_in_any_order_of_summation(data: str, headdim: int, causal: bool, orders: Any) -> None:
    case, given, answer = made(data, causal, headdim)
    accuracy = judge.compare(answer, fused(case, given, *orders))
    assert accuracy.ok, accuracy.problem()


@pytest.mark.parametrize("sink", [False, True])
def test_dq_may_be_off_by_what_the_error_of_out_makes_of_it(monkeypatch: pytest.MonkeyPatch, sink: bool) -> None:
    """dq may have the error that a too small out causes, which has its own tolerance; another error of dq is wrong."""
    case = made("hard", causal=True, sink=sink)[0]
    monkeypatch.setattr(hard_inputs, "draw_seed", lambda: 0)
    check = hard_inputs.HardInputsCheck(case, CPU)
    found = fused(case, check.inputs, first, first, lost=3e-6)
    alone = judge.compare(check.reference, found)
    assert alone.errors["out"].ok
    assert not any(error.ok for name, error in alone.errors.items() if name in hard_inputs.FROM_ROW_SUMS)
    accuracy = check.check_first(found)
    assert accuracy.ok, accuracy.problem()
    assert not check.check_first(fused(case, check.inputs, first, first, lost=3e-6, seen=False)).ok
    for factor in (0.0, 0.5, 1.01):
        assert not check.check_first({**found, "dq": found["dq"] * factor}).ok
        assert not check.check_first({**found, "dk": found["dk"] * factor}).ok
        assert not sink or not check.check_first({**found, "dsink": found["dsink"] * factor}).ok
    assert not check.check_first(fused(case, check.inputs, first, first, lost=1e-4)).ok
    doubled = replace(check.inputs, v=2 * check.inputs.v)  # for the backward; half of its out is the forward's
    found = {**fused(case, doubled, first, first, lost=0.5), "dv": found["dv"]}
    check.inputs.v.mul_(2)
    assert not check.check_first(found).ok


@pytest.mark.parametrize("causal", [False, True])
def test_dq_is_off_in_the_outlier_channel_where_the_orders_differ(causal: bool) -> None:
    """With different orders dq is off in the outlier channel: 28 times the sum of a row of dS, which should be zero."""
    case, given, answer = made("outliers", causal)
    apart, alike = (fused(case, given, first, order) for order in (last, first))
    exact = answer.parts[0].exact["dq"].squeeze(2)
    off, off_alike = ((found["dq"][0].transpose(0, 1) - exact).square().mean((0, 1)).sqrt() for found in (apart, alike))
    assert int(off.argmax()) == 0
    assert off[0] > 10 * off[1:].max()
    assert off[0] > 5 * off_alike[0]
    eager = math.sqrt(float(answer.eager["dq"].square.sum()) / exact.numel())
    assert off.square().mean().sqrt() > 3 * eager
    assert not judge.compare(replace(answer, rounding={}), apart).ok
    assert judge.compare(replace(answer, rounding={}), alike).ok


def test_the_error_of_torchs_flash_attention_comes_from_its_probabilities() -> None:
    """The error of torch's flash attention comes from its probabilities, read by one-hot v and one-hot dout.

    In float64 both passes' probabilities give its error of dq; the forward's in both passes give a small part of it.
    """
    case, given, _ = made("outliers", causal=True)
    q, k, v, dout = (t.transpose(1, 2) for t in (given.q, given.k, given.v, given.dout))

    def flash(v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
        return out.detach(), *torch.autograd.grad(out, leaves, dout)

    def dq(forward: Tensor, backward: Tensor) -> Tensor:
        row_sum = (dout.double() * (forward @ v.double())).sum(-1, keepdim=True)
        return (backward * (dout.double() @ v.double().mT - row_sum)) @ k.double() * case.softmax_scale

    seen = [torch.zeros(1, 2, 256, 256, dtype=torch.float64) for _ in range(2)]
    for start in range(0, 256, 128):
        one_hot = torch.zeros_like(v)
        one_hot[:, :, start : start + 128] = torch.eye(128)
        seen[0][..., start : start + 128] = flash(one_hot, dout)[0]
        seen[1][:, :, start : start + 128] = flash(v, one_hot)[3].mT
    scores = (q.double() @ k.double().mT * case.softmax_scale).masked_fill(
        ~torch.ones(256, 256).tril().bool(), -math.inf
    )
    p = scores.softmax(-1)
    exact, actual = dq(p, p), flash(v, dout)[1].double()
    apart, alike = (dq(seen[0], other) - exact for other in (seen[1], seen[0]))
    assert (actual - exact - apart).norm() < 0.3 * apart.norm() + 2 * alike.norm()


@pytest.mark.parametrize("data", ["outliers", "hard"])
def test_the_deviations_are_not_far_above_what_a_right_kernel_makes(data: str) -> None:
    """The deviations are not far above a right kernel's root mean square, for the worse of two orders."""
    case, given, answer = made(data, causal=True)
    for name in ("out", "dq", "dk", "dv"):
        part = answer.parts[0]
        squares = [
            float((part.select(case, name, found[name]) - part.exact[name]).square().sum())
            for found in (fused(case, given, first, last), fused(case, given, last, first))
        ]
        ratio = math.sqrt(max(squares) / float(answer.rounding[name].square.sum()))
        assert 0.1 < ratio < 1, (name, ratio)


def test_nothing_is_added_on_other_data() -> None:
    for data in ("normal", "uniform", "zeros"):
        assert not made(data, causal=False)[2].rounding


@pytest.mark.parametrize(
    ("sizes", "seeds"), [((1, 256, 4, 4), 40), ((48, 4096, 1, 1), 4), ((256, 256, 6, 2), 1)], ids=str
)
def test_a_gradient_through_the_maximum_of_the_scores_passes(sizes: tuple[int, ...], seeds: int) -> None:
    """A gradient through the maximum passes, from autograd of a whole softmax in bf16; a dk 4 % too large is wrong."""
    case = Case(Shape(1, *sizes, 64, 64), "bf16", "bwd", causal=True)
    for seed in range(seeds):
        given = inputs.make(case, "cpu", seed)
        answer = judge.compute_reference(case, given, judge.choose_rows(case, torch.device("cpu"), seed))
        leaves = [t.detach().requires_grad_() for t in (given.q, given.k, given.v)]
        group = case.shape.nheads // case.shape.nheads_k
        q, k, v = (t.transpose(1, 2).repeat_interleave(n, 1) for t, n in zip(leaves, (1, group, group), strict=True))
        scores = (q @ k.mT).float() * case.softmax_scale
        visible = torch.ones(scores.shape[-2:]).tril(scores.shape[-1] - scores.shape[-2]).bool()
        scores = scores.masked_fill(~visible, -math.inf)
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        out = ((p.bfloat16() @ v).float() / p.sum(-1, keepdim=True)).bfloat16().transpose(1, 2)
        found = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, given.dout), strict=True))
        found["out"] = out.detach()
        accuracy = judge.compare(answer, found)
        assert accuracy.ok, accuracy.problem()
        assert not judge.compare(answer, {**found, "dk": found["dk"] * 1.04}).ok
