"""`flashqla`, through a stand-in with the interface of flash-qla."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench import judge
from attnbench.backends.shared.delta import NAMES
from attnbench.core.backend import refusal
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import flash_qla, install
from standins.contract import AMPERE, HOPPER, backend, check, shared

SHAPE = Shape(1, 130, 130, 4, 2, 128, 128)
CASE = Case(SHAPE, "bf16", "fwd", True, kind="gdn", scale=0.2)


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_qla.version_0_1_3(), flash_qla.VERSIONS)


@pytest.mark.parametrize(
    "case", [CASE, replace(CASE, dtype="fp16", direction="fwd_bwd"), replace(CASE, direction="bwd")], ids=str
)
def test_contract(case: Case) -> None:
    assert backend("flashqla").probe().version == "flash-qla 0.1.3"
    assert refusal(backend("flashqla"), case, HOPPER) is None
    check(backend("flashqla"), case)
    shared.operators_of_launches(backend("flashqla"), case)


def test_the_code_to_paste_computes_the_case() -> None:
    paste: Any = backend("flashqla").paste  # type: ignore[attr-defined]
    given = inputs.make(CASE, "cpu", seed=0)
    names: dict[str, Any] = {name: given.values[name] for name in (*NAMES, "state")}
    exec(compile(paste.text(CASE), "paste", "exec"), names)
    accuracy = judge.make_check(CASE, given, 0).check_first({"out": names["out"], "state": names["state"]})
    assert accuracy.ok, accuracy.problem()


def test_refusals() -> None:
    token = replace(CASE, shape=replace(SHAPE, seqlen_q=1, seqlen_k=1))
    for case, device, reason in (
        (token, HOPPER, "no kernel for one token with a state"),
        (replace(CASE, kind="kda"), HOPPER, "it computes gdn, not kda"),
        (replace(CASE, shape=replace(SHAPE, headdim=64)), HOPPER, "headdim 64 with headdim_v 128: only 128"),
        (CASE, AMPERE, "needs compute capability 9.0 or newer, this GPU has 8.0"),
    ):
        assert refusal(backend("flashqla"), case, device) == reason
