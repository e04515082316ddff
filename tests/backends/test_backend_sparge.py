"""`sparge`, through a stand-in with its interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from attnbench import judge
from attnbench.backends.approximate.sparge import Sparge
from attnbench.core.case import Case, Shape
from attnbench.core.record import Accuracy
from attnbench.judge import inputs
from standins import function, install, sageattention, spas_sage_attn
from standins.contract import HOPPER, backend, check, shared

CASE = Case(Shape(1, 256, 512, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, spas_sage_attn.version_0_1(), {"spas_sage_attn": "0.1.0"})


@pytest.mark.parametrize(
    "case",
    [CASE, Case(Shape(2, 192, 640, 2, 2, 128, 128), "fp16", "fwd", scale=0.2), replace(CASE, layout="bhsd")],
    ids=["bf16", "fp16", "bhsd"],
)
def test_contract(case: Case) -> None:
    assert backend("sparge").probe().version == "spas_sage_attn 0.1.0"
    assert backend("sparge").unsupported(case, HOPPER) is None
    check(backend("sparge"), case)
    shared.operators_of_launches(backend("sparge"), case)


@pytest.mark.parametrize("data", ["normal", "outliers", "decaying"])
def test_error_and_kept_mass(data: str) -> None:
    case = replace(CASE, dtype="fp16", data=data)
    found = judge.make_check(case, given := inputs.make(case, "cpu", seed=0), 0, backend("sparge"))
    prepared = backend("sparge").prepare(case, given)
    accuracy = found.check_first(prepared.canonical(prepared.launch()))
    assert accuracy.ok, accuracy.problem()
    assert found.approximation is not None
    assert found.approximation.error > 0.03
    assert 0.3 < (found.approximation.mass_kept or 0) < 1


def accuracy_of(case: Case, made: Any = None) -> Accuracy:
    made = made or backend("sparge")
    given = inputs.make(case, "cpu", seed=0)
    prepared = made.prepare(case, given)
    return judge.make_check(case, given, 0, made).check_first(prepared.canonical(prepared.launch()))


def test_its_causal_call_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all blocks kept, so that the definition is causal attention, queries of the diagonal see later keys."""

    class Causal(Sparge):
        def selected_count(self, case: Case) -> int | None:
            return case.shape.seqlen_k // 128

        def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
            return None

        def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
            import torch

            return torch.arange(len(k)) <= rows[:, None]

    def causal(of: Any) -> Tensor:
        of.is_causal, of.topk = True, 1.0
        return spas_sage_attn._attend(of)

    modules = spas_sage_attn.version_0_1()
    modules["spas_sage_attn.core"].spas_sage2_attn_meansim_topk_cuda = function(spas_sage_attn.ATTEND, causal)
    install(monkeypatch, modules, {"spas_sage_attn": "0.1.0"})
    case = Case(Shape(1, 256, 256, 2, 2, 64, 64), "bf16", "fwd", True)
    assert "out is off" in accuracy_of(case, Causal()).problem()
    assert "later keys" in (backend("sparge").unsupported(case, HOPPER) or "")


def other_blocks(of: Any) -> Any:
    of.q = -of.q
    table, number, q, *rest = spas_sage_attn.block_map(of)
    return table, number, -q, *rest


def fewer_blocks(of: Any) -> Any:
    of.topk = 0.25
    return spas_sage_attn.block_map(of)


@pytest.mark.parametrize("select", [other_blocks, fewer_blocks])
def test_another_selection_is_wrong(select: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, spas_sage_attn.version_0_1(select), {"spas_sage_attn": "0.1.0"})
    assert "it selected" in accuracy_of(CASE).problem()


def test_other_rounding_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sageattention, "_int8", lambda t, block: t.float())
    assert "out is off" in accuracy_of(replace(CASE, dtype="fp16")).problem()
