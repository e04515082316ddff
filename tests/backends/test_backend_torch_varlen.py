"""`torch-varlen`, with torch's function replaced: its kernels need a GPU."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.judge import inputs
from standins.contract import CASES, CPU, HOPPER, TURING, backend, cases, check
from standins.torch_attention import varlen_attn_2_11, varlen_attn_2_13

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")
RAGGED = replace(PLAIN, shape=Shape(2, 64, 64, 2, 2, 64, 64), lengths=((1, 32, 32), (1, 64, 64)))


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
            f"varlen_attn takes windows since torch 2.11, this is torch {version}; pip install 'torch>=2.11'"
        )


@pytest.mark.parametrize(
    ("case", "device", "reason"),
    [
        (RAGGED, CPU, "needs a CUDA GPU"),
        (RAGGED, TURING, "8.0 or newer"),
        (RAGGED, HOPPER, None),
        (replace(RAGGED, window_size=(8, 8)), HOPPER, None),
        (replace(RAGGED, softcap=30.0), HOPPER, "no softcap"),
        (replace(PLAIN, dropout_p=0.1), HOPPER, "no dropout"),
        (replace(PLAIN, shape=Shape(1, 64, 32, 2, 2, 64, 64), causal=True), HOPPER, "no defined output"),
    ],
)
def test_what_it_refuses(case: Case, device: Device, reason: str | None) -> None:
    said = backend("torch-varlen").unsupported(case, device)
    assert (said is None) if reason is None else (said is not None and reason in said)


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
    with pytest.raises(Unsupported, match=r"of this torch reads no pages, that of 2\.13 does"):
        made.prepare(case, given)


@pytest.mark.parametrize("fault", ["order", "neighbour", "length", "scale"])
@pytest.mark.parametrize("key", ["decode", "unlike", "beside"])
def test_a_call_with_other_pages_is_wrong(key: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(
        *given: Any, block_table: Any, seqused_k: Any, scale: float, enable_gqa: bool = False, **options: Any
    ) -> Any:
        table = {"order": block_table.flip(1), "neighbour": block_table.roll(1, 0)}.get(fault, block_table)
        lengths = seqused_k - int(fault == "length")
        options |= {"max_k": int(lengths.max()), "scale": scale * (1.3 if fault == "scale" else 1)}
        options |= {"enable_gqa": enable_gqa, "block_table": table, "seqused_k": lengths}
        return varlen_attn_2_13(*given, **options)

    module: Any = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = wrong
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(AssertionError):
        check(backend("torch-varlen"), CASES[f"pages-256-{key}"])
