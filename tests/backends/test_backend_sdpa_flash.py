"""`sdpa-fa3` and `sdpa-fa4`, with torch's own switch and stand-ins for the libraries."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch.nn.attention

from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import flash_attn, install
from standins.contract import HOPPER, backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")
NAMES = ("sdpa-fa3", "sdpa-fa4")


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace torch's switch, which needs a GPU, and return the activated names, in order."""
    done: list[str] = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", done.append, raising=False)
    monkeypatch.setattr(
        torch.nn.attention, "current_flash_attention_impl", lambda: done[-1] if done else None, raising=False
    )
    return done


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    modules, versions = {
        "sdpa-fa3": (flash_attn.version_3(), flash_attn.VERSIONS_3),
        "sdpa-fa4": (flash_attn.version_4(results=2), {"flash-attn-4": "4.0.0b18"}),
    }[name]
    install(monkeypatch, modules, versions | {"torch": "2.13.0"})


def _runs_on_a_cpu(case: Case) -> bool:
    """Return whether torch's own kernel computes a case on a CPU; test_backend_nested.py has ragged batches."""
    s = case.shape
    unequal = s.headdim != s.headdim_v or (case.causal and s.seqlen_q != s.seqlen_k)
    return not (unequal or case.is_ragged)


@pytest.mark.usefixtures("active")
@cases(NAMES, where=_runs_on_a_cpu)
def test_contract(name: str, case: Case) -> None:
    """Results are right with torch's own flash kernel for CPUs in place of the library, for the cases that it takes."""
    check(backend(name), case)


@pytest.mark.parametrize("name", NAMES)
def test_activated_once_in_a_process(name: str, active: list[str]) -> None:
    for _ in range(3):
        backend(name).prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0))
    assert active == [name[-3:].upper()]


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("name", NAMES)
def test_probe_needs_torchs_switch_and_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = name[-3:].upper()
    attention: Any = torch.nn.attention
    monkeypatch.setattr(attention, "list_flash_attention_impls", lambda: ["FA3", "FA4"], raising=False)
    stand_in(monkeypatch, name)
    version = backend(name).probe().version
    assert version is not None
    assert re.fullmatch(r"torch 2.13.0, flash-attn-\d \S+", version)
    missing: dict[str, ModuleType | None] = {"flash_attn_interface": None, "flash_attn": None, "flash_attn.cute": None}
    with monkeypatch.context() as patch:
        install(patch, missing, {"torch": "2.13.0"})
        absent = backend(name).probe()
        assert "is not installed" in str(absent.reason)
        assert ("attnbench env create sdpa-fa4" in str(absent.install)) == (name == "sdpa-fa4")
    monkeypatch.delattr(attention, "list_flash_attention_impls")
    assert backend(name).probe().reason == f"this torch cannot put {wanted} behind SDPA; 2.11 and newer can"


def test_a_library_without_the_operators_that_torch_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flash-attn 3 without torch's operators is unusable; features that a build lacks are refused, too."""
    stand_in(monkeypatch, "sdpa-fa3")
    probe = backend("sdpa-fa3").probe()
    said = "Module 'flash_attn_interface' does not expose FA3 forward kernels"
    assert probe.reason == f"torch cannot put flash-attn-3 3.0.0 behind SDPA: {said}"
    assert "attnbench env create fa3" in str(probe.install)


@pytest.mark.usefixtures("active")
def test_what_the_build_leaves_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch, flash_attn.version_3("FLASHATTENTION_DISABLE_FP16"), flash_attn.VERSIONS_3 | {"torch": "2.13.0"}
    )
    made = backend("sdpa-fa3")
    assert made.probe().usable
    said = made.unsupported(replace(PLAIN, dtype="fp16"), HOPPER)
    assert said == "this build leaves out fp16 (FLASH_ATTENTION_DISABLE_FP16)"


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize(("torch_version", "usable"), [("2.11.0+cu130", False), ("2.13.1", False), ("2.14.0", True)])
def test_a_library_with_more_results_than_torch_expects(
    torch_version: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.attention, "list_flash_attention_impls", lambda: ["FA4"], raising=False)
    monkeypatch.setattr(torch, "__version__", torch_version)
    install(monkeypatch, flash_attn.version_4(), flash_attn.VERSIONS_4 | {"torch": torch_version})
    found = backend("sdpa-fa4").probe()
    assert found.usable == usable
    if not usable:
        assert found.reason == "this torch takes 2 results of flash-attn-4 4.0.0b36's forward, which returns 5"
        assert "4.0.0b18" in str(found.install)
