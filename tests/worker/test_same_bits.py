"""Comparison of results bit by bit: kernels with each fault are found, on the CPU and between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import forked_worker
from attnbench.backends.pytorch.eager import Eager
from attnbench.backends.pytorch.sdpa import Math
from attnbench.backends.shared.function import Function
from attnbench.core.case import Case, Shape
from attnbench.core.record import Bitwise, Forecast, Job
from attnbench.judge import inputs
from attnbench.run.workers import WorkerPool
from attnbench.worker.same_bits import LAUNCHES, last_sequence, not_alone
from attnbench.worker.serve import Worker
from worker_here import CPU, SHORT

SHAPE = Shape(3, 32, 32, 2, 2, 16, 16)
POLICY = replace(SHORT, bitwise=True)
TINY = 2.0**-22  # a relative error far below any tolerance, and above half a bit of float32


def case(direction: Any = "fwd", **more: Any) -> Case:
    return Case(SHAPE, "fp32", direction, **more)


def compared(worker: Worker, backend: Any, which: Case) -> Bitwise:
    worker.backend = backend if hasattr(backend, "prepare") else Function("own", backend)
    record = worker.run(Job(which, "own", 0, Forecast(1.0, 0.1, 0)), POLICY, CPU)
    assert record.status == "ok", record.reason
    assert record.bitwise, record.notes
    return record.bitwise


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:  # noqa: ARG001
    return torch.einsum("bhij,bjhd->bihd", (torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale).softmax(-1), v)


class Odd(torch.autograd.Function):
    """Multiplies by 1, and its gradient by another factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.factor, None


calls = iter(range(10**9))


def in_any_order(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Only the gradient of q is not the same in each call, as where a backward adds by atomics."""
    return attention(Odd.apply(q, 1 + TINY * (next(calls) % 2)), k, v, **options)


def by_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options) * (1 + TINY * (q.shape[0] > 1))


def test_a_kernel_that_adds_in_any_order_is_found(worker: Worker) -> None:
    found = compared(worker, in_any_order, case("fwd_bwd"))
    assert found.launches == LAUNCHES
    assert found.differing.pop("dq") == LAUNCHES // 2
    assert {*found.differing.values()} == {0}


def test_a_kernel_that_depends_on_the_batch_is_found(worker: Worker) -> None:
    found = compared(worker, by_batch, case("fwd_bwd"))
    assert {*found.differing.values()} == {0}
    assert (found.alone, found.not_alone) == (("out", "dq", "dk", "dv"), "")


@pytest.mark.parametrize("backend", [Eager, Math])
@pytest.mark.parametrize("layout", ["native", "bhsd", "packed"])
def test_attention_of_torch_repeats_itself(worker: Worker, backend: Callable[[], Any], layout: Any) -> None:
    found = compared(worker, backend(), case("bwd", layout=layout, causal=True))
    assert {*found.differing} == {*found.digests} == {"dq", "dk", "dv"}, "all have one out"
    assert {*found.differing.values()} == {0}
    assert (found.alone, found.not_alone) == ((), "")


def test_a_sequence_alone_has_its_part_of_the_inputs() -> None:
    paged = Case(replace(SHAPE, seqlen_q=4), "fp32", "fwd", lengths=((2, 4, 32), (1, 4, 20)), page_size=8)
    for which in (case("fwd_bwd", sink=True), paged, replace(paged, lengths=())):
        given = inputs.make(which, "cpu", 0)
        alone, own = last_sequence(which, given)
        whole, part = (Eager().prepare(of, taken) for of, taken in ((which, given), (alone, own)))
        out, ours = (of.canonical(of.launch())["out"] for of in (whole, part))
        assert torch.allclose(out.flatten(0, 1)[-ours.shape[1] :], ours[0], atol=1e-6)


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (Case(replace(SHAPE, batch=1), "fp32", "fwd"), "its batch has one sequence"),
        (case(dropout_p=0.1), "dropout draws"),
        (Case(SHAPE, "fp8", "fwd"), "one scale for the whole batch"),
        (Case(SHAPE, "fp32", "fwd", lengths=((2, 16, 16), (1, 32, 32))), "is a dense case alone"),
    ],
)
def test_why_no_sequence_is_computed_alone(which: Case, said: str) -> None:
    assert said in not_alone(which)
    assert not not_alone(case())


OWN = f"""
import os
from dataclasses import replace
from attnbench.backends.pytorch.eager import Eager

MARK = __file__ + ".loaded"
FACTOR = 1 + {TINY} * os.path.exists(MARK)  # the second process has another one
open(MARK, "w").close()

class Own(Eager):
    def prepare(self, case, inputs):
        made = super().prepare(case, inputs)
        return replace(made, launch=lambda: made.launch() * FACTOR)

class Crashes(Own):
    def prepare(self, case, inputs):
        return os.abort() if FACTOR > 1 else Eager.prepare(self, case, inputs)
"""


@pytest.fixture
def forks() -> Iterator[None]:
    with forked_worker.workers():
        yield


@pytest.mark.usefixtures("forks")
def test_a_kernel_that_depends_on_its_process_is_found(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    specs = {"own": f"{tmp_path}/own.py:Own", "eager": "attnbench.backends.pytorch.eager:Eager"}
    pool = WorkerPool(specs, others=WorkerPool(specs))
    try:
        for backend, differs in (("own", ("out",)), ("eager", ())):
            record = pool.measure(Job(case(), backend, 0, Forecast(1.0, 0.1, 0)), POLICY, CPU)
            assert record.bitwise, record.reason
            assert (record.bitwise.process, record.bitwise.no_process) == (differs, "")
    finally:
        pool.close()


@pytest.mark.usefixtures("forks")
def test_a_second_process_that_crashes_costs_only_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    specs = {"own": f"{tmp_path}/own.py:Crashes"}
    pool = WorkerPool(specs, others=WorkerPool(specs))
    try:
        record = pool.measure(Job(case(), "own", 0, Forecast(1.0, 0.1, 0)), POLICY, CPU)
        assert record.status == "ok"
        assert record.bitwise
        assert record.bitwise.no_process.startswith("another process gave no results: own: the worker crashed")
    finally:
        pool.close()
