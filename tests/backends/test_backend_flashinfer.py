"""`flashinfer*`, through a stand-in with its interface."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attnbench.backends.flashinfer import dense as backends
from attnbench.backends.flashinfer import paged as flashinfer_paged
from attnbench.backends.flashinfer import sparse as flashinfer_sparse
from attnbench.backends.flashinfer.dense import offsets
from attnbench.backends.shared import masks
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.judge import inputs
from standins import flashinfer, install
from standins.contract import AMPERE, BLACKWELL, HOPPER, backend, cases, check

Pages = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Change = Callable[[Pages], Pages]
NAMES = ("flashinfer", "flashinfer-fa2", "flashinfer-fa3", "flashinfer-cudnn", "flashinfer-trtllm")
PLAIN = Case(Shape(1, 64, 64, 2, 2, 128, 128), "bf16", "fwd")

SERVED = Case(Shape(4, 64, 64, 2, 2, 128, 128), "bf16", "fwd", True, lengths=((1, 64, 64), (3, 1, 40)))

PAGED = Case(Shape(2, 1, 70, 4, 2, 128, 128), "bf16", "fwd", True, page_size=16)
MLA = Case(Shape(2, 1, 70, 16, 1, 576, 512), "bf16", "fwd", True, page_size=16, latent=True, scale=0.07)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flashinfer.version_0_6_13(), flashinfer.VERSIONS)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for module in (backends, flashinfer_paged):
        monkeypatch.setattr(module, "WORKSPACE", 2**16)  # stand-ins need none, and filling 128 MiB takes most of a test


@pytest.mark.usefixtures("stand_in")
@cases(NAMES[:3], *NAMES[3:], "flashinfer-decode")
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
        ("flashinfer", replace(PLAIN, mask="dilated:2"), HOPPER, None),
        ("flashinfer", replace(PLAIN, mask="dilated:2", alibi=True), HOPPER, "block-sparse wrapper has no ALiBi"),
        ("flashinfer", replace(PLAIN, mask="dilated:2", sink=True), HOPPER, "block-sparse wrapper has no attention"),
        ("flashinfer", replace(PLAIN, mask="mine.py:documents@0"), HOPPER, "no mask of one's own"),
        ("flashinfer-fa3", replace(PLAIN, mask="dilated:2"), HOPPER, "no mask of pairs"),
        ("flashinfer-trtllm", replace(PLAIN, mask="dilated:2"), HOPPER, "no masks by name"),
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
        ("flashinfer", PAGED, HOPPER, None),
        ("flashinfer-fa2", replace(PAGED, cache_dtype="fp8"), AMPERE, None),
        ("flashinfer-fa3", replace(PAGED, cache_dtype="fp8"), HOPPER, "no fp8 cache for bf16 queries"),
        ("flashinfer-fa2", replace(PAGED, shape=Shape(1, 1, 64, 2, 2, 192, 128)), HOPPER, "one headdim"),
        ("flashinfer-cudnn", PAGED, HOPPER, "not wired up"),
        ("flashinfer-trtllm", PAGED, BLACKWELL, "not wired up"),
        ("flashinfer-decode", PLAIN, HOPPER, "over a cache of pages only"),
        ("flashinfer-decode", replace(PAGED, shape=Shape(1, 2, 64, 2, 2, 64, 64)), HOPPER, "one query a sequence"),
        ("flashinfer-decode", replace(PAGED, shape=Shape(1, 1, 64, 14, 2, 64, 64)), HOPPER, "no 7 query heads"),
        ("flashinfer-decode", MLA, HOPPER, "no latent rows"),
        ("flashinfer-fa3", MLA, HOPPER, None),
        ("flashinfer", replace(MLA, page_size=0), HOPPER, "only in a cache of pages"),
        ("flashinfer", replace(MLA, cache_dtype="fp8"), HOPPER, "no fp8 of latent rows"),
        ("flashinfer", replace(MLA, softcap=2.0), HOPPER, "no softcap of latent rows"),
        ("flashinfer", replace(MLA, shape=Shape(1, 1, 64, 16, 1, 320, 256)), HOPPER, "latent rows of 576"),
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


CACHED = {
    "decode": PAGED,
    "prefill": replace(PAGED, shape=Shape(2, 5, 70, 4, 2, 128, 128)),
    "page of one": replace(PAGED, page_size=1),
    "fp8": replace(PAGED, cache_dtype="fp8"),
    "append": replace(PAGED, append=True),
    "mla": MLA,
}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("case", CACHED.values(), ids=CACHED)
def test_pages_are_planned_again_and_the_caches_are_read_where_they_are(case: Case) -> None:
    given = inputs.make(case, "cpu", seed=0)
    prepared = backend("flashinfer").prepare(case, given)
    before = prepared.launch().clone()
    assert prepared.plan is not None
    assert not prepared.reads
    prepared.plan()
    assert torch.equal(before, prepared.launch())
    check(backend("flashinfer"), case)


def _reversed_pages(pages: Pages) -> Pages:
    return pages[0], pages[1].flip(0), pages[2]


def _full_last_page(pages: Pages) -> Pages:
    return pages[0], pages[1], torch.full_like(pages[2], 16)


def _key_too_few(pages: Pages) -> Pages:
    return pages[0], pages[1], pages[2] - 1


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", ["decode", "prefill", "fp8"])
@pytest.mark.parametrize("change", [_reversed_pages, _full_last_page, _key_too_few])
def test_wrong_pages_are_seen(monkeypatch: pytest.MonkeyPatch, change: Change, name: str) -> None:
    right = flashinfer_paged._pages
    monkeypatch.setattr(flashinfer_paged, "_pages", lambda case, given: change(right(case, given)))
    with pytest.raises(AssertionError):
        check(backend("flashinfer"), CACHED[name])


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("wrapper", "case"),
    [("BatchMLAPagedAttentionWrapper", MLA), ("BatchDecodeWithPagedKVCacheWrapper", PAGED)],
)
def test_a_wrong_scale_is_seen(monkeypatch: pytest.MonkeyPatch, wrapper: str, case: Case) -> None:
    made = getattr(flashinfer, wrapper)
    right = made.plan
    monkeypatch.setattr(made, "plan", lambda self, *a, sm_scale, **k: right(self, *a, sm_scale=4 * sm_scale, **k))
    with pytest.raises(AssertionError):
        check(backend("flashinfer"), case)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("factor", ["k_scale", "v_scale"])
def test_a_factor_of_an_fp8_cache_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch, factor: str) -> None:
    right = flashinfer.BatchDecodeWithPagedKVCacheWrapper.run
    monkeypatch.setattr(
        flashinfer.BatchDecodeWithPagedKVCacheWrapper, "run", lambda *a, **k: right(*a, **(k | {factor: None}))
    )
    with pytest.raises(AssertionError):
        check(backend("flashinfer"), CACHED["fp8"])


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", ["flashinfer", "flashinfer-fa3", "flashinfer-decode"])
def test_the_name_decides_the_cores(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked = []
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper
    monkeypatch.setattr(
        __import__("flashinfer"),
        "BatchDecodeWithPagedKVCacheWrapper",
        lambda *a, **k: (asked.append((k["use_tensor_cores"], k["backend"])), wrapper(*a, **k))[1],
    )
    check(backend(name), PAGED)
    assert {*asked} == {(name != "flashinfer-decode", "fa3" if name == "flashinfer-fa3" else "auto")}


@pytest.mark.parametrize(
    ("kernel", "of"),
    [
        ("void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits<x>>", "fa2"),
        ("void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<flashinfer::x>", "fa3"),
    ],
)
def test_signatures_of_latent_rows(kernel: str, of: str) -> None:
    for name in ("fa2", "fa3"):
        (pattern,) = backend(f"flashinfer-{name}").signature(MLA, HOPPER).runs
        assert bool(re.search(pattern, kernel)) == (name == of)
    (either,) = backend("flashinfer").signature(MLA, HOPPER).runs
    assert re.search(either, kernel)


@pytest.mark.parametrize(
    ("kernel", "of"),
    [
        ("void flashinfer::SinglePrefillWithKVCacheKernel<flashinfer::KernelTraits<x>>", "flashinfer-fa2"),
        ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<x>>", "flashinfer-fa2"),
        ("void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<x>>", "flashinfer-fa3"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<x>>", "flashinfer-fa2"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode>", "flashinfer-decode"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3", "flashinfer-cudnn"),
        ("fmha_v2_flash_attention_bf16_64_128_S_q_k_v_128_causal_tma_ws_sm90_kernel", "flashinfer-trtllm"),
        ("fmhaSm100aKernel_QkvBfloat16OBfloat16H128SeparateQkvCausalVarSeqQ128Kv128", "flashinfer-trtllm"),
    ],
)
def test_signatures_match_the_names_of_kernels(kernel: str, of: str) -> None:
    for name in (*NAMES[1:], "flashinfer-decode"):
        (pattern,) = backend(name).signature(PLAIN, HOPPER).runs
        assert bool(re.search(pattern, kernel)) == (name == of)


BLOCKS = Shape(2, 256, 384, 4, 2, 64, 64)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("case", "size", "masked"),
    [
        (Case(BLOCKS, "fp16", "fwd", mask="random:0.4"), (128, 128), False),
        (Case(BLOCKS, "fp16", "fwd", True, mask="random:0.4"), (128, 128), True),
        (Case(replace(BLOCKS, seqlen_q=200), "fp16", "fwd", mask="random:0.4"), (8, 128), False),
        (Case(replace(BLOCKS, batch=1, seqlen_q=200), "fp16", "fwd", mask="dilated:2"), (128, 128), True),
        (Case(replace(BLOCKS, batch=1, seqlen_q=200, seqlen_k=392), "fp16", "fwd", mask="dilated:2"), (128, 8), True),
        (Case(replace(BLOCKS, seqlen_q=1), "fp16", "fwd", mask="random:0.4"), (1, 128), True),
        (
            Case(replace(BLOCKS, batch=1, seqlen_q=384), "bf16", "fwd", True, softcap=2.0, mask="random:0.4"),
            (128,) * 2,
            True,
        ),
    ],
)
@pytest.mark.parametrize("name", ["flashinfer", "flashinfer-fa2"])
def test_masks_by_name(name: str, case: Case, size: tuple[int, int], masked: bool) -> None:
    """The mask of pairs is given only where a block is seen in part; rows beyond the last query are in no block."""
    assert flashinfer_sparse.block_size(case) == size
    assert (flashinfer_sparse.block_matrix(case, torch.device("cpu"))[2] is not None) == masked
    check(backend(name), case)
    prepared = backend(name).prepare(case, inputs.make(case, "cpu", seed=0))
    blocks, seen = masks.block_mask(case, torch.device("cpu")), masks.visibility_mask(case, torch.device("cpu"))
    assert blocks is not None
    assert seen is not None
    assert prepared.pairs is not None
    if size == (128, 128):
        assert prepared.pairs() == masks.pairs_of_blocks(blocks)
    elif not masked:
        assert prepared.pairs() == int(seen.sum())
    assert prepared.plan is not None
    prepared.plan()


def test_a_mask_beyond_int32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(BLOCKS, "fp16", "fwd", mask="dilated:2")
    limits = torch.iinfo(torch.int32)
    pairs = 2 * 256 * 384
    monkeypatch.setattr(torch, "iinfo", lambda _: type("Info", (), {"max": pairs - 1}))
    with pytest.raises(Unsupported, match="int32 offsets of a mask"):
        flashinfer_sparse.block_matrix(case, torch.device("cpu"))
    monkeypatch.setattr(torch, "iinfo", lambda _: limits)
    assert len(flashinfer_sparse.block_matrix(case, torch.device("cpu"))[1]) == 2 * 6
