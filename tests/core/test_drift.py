"""Failures that come after a right first result: gradients that accumulate, and a run file with two writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnbench import judge
from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Run
from attnbench.results import run_file

torch = pytest.importorskip("torch")


class Accumulates(torch.autograd.Function):  # type: ignore[misc]
    """Attention whose dk is right in the first call and grows with each further one, as in a buffer never cleared."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        ctx.save_for_backward(q, k, v)
        return torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in inputs))
            dq, dk, dv = torch.autograd.grad(out.transpose(1, 2), inputs, dout)
        Accumulates.calls += 1
        return dq, dk * Accumulates.calls, dv


@pytest.mark.parametrize("budget", [2**23, 2**12], ids=["all rows", "sampled"])
def test_gradients_that_accumulate_are_wrong(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    from attnbench.backends.shared.function import Function
    from attnbench.worker.measure_cell import CellMeasurer

    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", budget)
    Accumulates.calls = 0
    backend = Function("accumulates", lambda q, k, v, causal, softmax_scale: Accumulates.apply(q, k, v))
    measurer = CellMeasurer(Device("cpu", 0, "cpu", 2**33, 2**33, l2=2**20, threads=1))
    case = Case(Shape(1, 256, 256, 2, 2, 32, 32), "fp32", "bwd")
    found = measurer.measure(backend, case, Policy(max_seconds=0.01, min_seconds=0.0, warmup_s=0.0))
    assert found["status"] == "wrong"
    assert "dk is off" in found["reason"]
    assert found["reason"].startswith("in the second launch")


def test_a_run_file_has_one_writer_at_a_time(tmp_path: Path) -> None:
    case = Case(Shape(1, 8, 8, 1, 1, 16, 16), "fp32", "fwd")
    device = Device("cpu", 0, "cpu", 1, 1)
    plan = (Job(case, "eager", 0, Forecast(1.0, 1.0, 1)),)
    run = Run(Environment(device, "3", "linux", None, "cpu"), "s", Policy(), plan)
    first = run_file.RunFile.create(tmp_path / "r.jsonl", run)
    with pytest.raises(UserError, match="being written by another"):
        run_file.RunFile.reopen(tmp_path / "r.jsonl")
    first.close()
    run_file.RunFile.reopen(tmp_path / "r.jsonl").close()


def test_a_single_key_is_right() -> None:
    """With one key dq and dk are exactly 0, and the rounding of a kernel that computes them is not."""
    from attnbench.backends.shared.function import Function
    from attnbench.worker.measure_cell import CellMeasurer

    def sdpa(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        del causal
        p = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale, -1)
        return torch.einsum("bhqk,bkhd->bqhd", p, v) + 1e-7 * q.sum(1, keepdim=True) * 0.1

    measurer = CellMeasurer(Device("cpu", 0, "cpu", 2**33, 2**33, l2=2**20, threads=1))
    case = Case(Shape(2, 4, 1, 2, 2, 64, 64), "fp32", "bwd")
    policy = Policy(max_seconds=0.01, min_seconds=0.0, warmup_s=0.0)
    assert measurer.measure(Function("sdpa", sdpa), case, policy)["status"] == "ok"
