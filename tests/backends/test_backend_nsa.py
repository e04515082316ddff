"""`nsa`, through a stand-in with the interface of fla-core."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from attnbench import judge
from attnbench.backends.approximate import nsa
from attnbench.core.case import Case, Shape
from attnbench.judge import approximate_check, inputs
from standins import fla, install
from standins.contract import HOPPER, backend, check, shared

CASE = Case(Shape(1, 200, 200, 16, 1, 16, 16), "fp16", "fwd_bwd", True)


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fla.version_0_6_0(), fla.VERSIONS)


@pytest.mark.parametrize("selected", [16, 2])
@pytest.mark.parametrize(
    "case", [CASE, replace(CASE, dtype="bf16", direction="bwd", layout="bhsd")], ids=["fp16", "bf16"]
)
def test_contract(case: Case, selected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are right with 16 selected blocks, which are all, and with 2, although the method always selects more."""
    monkeypatch.setattr(nsa, "SELECTED", selected)
    assert backend("nsa").probe().version == "fla-core 0.6.0"
    assert backend("nsa").unsupported(case, HOPPER) is None
    check(backend("nsa"), case)
    shared.operators_of_launches(backend("nsa"), case)


def test_blocks_that_are_not_the_best_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection of worse blocks is wrong: of 10 blocks 4 are selected, one of them by a negated score."""
    monkeypatch.setattr(nsa, "SELECTED", 4)
    case = replace(CASE, shape=Shape(1, 640, 640, 16, 1, 16, 16), direction="fwd")
    given = inputs.make(case, "cpu", seed=0)

    def problem() -> str:
        check = judge.make_check(case, given, 0, backend("nsa"))
        prepared = backend("nsa").prepare(case, given)
        return check.check_first(prepared.canonical(prepared.launch())).problem()

    assert problem() == ""
    right = fla.parallel_nsa_topk

    def turned(q: Tensor, *rest: Any, **options: Any) -> Tensor:
        return right(-q, *rest, **options)

    monkeypatch.setattr(sys.modules["fla.ops.nsa.parallel"], "parallel_nsa_topk", turned)
    assert "it selected a candidate" in problem()


def test_the_definition_is_evaluated_once_for_each_query_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition is evaluated once for each query head; all heads for each would take minutes at 64k tokens."""
    rows = {"compressed": 0, "attended": 0}
    compressed, attended = nsa.compressed, nsa.Nsa.attended

    def of_means(case: Case, q: Tensor, k: Tensor) -> Tensor:
        rows["compressed"] += len(q)
        return compressed(case, q, k)

    def of_blocks(self: nsa.Nsa, case: Case, q: Tensor, k: Tensor, some: Tensor, chosen: Tensor | None) -> Any:
        rows["attended"] += some.numel()
        return attended(self, case, q, k, some, chosen)

    given = inputs.make(CASE, "cpu", seed=0)
    prepared = backend("nsa").prepare(CASE, given)
    selected = prepared.canonical(prepared.launch())["selected"]
    sample = approximate_check.choose_pairs(CASE, given.q.device, 0)
    monkeypatch.setattr(nsa, "compressed", of_means)
    monkeypatch.setattr(nsa.Nsa, "attended", of_blocks)
    approximate_check.define(nsa.Nsa(), CASE, given, sample, selected)
    once = 2 * CASE.shape.nheads * CASE.shape.seqlen_q  # once exactly, once in the case's dtype
    assert rows == {"compressed": once, "attended": 2 * once}  # checkpoints evaluate the second twice
