"""`cudnn` and `cudnn-fp8`, through a stand-in for cudnn-frontend's graphs."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.backends.cudnn import graphs as ours
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import cudnn, install
from standins.contract import BLACKWELL, HOPPER, backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 128, 128), "bf16", "fwd")


DECODE = Case(Shape(3, 1, 300, 4, 2, 128, 128), "bf16", "fwd", True, page_size=16)
BESIDE = replace(DECODE, shape=Shape(2, 20, 300, 4, 2, 128, 128), lengths=((1, 20, 40), (1, 1, 300)))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, cudnn.version_1_32(), cudnn.VERSIONS)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    ours._handle.cache_clear()
    yield
    ours._handle.cache_clear()


@pytest.mark.usefixtures("stand_in")
@cases("cudnn")
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
def test_probe_names_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend("cudnn").probe().version == "nvidia-cudnn-frontend 1.32.0, cuDNN 9.19.0"

    def missing() -> int:
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(sys.modules["cudnn"], "backend_version", missing)
    probe = backend("cudnn-fp8").probe()
    assert probe.reason == "cudnn-frontend finds no cuDNN: Unable to find symbol cudnnGetVersion"
    assert probe.install


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the imported modules, in order."""
    seen: list[str] = []
    usual, module = builtins.__import__, importlib.import_module

    def noted(name: str, *rest: Any, **others: Any) -> Any:
        seen.append(name)
        return usual(name, *rest, **others)

    def noted_module(name: str, *rest: Any) -> Any:
        seen.append(name)
        return module(name, *rest)

    monkeypatch.setattr(builtins, "__import__", noted)
    monkeypatch.setattr(importlib, "import_module", noted_module)
    return seen


@pytest.mark.usefixtures("stand_in")
def test_torch_is_imported_before_cudnn_frontend(imported: list[str]) -> None:
    assert backend("cudnn").probe().usable
    assert [name for name in imported if name in ("torch", "cudnn")][:2] == ["torch", "cudnn"]


def test_torch_is_not_imported_without_cudnn_frontend(monkeypatch: pytest.MonkeyPatch, imported: list[str]) -> None:
    install(monkeypatch, {"cudnn": None}, {})
    assert "is not installed" in (backend("cudnn").probe().reason or "")
    assert "torch" not in imported


@pytest.mark.usefixtures("stand_in")
def test_a_launch_runs_on_torchs_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch runs on torch's current stream, because CUDA graphs are captured on another stream."""
    prepared = backend("cudnn").prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=11))
    prepared.launch()
    assert ours._handle().stream == 11


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_a_ragged_batch_has_a_plan(direction: Any) -> None:
    dense = Case(Shape(3, 40, 40, 4, 2, 128, 64), "bf16", direction, True)
    for case in (dense, replace(dense, lengths=((1, 40, 40), (2, 9, 9)))):
        assert (backend("cudnn").prepare(case, inputs.make(case, "cpu", seed=0)).plan is not None) == case.is_ragged


@pytest.mark.usefixtures("stand_in")
def test_a_graph_that_cudnn_refuses_is_a_skip() -> None:
    case = replace(PLAIN, shape=Shape(1, 64, 32, 2, 2, 128, 128), causal=True)
    assert backend("cudnn").unsupported(case, HOPPER) is not None  # the plan skips the case before cuDNN is called
    with pytest.raises(Unsupported, match="cuDNN refuses: Bottom right causal mask does not support") as refused:
        backend("cudnn").prepare(case, inputs.make(case, "cpu", seed=0))
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("stand_in")
@cases("cudnn-fp8")
def test_fp8_contract(monkeypatch: pytest.MonkeyPatch, name: str, case: Case) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@cases("cudnn-fp8", device=BLACKWELL)
def test_fp8_contract_on_blackwell(monkeypatch: pytest.MonkeyPatch, name: str, case: Case) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
def test_fp8_out_is_bf16_on_blackwell_and_has_the_scale_of_v_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fp8 out is bf16 on Blackwell and has v's scale on Hopper; with scale 1 e4m3 would lose means of many keys."""
    fp8 = Case(Shape(1, 8, 4096, 2, 2, 32, 32), "fp8", "fwd")
    given = inputs.make(fp8, "cpu", seed=0)
    given.v.mul_(2**-9)
    made = backend("cudnn-fp8").prepare(fp8, given)
    wide = made.canonical(made.launch())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    made = backend("cudnn-fp8").prepare(fp8, given)
    narrow = made.canonical(made.launch())
    assert wide.keys() == {"out"}
    assert wide["out"].dtype == torch.bfloat16
    assert narrow["out"].dtype == torch.float8_e4m3fn
    assert float(narrow["descale_out"]) == pytest.approx(float(given.v.abs().max()) / 448)
    apart = narrow["out"].float() * narrow["descale_out"] - wide["out"].float()
    assert 0.01 < apart.norm() / wide["out"].float().norm() < 0.04  # the error of one rounding to 3 bits


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("case", [DECODE, BESIDE], ids=["decode", "beside"])
def test_pages_are_read_where_they_are(case: Case) -> None:
    """Pages are read in place. `plan` builds the lengths, and offsets for unlike numbers of queries, once a step."""
    prepared = backend("cudnn").prepare(case, inputs.make(case, "cpu", seed=0))
    assert not prepared.reads
    assert prepared.plan is not None
    planned: Any = prepared.plan()
    assert {name.partition("_")[0] for name in planned} == ({"seqlen", "offsets"} if case.is_ragged else {"seqlen"})
