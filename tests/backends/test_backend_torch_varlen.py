"""`torch-varlen`, with torch's function replaced: its kernels need a GPU."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins.contract import CASES, HOPPER, backend, cases, check
from standins.torch_attention import varlen_attn_2_11, varlen_attn_2_13

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture(params=[varlen_attn_2_11, varlen_attn_2_13])
def function(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = request.param
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return request.param


@pytest.mark.usefixtures("function")
@cases("torch-varlen")
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


def test_the_installed_torch_has_the_arguments() -> None:
    from torch.nn.attention.varlen import varlen_attn

    names = {"cu_seq_q", "cu_seq_k", "max_q", "max_k", "scale", "window_size"}
    assert names <= set(inspect.signature(varlen_attn).parameters)


@pytest.mark.parametrize(("version", "usable"), [("2.10.0+cu128", False), ("2.11.0", True), ("2.13.0+cpu", True)])
def test_probe(version: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    found = backend("torch-varlen").probe()
    assert found.version == f"torch {version}"
    assert found.usable == usable
    if not usable:
        assert found.why_not == (
            f"varlen_attn takes windows in torch 2.11 and newer, this is torch {version}; pip install 'torch>=2.11'"
        )


@pytest.mark.usefixtures("function")
def test_pages_need_a_newer_torch(function: Any) -> None:
    case = CASES["pages-256-beside"]
    given = inputs.make(case, "cpu", seed=0)
    made = backend("torch-varlen")
    assert made.unsupported(case, HOPPER) is None
    assert made.unsupported(CASES["pages-64-beside"], HOPPER) == "no pages of 64 tokens, only multiples of 256"
    if function is varlen_attn_2_13:
        assert made.prepare(case, given).reads == {}
        return
    with pytest.raises(Unsupported, match=r"of this torch reads no pages; torch 2\.13 does"):
        made.prepare(case, given)
