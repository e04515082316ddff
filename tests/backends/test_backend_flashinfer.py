"""`flashinfer*`, through a stand-in with its interface."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from attnbench.backends.flashinfer import offsets
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.worker import inputs
from standins import flashinfer, install
from standins.contract import AMPERE, BLACKWELL, HOPPER, backend, cases, check

NAMES = ("flashinfer", "flashinfer-fa2", "flashinfer-fa3", "flashinfer-cudnn", "flashinfer-trtllm")
PLAIN = Case(Shape(1, 64, 64, 2, 2, 128, 128), "bf16", "fwd")

SERVED = Case(Shape(4, 64, 64, 2, 2, 128, 128), "bf16", "fwd", True, lengths=((1, 64, 64), (3, 1, 40)))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flashinfer.version_0_6_13(), flashinfer.VERSIONS)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.mark.usefixtures("stand_in")
@cases(*NAMES)
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@cases("flashinfer-trtllm", device=BLACKWELL)
def test_contract_of_trtllm_gen(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", NAMES)
def test_the_name_decides_the_backend_of_flashinfer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper
    single = flashinfer.single_prefill_with_kv_cache
    top = __import__("flashinfer")
    monkeypatch.setattr(
        top, "single_prefill_with_kv_cache", lambda *a, **k: (asked.append(k["backend"]), single(*a, **k))[1]
    )
    monkeypatch.setattr(
        top, "BatchPrefillWithRaggedKVCacheWrapper", lambda *a, **k: (asked.append(k["backend"]), wrapper(*a, **k))[1]
    )
    for batch in (1, 2):
        check(backend(name), replace(PLAIN, shape=replace(PLAIN.shape, batch=batch)))
    wanted = {"flashinfer": {"auto"}, "flashinfer-trtllm": set()}.get(name, {name.removeprefix("flashinfer-")})
    assert {*asked} == wanted


@pytest.mark.parametrize(
    ("name", "case", "device", "reason"),
    [
        ("flashinfer", replace(PLAIN, direction="bwd"), HOPPER, "forward only"),
        ("flashinfer", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 96, 96)), HOPPER, "only 64, 128, 256, 192-128"),
        ("flashinfer", replace(PLAIN, window_size=(8, 8)), HOPPER, "no right side"),
        ("flashinfer", replace(PLAIN, window_size=(8, None), softcap=30.0), HOPPER, None),
        ("flashinfer", replace(PLAIN, dropout_p=0.1), HOPPER, "no dropout"),
        ("flashinfer-fa2", PLAIN, AMPERE, None),
        ("flashinfer-fa3", PLAIN, AMPERE, "9.0 or newer"),
        ("flashinfer-fa3", PLAIN, BLACKWELL, "below 9.1"),
        ("flashinfer-cudnn", replace(PLAIN, softcap=30.0), HOPPER, "no softcap"),
        ("flashinfer-trtllm", replace(PLAIN, shape=Shape(1, 32, 64, 2, 2, 128, 128), causal=True), HOPPER, "unequal"),
        ("flashinfer-trtllm", replace(PLAIN, shape=Shape(1, 1, 64, 2, 2, 128, 128)), HOPPER, "unequal"),
        ("flashinfer-trtllm", replace(PLAIN, shape=Shape(1, 32, 64, 2, 2, 128, 128), causal=True), BLACKWELL, None),
        ("flashinfer-trtllm", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 192, 128)), HOPPER, "of the headdim"),
        ("flashinfer-trtllm", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 64, 64)), BLACKWELL, "headdim 128"),
        ("flashinfer-trtllm", PLAIN, AMPERE, "9.0 or newer"),
        ("flashinfer-trtllm", SERVED, HOPPER, "unequal"),
        ("flashinfer-trtllm", SERVED, BLACKWELL, None),
        ("flashinfer-cudnn", SERVED, HOPPER, None),
    ],
)
def test_what_it_refuses(name: str, case: Case, device: Device, reason: str | None) -> None:
    said = backend(name).unsupported(case, device)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_offsets_beyond_int32_are_refused() -> None:
    assert offsets(torch.tensor([0, 1, 4], dtype=torch.int32), 5).tolist() == [0, 5, 20]
    with pytest.raises(Unsupported, match="int32"):
        offsets(torch.tensor([0, 2], dtype=torch.int32), 2**30)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", NAMES)
def test_a_ragged_batch_has_a_plan_that_can_be_built_again(name: str) -> None:
    """A dense batch has none: its offsets are the same at each step."""
    lengths = ((1, 40, 40), (2, 9, 9))
    case = replace(PLAIN, shape=Shape(3, 40, 40, 4, 2, 128, 128), causal=True, lengths=lengths)
    prepared = backend(name).prepare(case, inputs.make(case, "cpu", seed=0))
    before = prepared.launch()
    assert prepared.plan is not None
    prepared.plan()
    assert torch.equal(prepared.launch(), before)
    dense = replace(PLAIN, shape=replace(PLAIN.shape, batch=2))
    assert backend(name).prepare(dense, inputs.make(dense, "cpu", seed=0)).plan is None


@pytest.mark.parametrize(
    ("kernel", "of"),
    [
        ("void flashinfer::SinglePrefillWithKVCacheKernel<flashinfer::KernelTraits<x>>", "flashinfer-fa2"),
        ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<x>>", "flashinfer-fa2"),
        ("void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<x>>", "flashinfer-fa3"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3", "flashinfer-cudnn"),
        ("fmha_v2_flash_attention_bf16_64_128_S_q_k_v_128_causal_tma_ws_sm90_kernel", "flashinfer-trtllm"),
        ("fmhaSm100aKernel_QkvBfloat16OBfloat16H128SeparateQkvCausalVarSeqQ128Kv128", "flashinfer-trtllm"),
    ],
)
def test_signatures_match_the_names_of_kernels(kernel: str, of: str) -> None:
    for name in NAMES[1:]:
        (pattern,) = backend(name).signature(PLAIN, HOPPER).runs
        assert bool(re.search(pattern, kernel)) == (name == of)
