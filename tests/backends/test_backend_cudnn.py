"""`cudnn` and `cudnn-fp8`, through a stand-in for cudnn-frontend's graphs."""

from __future__ import annotations

import builtins
import importlib
import re
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
from attnbench.core.machine import Device
from attnbench.judge import inputs
from standins import cudnn, install
from standins.contract import AMPERE, BLACKWELL, CASES, HOPPER, RTX, TURING, backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 128, 128), "bf16", "fwd")
RAGGED = Case(Shape(3, 64, 64, 2, 2, 128, 128), "bf16", "fwd", True, lengths=((1, 64, 64), (2, 1, 40)))
D64, ONE_QUERY, MORE_KEYS = (Shape(1, q, k, 2, 2, d, d) for q, k, d in ((64, 64, 64), (1, 64, 128), (64, 96, 128)))
MORE_QUERIES = Case(Shape(2, 48, 64, 2, 2, 128, 128), "bf16", "fwd", lengths=((1, 32, 64), (1, 48, 40)))


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
def test_a_block_mask() -> None:
    case = CASES["blocks-random:0.3-d128-fwd"]
    assert backend("cudnn").unsupported(case, BLACKWELL) is None
    check(backend("cudnn"), case)


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
    """The names of the modules imported, in order."""
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
    """CUDA graphs are captured on another stream."""
    prepared = backend("cudnn").prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=11))
    prepared.launch()
    assert ours._handle().stream == 11


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_a_ragged_batch_has_a_plan_that_can_be_built_again(direction: Any) -> None:
    lengths = ((1, 40, 40), (2, 9, 9))
    case = Case(Shape(3, 40, 40, 4, 2, 128, 64), "bf16", direction, True, lengths=lengths)
    prepared = backend("cudnn").prepare(case, inputs.make(case, "cpu", seed=0))
    assert prepared.plan is not None
    made: Any = prepared.plan()
    assert made["seqlen_k"].flatten().tolist() == [40, 9, 9]
    assert made["offsets_q_512"].flatten().tolist() == [0, 40 * 512, 49 * 512, 58 * 512]
    assert made["offsets_k_128"].flatten().tolist() == [0, 40 * 128, 49 * 128, 58 * 128]  # of v
    assert made["offsets_q_512"].dtype == torch.int64
    assert ("offsets_q_4" in made) == (direction != "fwd")  # of the log-sum-exp
    assert backend("cudnn").prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0)).plan is None


@pytest.mark.usefixtures("stand_in")
def test_a_graph_that_cudnn_refuses_is_a_skip() -> None:
    case = replace(PLAIN, shape=Shape(1, 64, 32, 2, 2, 128, 128), causal=True)
    assert backend("cudnn").unsupported(case, HOPPER) is not None  # the plan skips it before cuDNN is called
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
    """There are so many keys that with scale 1 the means of v would be below the smallest step of e4m3."""
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
    assert 0.01 < apart.norm() / wide["out"].float().norm() < 0.04  # one rounding to 3 bits


@pytest.mark.parametrize("name", ["cudnn-fp8", "transformer-engine-fp8"])
def test_kernels_in_fp8_say_so_in_their_names_on_hopper(name: str) -> None:
    """Errors cannot tell bf16 operands where results have 8 bits."""
    found = backend(name).signature(replace(PLAIN, dtype="fp8", direction="fwd_bwd"), HOPPER)
    for kernel in ("fprop", "bprop"):
        of_8, of_16 = (f"cudnn_generated_fort_native_sdpa_sm90_flash_{kernel}_wgmma_{t}_knob" for t in ("f8", "f16"))
        assert sum(bool(re.search(pattern, of_8)) for pattern in found.runs) == 1
        assert not any(re.search(pattern, of_16) for pattern in found.runs)
    backward = backend(name).signature(replace(PLAIN, dtype="fp8", direction="bwd"), HOPPER)
    assert backward.runs == found.runs[1:]
    unknown = backend(name).signature(replace(PLAIN, dtype="fp8"), BLACKWELL)
    assert "_f8" not in "".join(unknown.runs)


def test_cudnn_fp8_takes_fp8_only() -> None:
    assert backend("cudnn-fp8").unsupported(PLAIN, HOPPER) == "no bf16, only fp8"


@pytest.mark.parametrize(
    ("name", "case", "device", "reason"),
    [
        ("cudnn", replace(PLAIN, mask="dilated:2"), HOPPER, "hides whole tiles, and no pairs of a tile"),
        ("cudnn", replace(PLAIN, mask="random:0.1"), BLACKWELL, None),
        ("cudnn", replace(PLAIN, mask="random:0.1"), HOPPER, "no engine for a block_mask on Hopper"),
        ("cudnn", replace(PLAIN, mask="random:0.1", causal=True), BLACKWELL, "goes with no other mask"),
        ("cudnn", replace(PLAIN, mask="random:0.1", direction="bwd"), HOPPER, "forward only"),
        ("cudnn", replace(PLAIN, mask="random:0.1", shape=MORE_KEYS), HOPPER, "begins with the first query"),
        ("cudnn", PLAIN, TURING, "8.0 or newer"),
        ("cudnn", replace(PLAIN, shape=Shape(1, 64, 64, 4, 2, 192, 128)), HOPPER, None),
        ("cudnn", replace(PLAIN, shape=Shape(1, 64, 32, 2, 2, 64, 64), window_size=(8, 40)), HOPPER, "window needs"),
        ("cudnn", RAGGED, HOPPER, None),
        ("cudnn", RAGGED, AMPERE, None),
        ("cudnn", replace(RAGGED, direction="bwd"), AMPERE, "forward only on Ampere"),
        ("cudnn", replace(RAGGED, direction="bwd"), RTX, "forward only on Ampere"),
        ("cudnn", replace(RAGGED, direction="bwd"), BLACKWELL, None),
        ("cudnn", replace(RAGGED, direction="bwd", window_size=(8, 0)), HOPPER, None),
        ("cudnn", MORE_QUERIES, HOPPER, None),
        ("cudnn", replace(MORE_QUERIES, causal=True), HOPPER, "see no key"),
        ("cudnn", replace(MORE_QUERIES, window_size=(8, 40)), HOPPER, "window needs"),
        ("cudnn-fp8", replace(RAGGED, dtype="fp8"), HOPPER, "no ragged batches"),
        ("cudnn", replace(PLAIN, softcap=30.0), HOPPER, "no softcap"),
        ("cudnn", replace(PLAIN, dtype="fp32"), HOPPER, "no fp32"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8"), AMPERE, "9.0 or newer"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", direction="bwd", shape=D64), HOPPER, "fp8 needs headdim 128"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", direction="bwd"), HOPPER, None),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", direction="bwd"), BLACKWELL, "for Hopper only"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=ONE_QUERY), HOPPER, "no single query"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=ONE_QUERY), BLACKWELL, None),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=MORE_KEYS), HOPPER, None),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=MORE_KEYS, causal=True), HOPPER, "not bottom-right"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=MORE_KEYS, causal=True), BLACKWELL, None),
        ("transformer-engine-fp8", replace(PLAIN, dtype="fp8", shape=ONE_QUERY), HOPPER, "no single query"),
        ("transformer-engine-fp8", replace(PLAIN, dtype="fp8", direction="bwd"), HOPPER, None),
        ("transformer-engine-fp8", replace(PLAIN, dtype="fp8", direction="bwd"), BLACKWELL, "for Hopper only"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=Shape(1, 64, 64, 2, 2, 256, 256)), HOPPER, None),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=Shape(1, 64, 64, 2, 2, 256, 256)), BLACKWELL, "to 128"),
        ("cudnn-fp8", replace(PLAIN, dtype="fp8", shape=Shape(1, 64, 64, 2, 2, 72, 72)), HOPPER, "multiple of 16"),
    ],
)
def test_what_it_refuses(name: str, case: Case, device: Device, reason: str | None) -> None:
    said = backend(name).unsupported(case, device)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_signatures_match_the_names_of_kernels() -> None:
    forward = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_128x128x128_4x1x1_cga1x1x1_kernel0_0"
    signature = backend("cudnn").signature(replace(PLAIN, direction="fwd_bwd"), HOPPER)
    assert re.search(signature.runs[0], forward)
    assert re.search(signature.runs[1], forward.replace("fprop", "bprop"))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("case", [DECODE, BESIDE], ids=["decode", "beside"])
def test_pages_are_read_where_they_are(case: Case) -> None:
    """The lengths, and offsets where sequences have unlike numbers of queries, are what is built once a step."""
    prepared = backend("cudnn").prepare(case, inputs.make(case, "cpu", seed=0))
    assert not prepared.reads
    assert prepared.plan is not None
    before = prepared.launch()["out"].clone()
    planned: Any = prepared.plan()
    assert {name.partition("_")[0] for name in planned} == ({"seqlen", "offsets"} if case.is_ragged else {"seqlen"})
    assert torch.equal(before, prepared.launch()["out"])


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("case", [DECODE, BESIDE], ids=["decode", "beside"])
@pytest.mark.parametrize("wrong", ["pages", "keys", "scale"])
def test_wrong_wiring_of_pages_is_seen(monkeypatch: pytest.MonkeyPatch, case: Case, wrong: str) -> None:
    sdpa, paged = cudnn.pygraph.sdpa, cudnn.pygraph._paged

    def scaled(self: Any, *, attn_scale: float, **others: Any) -> Any:
        return sdpa(self, attn_scale=3 * attn_scale, **others)

    def changed(self: Any, tensors: dict[Any, Any], lengths: list[list[int]]) -> Any:
        if wrong == "pages":
            return paged(self, {s: t.flip(-2) if s in self.tables else t for s, t in tensors.items()}, lengths)
        return paged(self, tensors, [lengths[0], [n - 1 for n in lengths[1]]])

    monkeypatch.setattr(cudnn.pygraph, *(("sdpa", scaled) if wrong == "scale" else ("_paged", changed)))
    with pytest.raises(AssertionError):
        check(backend("cudnn"), case)


def test_what_it_refuses_of_caches() -> None:
    made = backend("cudnn")
    mla = Case(Shape(2, 1, 70, 16, 1, 576, 512), "bf16", "fwd", True, page_size=64, latent=True)
    assert made.unsupported(DECODE, HOPPER) is None
    assert made.unsupported(mla, HOPPER) == "no latent rows (MLA with absorbed weights)"
    assert made.unsupported(replace(DECODE, append=True), HOPPER) == "its call does not append to the cache"
    assert made.unsupported(replace(DECODE, cache_dtype="fp8"), HOPPER) == "no fp8 cache for bf16 queries"
    assert backend("cudnn-fp8").unsupported(replace(DECODE, dtype="fp8"), HOPPER) == "no cache of pages"
