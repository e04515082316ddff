"""fp8: the rounding and its error, the form of results, and the backends that support it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnbench import judge
from attnbench.backends import BACKENDS, OF_KIND, load
from attnbench.backends.triton.backend import Triton
from attnbench.core import fp8
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.judge import inputs
from attnbench.worker import environment
from attnbench.worker.measure import ceiling
from standins.attend import attend
from standins.contract import ADA, AMPERE, CPU, HOPPER

CASE = Case(Shape(1, 96, 128, 4, 2, 32, 32), "fp8", "fwd", causal=True)
TAKE_IT = {"fa3", "cudnn-fp8", "transformer-engine-fp8", "triton", "fake"}


def norm(t: torch.Tensor) -> float:
    return float(t.float().norm())


def test_quantize_uses_the_whole_range() -> None:
    t = torch.tensor([[-3.0, 0.5], [1.0, 0.0]])
    small, descale = fp8.quantize(t)
    assert small.dtype == torch.float8_e4m3fn
    assert descale.shape == (1,)
    assert small.float().min() == -448
    torch.testing.assert_close(small.float() * descale, t, rtol=0.07, atol=0.0)
    assert fp8.quantize(torch.zeros(3))[0].float().tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounding_costs_what_three_bits_of_mantissa_cost(dtype: torch.dtype) -> None:
    """Rounding to 3 bits of mantissa has a relative error of 2.6 % in root mean square: steps are 1/8 to 1/16."""
    t = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = t.clone()
    small, descale = fp8.quantize(t)
    assert torch.equal(t, before)
    assert torch.equal(small.float() * descale, fp8.round_to_e4m3(t, descale))
    assert norm(small.float() * descale - t) / norm(t) == pytest.approx(0.026, abs=0.001)


def test_probabilities_are_rounded_relative_to_the_largest_of_their_row() -> None:
    p = torch.softmax(torch.randn(4, 2000, generator=torch.Generator().manual_seed(0)), -1)
    p[3] = 0.0  # a row that sees no key
    rounded = fp8.round_probabilities(p)
    assert torch.all(rounded[3] == 0)
    torch.testing.assert_close(rounded[:3].amax(-1), p[:3].amax(-1))
    assert norm(rounded - p) / norm(p) == pytest.approx(0.026, abs=0.002)
    tiny = fp8.round_probabilities(torch.tensor([[1.0, 2.0**-18, 2.0**-16]]))
    assert tiny.tolist() == [[1.0, 0.0, 2.0**-16]]  # values below 2^-17 are lost


@pytest.fixture
def given() -> Inputs:
    return inputs.make(CASE, "cpu", seed=0)


def out_of(given: Inputs) -> torch.Tensor:
    scale = CASE.softmax_scale
    return attend(given.q, given.k, given.v, scale=scale, right=0, dtype=torch.float32)[0]


def test_the_error_is_against_the_inputs_before_they_were_rounded(given: Inputs) -> None:
    assert given.q.dtype == torch.bfloat16
    check = judge.ResultCheck(CASE, given, 0)
    exact = check.check_first({"out": out_of(given).bfloat16()})
    assert exact.errors["out"].relative < 0.003  # the error of one rounding to bf16
    operands, descale = fp8.quantize_inputs(given)
    wide = Inputs(**{name: t.float() * descale[name] for name, t in operands.items()})
    found = check.check_first({"out": out_of(wide).bfloat16()})
    assert found.ok
    assert 0.03 < found.errors["out"].relative < 0.06


def test_an_e4m3_result_needs_its_scale(given: Inputs) -> None:
    answer = judge.compute_reference(CASE, given, judge.choose_rows(CASE, given.q.device))
    out, descale = fp8.quantize(out_of(given))
    accuracy = judge.compare(answer, {"out": out, "descale_out": descale})
    assert accuracy.ok
    assert accuracy.errors["out"].relative == pytest.approx(0.026, abs=0.003)
    for factor in ({}, {"descale_out": descale.double()}, {"descale_out": descale.expand(2)}):
        with pytest.raises(ValueError, match="it needs descale_out, one float32"):
            judge.compare(answer, {"out": out, **factor})
    spoiled = out.clone().view(torch.uint8)
    spoiled[0, 5, 1, 3] = 0x7F
    accuracy = judge.compare(answer, {"out": spoiled.view(torch.float8_e4m3fn), "descale_out": descale})
    assert accuracy.unwritten == ("out",)
    bf16 = replace(CASE, dtype="bf16")
    answer = judge.compute_reference(bf16, given, judge.choose_rows(bf16, given.q.device))
    with pytest.raises(ValueError, match=r"expected torch\.bfloat16"):
        judge.compare(answer, {"out": out, "descale_out": descale})


@pytest.mark.parametrize("name", sorted({*BACKENDS} - {*TAKE_IT, *OF_KIND["indexer"]}))
def test_other_backends_refuse_fp8(name: str) -> None:
    """Other backends refuse fp8; none computes an fp8 case in bf16."""
    reason = load(name, BACKENDS[name]).unsupported(replace(CASE, causal=False), HOPPER)
    assert reason is not None
    assert "no fp8" in reason


@pytest.mark.parametrize(
    ("device", "direction", "reason"),
    [
        (HOPPER, "fwd", None),
        (ADA, "fwd", None),
        (AMPERE, "fwd", "fp8 needs compute capability 8.9"),
        (Device("cuda", 0, "AMD Instinct MI300X", 2**37, 2**37, (9, 4)), "fwd", "no fp8 on AMD"),
        (HOPPER, "bwd", "fp8 is forward only"),
        (CPU, "fwd", "Triton kernels need a GPU"),
    ],
)
def test_where_triton_supports_fp8(
    monkeypatch: pytest.MonkeyPatch, device: Device, direction: Any, reason: Any
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    said = Triton().unsupported(replace(CASE, direction=direction), device)
    assert said is None if reason is None else reason in str(said)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "rounds to e4m3 wrongly" in str(Triton().unsupported(CASE, CPU))


def test_a_cpu_has_no_ceiling_in_e4m3() -> None:
    """A CPU has no ceiling in e4m3, because torch may use plain loops, and a measurement would take minutes."""
    with pytest.raises(RuntimeError, match="a CPU has no units for e4m3"):
        ceiling.matmul_launch(1024, torch.device("cpu"), torch.float8_e4m3fn)
    assert environment._matmul_rates(torch.device("cpu"), ["fp8"], 1024) == {}


BACKWARD = Case(Shape(1, 96, 128, 4, 2, 32, 32), "fp8", "bwd", causal=True)


def backward_of(given: Inputs) -> dict[str, torch.Tensor]:
    """Return the results of a backward computed in float32 from the given operands."""
    leaves = [getattr(given, name).float().requires_grad_() for name in "qkv"]
    out = attend(*leaves, scale=BACKWARD.softmax_scale, right=0, dtype=torch.float32)[0]
    grads = torch.autograd.grad(out, leaves, given.values["dout"].float())
    return {"out": out.detach(), **dict(zip(("dq", "dk", "dv"), grads, strict=True))}


def in_8_bits(given: Inputs) -> tuple[Inputs, dict[str, torch.Tensor]]:
    """Return the rounded inputs, and the copies in e4m3 and e5m2."""
    operands, descale = fp8.quantize_inputs(given)
    return Inputs(**{name: t.float() * descale[name] for name, t in operands.items()}), operands


def test_a_scale_of_gradients_leaves_a_margin() -> None:
    scale = fp8.gradient_scale(torch.tensor([0.5, -4.0]), torch.tensor([1.0]))
    assert scale * 4.0 * 32 == fp8.E5M2_MAX
    assert fp8.gradient_scale(torch.zeros(3)) == 1


def test_a_backward_has_the_error_of_its_operands() -> None:
    """A backward's error shows its operands: gradients in e5m2 pass, other operands and wrong kernels fail."""
    given = inputs.make(BACKWARD, "cpu", seed=0)
    check = judge.ResultCheck(BACKWARD, given, 0)
    wide, operands = in_8_bits(check.inputs)
    rounded = backward_of(wide)
    results = {"out": rounded["out"].bfloat16()}
    for name in ("dq", "dk", "dv"):
        factor = fp8.descale(rounded[name], fp8.E5M2_MAX)
        results |= {name: (rounded[name] / factor).to(torch.float8_e5m2), f"descale_{name}": factor}
    accuracy = check.check_first(results)
    assert accuracy.ok, accuracy.problem()
    assert all(0.04 < accuracy.errors[name].relative < 0.12 for name in ("dq", "dk", "dv"))
    honest = Prepared(lambda: None, dict, reads=operands)
    assert check.fp8_problem(honest, accuracy) is None
    assert "no e5m2 or e4m3 copy of dout" in str(
        check.fp8_problem(replace(honest, reads={n: operands[n] for n in "qkv"}), accuracy)
    )
    exact = {name: t.bfloat16() for name, t in backward_of(check.inputs).items()}
    fine = check.check_first({**exact, "out": rounded["out"].bfloat16()})
    assert "dq is off by" in str(check.fp8_problem(honest, fine))
    for name, wrong in (
        ("dq", 1.2 * rounded["dq"]),
        ("dk", torch.cat([rounded["dk"][:, :112], 0 * rounded["dk"][:, 112:]], dim=1)),
        ("dv", rounded["dv"].flip(2)),
    ):
        assert not check.check_first({**results, name: wrong.bfloat16()}).ok
