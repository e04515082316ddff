"""`nsa`, through a stand-in with the interface of fla-core."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
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
    """With 16 blocks every one is selected, with 2 not even those that always are."""
    monkeypatch.setattr(nsa, "SELECTED", selected)
    assert backend("nsa").probe().version == "fla-core 0.6.0"
    assert backend("nsa").unsupported(case, HOPPER) is None
    check(backend("nsa"), case)
    shared.operators_of_launches(backend("nsa"), case)


def test_blocks_that_are_not_the_best_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 blocks 4 are selected, one of them by its score, which is turned round."""
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


LONG = replace(CASE, shape=Shape(1, 640, 640, 16, 1, 16, 16), direction="fwd")  # of 10 blocks 4 are selected


def twice(chosen: Tensor) -> Tensor:
    """Return blocks with a query's first in the place of its last."""
    return torch.cat([chosen[..., :-1], chosen[..., :1]], dim=-1)


def later(chosen: Tensor) -> Tensor:
    """Return blocks with the last ones, which come later, where a query sees fewer than 4."""
    return torch.where(chosen < 0, torch.arange(6, 10, dtype=chosen.dtype), chosen)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(twice, "it selected a candidate twice for one query"), (later, "it selected a candidate that is hidden")],
)
def test_blocks_that_no_query_may_select(
    change: Callable[[Tensor], Tensor], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsa, "SELECTED", 4)
    right = fla.parallel_nsa_topk
    monkeypatch.setattr(
        sys.modules["fla.ops.nsa.parallel"],
        "parallel_nsa_topk",
        lambda *args, **options: change(right(*args, **options)),
    )
    given = inputs.make(LONG, "cpu", seed=0)
    prepared = backend("nsa").prepare(LONG, given)
    check = judge.make_check(LONG, given, 0, backend("nsa"))
    assert reason in check.check_first(prepared.canonical(prepared.launch())).problem()


@pytest.mark.parametrize("launched", [1, 3, 5])
def test_another_number_of_blocks_than_the_definition_selects(launched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of most probability, so that each is rightly chosen; what is computed is what is named."""
    given = inputs.make(LONG, "cpu", seed=0)
    prepared = backend("nsa").prepare(LONG, given)
    monkeypatch.setattr(nsa, "SELECTED", launched)
    results = prepared.canonical(prepared.launch())
    monkeypatch.setattr(nsa, "SELECTED", 4)
    problem = judge.make_check(LONG, given, 0, backend("nsa")).check_first(results).problem()
    assert f"it selected {launched} candidate" in problem
    assert "for one query, and its definition selects 4" in problem


def test_the_definition_is_evaluated_once_for_each_query_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64k tokens and 16 query heads, a backward of all of them for each took minutes."""
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
    once = 2 * CASE.shape.nheads * CASE.shape.seqlen_q  # exact and in the case's dtype
    assert rows == {"compressed": once, "attended": 2 * once}  # the second is checkpointed
