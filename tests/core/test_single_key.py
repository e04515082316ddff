"""A case of a single key has gradients of exactly 0, and a right kernel passes its check."""

from __future__ import annotations

from typing import Any

import torch

from attnbench.backends.shared.function import Function
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.worker.measure_cell import CellMeasurer


def test_a_single_key_is_right() -> None:
    """A single key is right although the rounding of a kernel that computes dq and dk is not 0."""

    def sdpa(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        del causal
        p = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale, -1)
        return torch.einsum("bhqk,bkhd->bqhd", p, v) + 1e-7 * q.sum(1, keepdim=True) * 0.1

    measurer = CellMeasurer(Device("cpu", 0, "cpu", 2**33, 2**33, l2=2**20, threads=1))
    case = Case(Shape(2, 4, 1, 2, 2, 64, 64), "fp32", "bwd")
    policy = Policy(max_seconds=0.01, min_seconds=0.0, warmup_s=0.0)
    assert measurer.measure(Function("sdpa", sdpa), case, policy)["status"] == "ok"
