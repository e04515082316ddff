"""`torch-varlen`, with torch's function replaced: its kernels need a GPU."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from standins.contract import CPU, HOPPER, TURING, backend, cases, check
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
