"""The procedure of one cell on the CPU: its measurements, and the record of every failure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, library

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.pytorch.eager import Eager
from attnbench.backends.shared.function import Function
from attnbench.core.backend import Inputs, Prepared, Unsupported
from attnbench.core.case import Case, Shape
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.judge import inputs
from attnbench.worker import cell_steps
from attnbench.worker.measure import nvml
from attnbench.worker.measure.memory import status_bytes
from attnbench.worker.serve import Worker
from worker_here import CPU, SHORT

BIG = 2**23  # bytes


def case(direction: Any = "fwd", seqlen: int = 32, dtype: Any = "fp32", **more: Any) -> Case:
    return Case(Shape(1, seqlen, seqlen, 2, 2, 16, 16), dtype, direction, **more)


def measure(worker: Worker, function: Callable[..., Any] | Any, which: Case, policy: Policy = SHORT) -> Record:
    worker.backend = function if hasattr(function, "prepare") else Function("own", function)
    return worker.run(Job(which, "own", 2, Forecast(1.0, 0.1, 0)), policy, CPU)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_function_is_measured(worker: Worker, direction: str, causal: bool) -> None:
    record = measure(worker, attention, case(direction, causal=causal), replace(SHORT, l2="cold"))
    assert record.status == "ok", record.reason
    assert record.reason is None
    assert (record.backend, record.round, record.timer) == ("own", 2, "perf_counter")
    found = record.measurements
    assert found["time"].unit == found["first_call"].unit == "s"
    assert len(found["time"].values) >= SHORT.min_samples
    assert all(0 < t < 1 for t in found["time"].values)
    assert len(found["first_call"].values) == 1
    assert found["memory_peak"].unit == "B"
    assert ("memory_saved" in found) == (direction != "fwd")
    names = {"out"} if direction == "fwd" else {"out", "dq", "dk", "dv"}
    assert record.accuracy is not None
    assert set(record.accuracy.errors) == names
    assert (record.accuracy.rows, record.accuracy.heads) == (32, 2)
    assert record.l2 in ("cold", "unproven")
    assert sum(count for name, count in record.kernels.items() if name.startswith("aten::bmm")) >= 2
    assert (record.limits, record.others, record.host_bound, record.ecc_errors) == ((), (), False, 0)
    assert record.seconds is not None
    assert record.seconds >= sum(found["time"].values)


def is_one_line(text: str | None) -> bool:
    return bool(text) and "\n" not in str(text)


def raises(error: Exception) -> Callable[..., Tensor]:
    def function(*_: Tensor, **__: Any) -> Tensor:
        raise error

    return function


def _sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q + k + v


forward_only = library.custom_op("measured::forward_only", _sum, mutates_args=())


@pytest.mark.parametrize(
    ("function", "direction", "status", "reason"),
    [
        (lambda q, k, v, **_: forward_only(q, k, v), "bwd", "skipped", "no backward: Trying to backward through"),
        (lambda q, k, v, **_: torch.zeros_like(v), "fwd", "wrong", "out is off by"),
        (lambda q, k, v, **_: v * float("nan"), "fwd", "wrong", "out has values that are not finite"),
        (lambda q, k, v, **_: attention(q, k, v, causal=True, softmax_scale=0.25), "fwd_bwd", "wrong", "out is off"),
        (lambda q, k, v, **_: torch.zeros_like(v), "bwd", "skipped", "not differentiable"),
        (lambda q, k, v, **_: torch.zeros_like(v), "fwd_bwd", "skipped", "not differentiable"),
        (lambda q, k, v, **_: q + v, "bwd", "failed", "RuntimeError: no gradient of k: the backward returns None"),
        (lambda q, k, v, **_: 1 * q, "fwd_bwd", "failed", "RuntimeError: no gradient of k and v: the backward"),
        (raises(Unsupported("headdim 16 is too small for me")), "fwd", "skipped", "headdim 16 is too small for me"),
        (raises(Unsupported("not\n  this one")), "bwd", "skipped", "not this one"),
        (raises(Unsupported()), "fwd", "skipped", "without a reason"),
        (raises(RuntimeError("first line\nsecond line")), "fwd", "failed", "RuntimeError: first line second line"),
        (raises(ValueError()), "fwd", "failed", "ValueError"),
        (raises(MemoryError("no room")), "fwd", "oom", "MemoryError: no room"),
        (raises(RuntimeError("CUDA out of memory. Tried")), "bwd", "oom", "out of memory"),
        (lambda q, k, v, **_: v[:, :-1], "fwd", "failed", "out has shape"),
        (lambda q, k, v, **_: v.double(), "fwd", "failed", "torch.float64"),
        (lambda q, k, v, **_: None, "fwd", "failed", "NoneType"),
        (lambda q, k, v: v, "fwd", "failed", "unexpected keyword argument"),
    ],
)
def test_every_failure_has_its_status_and_reason(
    worker: Worker,
    capfd: pytest.CaptureFixture[str],
    function: Callable[..., Any],
    direction: str,
    status: str,
    reason: str,
) -> None:
    record = measure(worker, function, case(direction))
    assert record.status == status, record.reason
    assert reason in str(record.reason)
    assert is_one_line(record.reason)
    assert "time" not in record.measurements
    assert (record.accuracy is not None) == (status == "wrong")
    assert ("Traceback" in capfd.readouterr().err) == (status in ("failed", "oom"))
    assert measure(worker, attention, case()).status == "ok"  # the failure has no later effect


@pytest.mark.skipif(status_bytes("VmRSS") is None, reason="reads /proc")
def test_a_process_whose_name_is_no_text(worker: Worker) -> None:
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    name.write_bytes(b"caf\xc3")  # cut inside a letter
    try:
        record = measure(worker, attention, case())
        assert record.status == "ok", record.reason
        assert nvml._parent_pid(os.getpid()) == os.getppid()
    finally:
        name.write_bytes(before.strip())


@pytest.mark.skipif(status_bytes("VmRSS") is None, reason="reads /proc")
@pytest.mark.parametrize("leaks", [False, True])
def test_memory_that_calls_keep_and_torch_does_not_see(worker: Worker, leaks: bool) -> None:
    kept = []

    def function(q: Tensor, k: Tensor, v: Tensor, **rest: Any) -> Tensor:
        taken: list[Any] = [b"x" * 2**25]
        taken.append(taken)  # stays until the next garbage collection
        if leaks:
            kept.append(taken)
        return attention(q, k, v, **rest)

    notes = " ".join(measure(worker, function, case()).notes)
    assert cell_steps.UNSEEN in notes
    assert ("each call leaves 32 MiB more allocated" in notes) == leaks


def test_clocks_that_a_call_replaces(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(*qkv: Tensor, **rest: Any) -> Tensor:
        for name in ("monotonic", "perf_counter", "perf_counter_ns"):
            monkeypatch.setattr(time, name, lambda: 0)
        return attention(*qkv, **rest)

    record = measure(worker, function, case())
    monkeypatch.undo()
    assert record.status == "ok", record.reason
    assert record.seconds is not None
    assert record.seconds > sum(record.measurements["time"].values) > 0


class Copies(BackendBase):
    """A backend that reads copies of its inputs, and names the copies in `says` as read."""

    name = "copies"

    def __init__(self, *named: str) -> None:
        self.named = named

    def prepare(self, which: Case, given: Any) -> Prepared:
        own = inputs.clone(given)

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, causal=which.causal, softmax_scale=which.softmax_scale)

        made = autograd_prepared(which, own, function)
        return replace(made, reads={name: t for name, t in made.reads.items() if name in self.named})


@pytest.mark.parametrize(
    ("direction", "named", "wrong"),
    [
        ("fwd", ("q", "k", "v"), ""),
        ("bwd", ("dout",), ""),
        ("fwd_bwd", ("q", "k", "v", "dout"), ""),
        ("fwd", (), "out"),
        ("fwd", ("q", "k"), "out"),
        ("fwd", ("k", "v"), "out"),
        ("bwd", (), "dq"),
        ("bwd", ("q", "k", "v"), "dq"),
        ("fwd_bwd", ("q", "k", "v"), "dq"),
        ("fwd_bwd", ("dout",), "out"),
    ],
)
def test_copies_that_are_not_named_make_the_result_stale(
    worker: Worker, direction: str, named: tuple[str, ...], wrong: str
) -> None:
    """Copies that are not named make the result stale, because results must follow inputs changed in place."""
    record = measure(worker, Copies(*named), case(direction))
    assert record.status == ("wrong" if wrong else "ok"), record.reason
    assert not wrong or str(record.reason).startswith(f"after timing, on inputs renewed in place: {wrong} is off by")


def test_memory_that_prepare_keeps_counts(worker: Worker) -> None:
    class Keeps(Eager):
        def prepare(self, which: Case, given: Any) -> Prepared:
            workspace = torch.ones(BIG // 4)
            made = super().prepare(which, given)
            return replace(made, canonical=lambda raw, _workspace=workspace: made.canonical(raw))

    for direction in ("fwd", "bwd", "fwd_bwd"):
        lean, fat = (
            measure(worker, b, case(direction)).measurements["memory_peak"].values[0] for b in (Eager(), Keeps())
        )
        assert fat - lean == BIG
        assert lean < 2**16  # without copies of the inputs in another layout and a forward's saved tensors


def test_flawed_inputs_are_not_timed(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inputs.make

    def zeros(*args: Any) -> Inputs:
        given = real(*args)
        given.k.zero_()
        return given

    monkeypatch.setattr(inputs, "make", zeros)
    record = measure(worker, attention, case())
    assert (record.status, record.measurements) == ("failed", {})
    assert record.reason == "inputs: k hardly varies (standard deviation 0, 1 expected)"


def test_peak_memory_counts_a_large_temporary(worker: Worker) -> None:
    def wasteful(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        temporary = torch.ones(BIG // 4)
        return attention(q, k, v, **options) * temporary[:1]

    lean, fat = (measure(worker, f, case()).measurements["memory_peak"].values[0] for f in (attention, wasteful))
    out, scores = 32 * 2 * 16 * 4, 2 * 32 * 32 * 4
    assert out + scores <= lean < out + 10 * scores
    assert BIG <= fat < BIG + lean + out + 1024


def test_memory_that_the_forward_keeps(worker: Worker) -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, out: Tensor) -> Tensor:
            ctx.save_for_backward(torch.ones(BIG // 4))
            return out.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    def keeps(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        torch.ones(BIG)  # four times as large, but not kept
        return Keeps.apply(attention(q, k, v, **options))

    for direction in ("bwd", "fwd_bwd"):
        lean, fat = (
            measure(worker, f, case(direction)).measurements["memory_saved"].values[0] for f in (attention, keeps)
        )
        assert 2 * 32 * 32 * 4 <= lean < 2**17  # at least the probabilities
        assert BIG <= fat < BIG + 2**17


def test_first_call_includes_preparation_and_samples_do_not(worker: Worker) -> None:
    import time

    class Slow(BackendBase):
        name = "slow"
        launches = 0

        def prepare(self, which: Case, inputs: Any) -> Prepared:
            time.sleep(0.3)  # compilation

            def launch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                self.launches += 1
                if self.launches == 1:
                    time.sleep(0.3)  # tuning
                return attention(q, k, v, causal=which.causal, softmax_scale=which.softmax_scale)

            return autograd_prepared(which, inputs, launch)

    found = measure(worker, Slow(), case()).measurements
    assert found["first_call"].values[0] >= 0.6
    assert max(found["time"].values) < 0.3


def test_long_sequences_are_timed_with_the_full_dout(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sequences are timed with the full dout, not with the check's dout, which is masked outside its sample."""
    from attnbench import judge

    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", 1)
    seen = []

    class Watching(Eager):
        def prepare(self, which: Case, inputs: Any) -> Prepared:
            seen.append((inputs.dout == 0).float().mean().item())
            return super().prepare(which, inputs)

    record = measure(worker, Watching(), case("bwd", seqlen=256))
    assert record.status == "ok", record.reason
    assert record.accuracy is not None
    assert record.accuracy.rows < 100
    assert len(seen) == 3  # on hard inputs, on the given inputs, and timed
    assert min(seen[:2]) > 0.5
    assert seen[2] < 0.01
