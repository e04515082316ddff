"""`hf-*`, through a stand-in with the interface of transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.core.case import Case, Shape
from standins import flash_attn, install, transformers
from standins.contract import backend, cases, check

NAMES = ("hf-eager", "hf-sdpa", "hf-flash_attention_2", "hf-flex_attention")
PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, transformers.version_5_23() | flash_attn.version_2(), transformers.VERSIONS)


@pytest.mark.usefixtures("stand_in")
@cases(NAMES[:3], NAMES[3])
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
def test_probe_names_transformers_and_the_kernel() -> None:
    assert backend("hf-sdpa").probe().version == "transformers 5.23.0"
    both = "transformers 5.23.0, flash-attn 2.8.3.post1"
    assert backend("hf-flash_attention_2").probe().version == both


def test_without_flash_attn_2_no_other_kernel_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = dict.fromkeys(flash_attn.version_2())
    install(monkeypatch, transformers.version_5_23() | missing, {"transformers": "5.23.0"})
    probe = backend("hf-flash_attention_2").probe()
    assert probe.reason == "flash_attn.flash_attn_interface is not installed"
    assert backend("hf-sdpa").probe().usable


def test_a_single_query_is_not_causal() -> None:
    """A single query is not passed as causal: transformers 4 passes the flag to SDPA, where it would see one key."""
    lone = replace(PLAIN, shape=Shape(1, 1, 64, 2, 2, 64, 64), causal=True)
    options = backend("hf-sdpa")._options(lone, "cpu")  # type: ignore[attr-defined]
    assert options == {"attention_mask": None, "is_causal": False}
    assert backend("hf-sdpa")._options(replace(PLAIN, causal=True), "cpu")["is_causal"]  # type: ignore[attr-defined]
