"""Kernels that are wrong about ALiBi's slopes. Each is found, whatever rows are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from measuring_device import QUICK, MeasuringDevice
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.alibi import alibi_slopes
from attnbench.core.backend import Inputs, Prepared, Signature
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.worker import reference

SHAPE = Shape(2, 80, 80, 6, 2, 16, 16)


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
class Alibi(BackendBase):
    """Textbook attention that subtracts what `bias` makes of the right slopes and the distances."""

    bias: Callable[[Tensor, Tensor, Case], Tensor] = right
    name = "alibi"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return None

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature()

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


@pytest.fixture(params=["all rows", "sampled"])
def few_or_all(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sampled":
        monkeypatch.setitem(reference.SCORE_BUDGET, "cpu", 20_000)


@pytest.mark.usefixtures("few_or_all")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [Alibi(), Eager()], ids=["textbook", "eager"])
def test_right_kernels_pass(steady_cpu: MeasuringDevice, dtype: Any, causal: bool, backend: BackendBase) -> None:
    """No fault."""
    record = steady_cpu.measure(backend, Case(SHAPE, dtype, "fwd_bwd", causal, alibi=True), QUICK)
    assert record.status == "ok", record.reason


@pytest.mark.usefixtures("few_or_all")
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(
    "bias", [left_out, wrong_sign, signed_distance, scaled, of_the_next_head, as_for_a_power_of_two]
)
def test_other_slopes(steady_cpu: MeasuringDevice, direction: Any, bias: Any) -> None:
    """Fault: the bias is left out, has the wrong sign, is scaled, or has the slopes of another head. Found: wrong."""
    record = steady_cpu.measure(Alibi(bias), Case(SHAPE, "bf16", direction, False, alibi=True))
    assert record.status == "wrong"
