"""`sage` and `sage2`, through stand-ins with their interfaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnbench import judge
from attnbench.backends.approximate.sage import Sage, Sage2, rounded
from attnbench.core.backend import Backend, Inputs
from attnbench.core.case import Case, Shape
from attnbench.core.record import Accuracy, Approximation
from attnbench.judge import inputs
from standins import install, sageattention
from standins.contract import HOPPER, backend, check, shared

PLAIN = Case(Shape(1, 256, 256, 2, 1, 64, 64), "bf16", "fwd")


@pytest.fixture(params=["1.0.6", "2.2.0"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = sageattention.version_1() if request.param == "1.0.6" else sageattention.version_2()
    install(monkeypatch, modules, {"sageattention": request.param})


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize(
    "case",
    [
        PLAIN,
        Case(Shape(2, 100, 100, 2, 2, 128, 128), "fp16", "fwd", True),
        Case(Shape(2, 1, 128, 4, 2, 64, 64), "bf16", "fwd", True),
        replace(PLAIN, layout="bhsd"),
    ],
    ids=["full", "causal", "decode", "bhsd"],
)
def test_contract(case: Case) -> None:
    assert backend("sage").unsupported(case, HOPPER) is None
    check(backend("sage"), case)
    shared.operators_of_launches(backend("sage"), case)


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("causal", [False, True])
def test_several_blocks(causal: bool) -> None:
    case = Case(PLAIN.shape, "fp16", "fwd", causal)
    accuracy, near = checked(backend("sage"), case)
    assert accuracy.ok, accuracy.problem()
    assert near is not None
    assert 1e-3 < near.error < 0.05
    assert near.mass_kept == pytest.approx(1.0)


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("fault", ["none", "larger blocks"])
def test_other_rounding_is_wrong(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sageattention._int8
    other = {
        "none": lambda t, block: t,
        "larger blocks": lambda t, block: plain(t, 2 * block),
    }
    monkeypatch.setattr(sageattention, "_int8", other[fault])
    accuracy, _ = checked(backend("sage"), replace(PLAIN, dtype="fp16"))
    assert not accuracy.ok
    assert "out is off" in accuracy.problem()


def checked(made: Backend, case: Case, given: Inputs | None = None) -> tuple[Accuracy, Approximation | None]:
    given = given or inputs.make(case, "cpu", seed=0)
    check = judge.make_check(case, given, 0, made)
    prepared = made.prepare(case, given)
    return check.check_first(prepared.canonical(prepared.launch())), check.approximation


def test_the_tag_without_a_launch_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, sageattention.version_2(), {"sageattention": "2.2.0"})
    assert backend("sage2").probe().version == "sageattention 2.2.0"
    install(monkeypatch, sageattention.version_2(fixed=False), {"sageattention": "2.2.0"})
    found = backend("sage2").probe()
    assert "another version is needed" in found.reason
    assert "SageAttention@d1a57a5" in found.install


ON_HOPPER = [
    PLAIN,
    Case(Shape(2, 200, 200, 2, 2, 128, 128), "fp16", "fwd", True),
    Case(Shape(1, 100, 300, 2, 2, 96, 96), "bf16", "fwd"),
    Case(Shape(2, 1, 128, 4, 2, 64, 64), "bf16", "fwd", True),
    replace(PLAIN, layout="bhsd"),
]


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, sageattention.version_2(), {"sageattention": "2.2.0"})


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("case", ON_HOPPER, ids=["full", "causal", "tails", "decode", "bhsd"])
def test_contract_of_sage2(case: Case) -> None:
    assert backend("sage2").unsupported(case, HOPPER) is None
    check(backend("sage2"), case)
    shared.operators_of_launches(backend("sage2"), case)


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("data", ["normal", "outliers", "decaying"])
def test_error_of_sage2(data: str) -> None:
    """Results of several blocks are right, and their error is the error of e4m3."""
    accuracy, near = checked(backend("sage2"), Case(Shape(1, 400, 400, 2, 2, 128, 128), "fp16", "fwd", True, data=data))
    assert accuracy.ok, accuracy.problem()
    assert near is not None
    assert 0.02 < near.error < 0.06
    assert near.mass_kept == pytest.approx(1.0)


FAULTS: dict[str, dict[str, Any]] = {
    "q and k not rounded": {"_int8_of_threads": lambda t, threads: t.float()},
    "a scale for each block": {"_int8_of_threads": lambda t, threads: sageattention._int8(t, 64)},
    "probabilities not rounded": {"e4m3": lambda t: t},
    "another maximum": {"OFFSET": 8.3},
}


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("fault", FAULTS)
def test_other_rounding_of_sage2_is_wrong(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FAULTS[fault].items():
        monkeypatch.setattr(sageattention, name, value)
    accuracy, _ = checked(backend("sage2"), replace(PLAIN, dtype="fp16"))
    assert "out is off" in accuracy.problem()


def test_rounding() -> None:
    t = torch.randn(200, 8, dtype=torch.float64)
    found = rounded(t, Sage.of_k)
    for at in (slice(0, 64), slice(64, 128), slice(192, 200)):
        step = t[at].abs().max() / 127
        assert torch.allclose(found[at] / step, (found[at] / step).round(), atol=1e-9)
        assert float((found[at] - t[at]).abs().max()) <= float(step) / 2 + 1e-12


@pytest.mark.parametrize(
    ("block", "threads"), [(Sage2.of_q, sageattention.OF_Q), (Sage2.of_k, sageattention.OF_K)], ids=["q", "k"]
)
def test_rounding_of_threads(block: tuple[int, int, int], threads: list[list[int]]) -> None:
    t = torch.randn(1, 200, 1, 8)
    assert torch.allclose(rounded(t[0, :, 0], block), sageattention._int8_of_threads(t, threads)[0, :, 0])
