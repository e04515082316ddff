"""Refusals of backends of libraries beyond the matrix of docs/backends.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench.backends import BACKENDS, OF_KIND, OTHER_KINDS
from attnbench.core.backend import refusal
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.machine import Device
from standins import flash_attn, install
from standins.contract import AMPERE, BLACKWELL, CPU, HOPPER, RTX, backend

HEADS = {"many": (64, 1), "grouped": (4, 2), "one key head": (16, 1), "seven": (14, 2)}


def case(q: int = 64, k: int = 64, d: int = 128, d_v: int = 0, heads: str = "", lengths: Any = (), **of: Any) -> Case:
    """Return a forward in bf16 of one sequence, or of `lengths`, with two heads."""
    sizes = sizes_of(lengths) if lengths else (1, q, k)
    shape = Shape(*sizes, *HEADS.get(heads, (2, 2)), d, d_v or d)
    return Case(shape, **{"dtype": "bf16", "direction": "fwd", **of}, lengths=lengths)  # type: ignore[arg-type]


def paged(page_size: int = 64, **of: Any) -> Case:
    return case(**{"q": 1, "k": 300, "causal": True, "page_size": page_size, **of})


def latent(page_size: int = 64, d: int = 576, d_v: int = 512, **of: Any) -> Case:
    return paged(page_size, d=d, d_v=d_v, latent=True, **{"heads": "one key head", **of})


def chosen(page_size: int = 64, number: int = 128, **of: Any) -> Case:
    return latent(page_size, **{"heads": "many", "mask": f"topk:{number}", **of})


RAGGED = ((1, 32, 32), (1, 64, 64))
CHUNKS = ((1, 32, 48), (1, 64, 64))
MORE_QUERIES = ((1, 64, 48), (1, 64, 64))
SERVED = ((1, 64, 64), (3, 1, 40))
BESIDE = ((1, 40, 40), (2, 1, 600), (1, 16, 300))
ALIKE = ((2, 1, 300), (1, 1, 700))
REFUSALS = [
    ("fa1", case(direction="bwd"), AMPERE, None),
    ("fa1", case(1, causal=True), AMPERE, None),
    ("fa2", case(softcap=30.0, dropout_p=0.1), HOPPER, "softcap and dropout exclude each other"),
    ("fa2", paged(256, append=True, lengths=ALIKE), HOPPER, None),
    ("fa2", paged(256, append=True, lengths=BESIDE), HOPPER, "it appends the same number of keys to each sequence"),
    ("vllm-fa3", case(direction="fwd_bwd"), HOPPER, "forward only"),
    ("vllm-fa3", paged(append=True), HOPPER, "its call does not append to the cache"),
    ("vllm-fa3", case(dtype="fp8"), HOPPER, "no fp8 outside a cache of pages"),
    ("vllm-fa3", paged(dtype="fp8"), HOPPER, None),
    ("fa3", case(d=192, d_v=128), HOPPER, None),
    ("fa3", case(d=128, d_v=64), HOPPER, "they may differ where headdim <= 64, or as 129-192 with 97-128"),
    ("fa3", case(d=64, d_v=512), HOPPER, None),
    ("fa3", paged(dtype="fp8"), HOPPER, None),
    ("fa3", paged(dtype="fp8", append=True), HOPPER, "fp8 of appended keys is not wired up"),
    ("fa3", latent(), HOPPER, None),
    ("fa3", latent(0), HOPPER, "latent rows only in a cache of pages"),
    ("fa3", latent(dtype="fp8"), HOPPER, "no fp8 of latent rows"),
    ("fa3", latent(d=640), HOPPER, "latent rows of 128 + 512 columns"),
    ("fa3", latent(d=192, d_v=128), HOPPER, "latent rows of 64 + 128 columns"),
    ("fa4", case(d=160), HOPPER, None),
    ("fa4", case(d=160), BLACKWELL, "headdim 160 with headdim_v 160: on Blackwell up to 128, 192-128 or 256"),
    ("fa4", case(d=192, d_v=128), BLACKWELL, None),
    ("fa4", case(d=256), RTX, "its tiles exceed the shared memory"),
    ("fa4", case(alibi=True, direction="bwd"), HOPPER, None),
    ("fa4", case(alibi=True, heads="grouped"), HOPPER, None),
    ("fa4", case(alibi=True, heads="grouped", direction="bwd"), HOPPER, "no backward with ALiBi for grouped heads"),
    ("fa4", case(d=192, d_v=128, heads="grouped", direction="bwd"), HOPPER, "its backward of grouped heads needs"),
    ("fa4", case(mask="dilated:2"), BLACKWELL, None),
    ("fa4", case(mask="dilated:2"), RTX, "no block sparsity on compute capability 12"),
    ("fa4", case(mask="dilated:2", d=192, d_v=128), BLACKWELL, "with a mask by name: on Blackwell up to 128"),
    ("fa4", case(mask="mine.py:documents@0"), HOPPER, "a function in CuTe DSL, not of tensors"),
    ("fa4", paged(16), HOPPER, None),
    ("fa4", paged(16, d=192, d_v=128), BLACKWELL, None),
    ("fa4", paged(16, d=192, d_v=128), HOPPER, "headdim 192 and headdim_v 128: it tests 64, 128 only"),
    ("fa4", paged(16), RTX, "no cache of pages on compute capability 12"),
    ("flex-flash", case(d=256), HOPPER, None),
    ("flex-flash", case(d=256, causal=True), HOPPER, "headdim 256 with a mask"),
    ("flex-flash", case(d=64, d_v=128, heads="grouped", direction="bwd"), HOPPER, "its backward of grouped heads"),
    ("flex-flash", case(mask="mine.py:documents@0"), HOPPER, "that reads tensors needs seqlen_q to be"),
    ("flex-flash", case(mask="random:0.1"), HOPPER, "reads tensors"),
    ("flex-flash", case(128, 200, mask="random:0.1"), HOPPER, None),
    ("flex-flash", case(mask="strided:16"), HOPPER, None),
    ("flex", paged(16), HOPPER, None),
    ("flex", paged(192), HOPPER, None),
    ("flex", paged(48), HOPPER, "pages of 48 tokens: 16, 32 or multiples of 64, and of 128 for 128 queries and more"),
    ("flex", paged(16, q=200), HOPPER, "pages of 16 tokens: 16, 32"),
    ("flex", paged(16, heads="seven"), HOPPER, "pages of 16 tokens: 16, 32"),
    ("flex", paged(256, q=200), HOPPER, None),
    ("sdpa-fa3", case(lengths=RAGGED), HOPPER, None),
    ("sdpa-flash", case(lengths=RAGGED, causal=True), HOPPER, None),
    ("sdpa-flash", case(lengths=CHUNKS), HOPPER, None),
    ("sdpa-flash", case(lengths=ALIKE, causal=True), HOPPER, None),
    ("sdpa-flash", case(lengths=RAGGED), CPU, "no ragged batches"),
    ("sdpa-math", case(lengths=RAGGED), CPU, None),
    ("hf-flash_attention_2", case(window_size=(8, None), causal=True), HOPPER, None),
    ("hf-flash_attention_2", case(d=64, d_v=128), HOPPER, "to which transformers pads v"),
    ("flashinfer", case(window_size=(8, None)), HOPPER, None),
    ("flashinfer", case(mask="dilated:2", alibi=True), HOPPER, "its block-sparse wrapper has no ALiBi"),
    ("flashinfer", case(mask="dilated:2", sink=True), HOPPER, "its block-sparse wrapper has no attention sink"),
    ("flashinfer-trtllm", case(32, causal=True), BLACKWELL, None),
    ("flashinfer-trtllm", case(lengths=SERVED), HOPPER, "wrong results for unequal lengths"),
    ("flashinfer-trtllm", case(d=64), BLACKWELL, "trtllm-gen takes headdim 128, 192-128 and 256"),
    ("flashinfer-trtllm", paged(), BLACKWELL, "its calls for caches of pages are not wired up"),
    ("flashinfer-fa2", paged(d=192, d_v=128), HOPPER, "k and v in a cache of pages must have one headdim"),
    ("flashinfer-decode", paged(heads="seven"), HOPPER, "no 7 query heads on a key head"),
    ("flashinfer-cascade", paged(d=128, shared_prefix=128), HOPPER, None),
    ("flashinfer-cascade", paged(d=128), HOPPER, "a prefix that the sequences share (--shared-prefix)"),
    ("flashinfer-cascade", paged(d=128, shared_prefix=128, window_size=(64, 0)), HOPPER, "no sliding window"),
    ("flashinfer-cascade", paged(d=128, shared_prefix=128, cache_dtype="fp8"), HOPPER, "no fp8 cache"),
    ("flashinfer-cascade", latent(shared_prefix=128), HOPPER, "no latent rows"),
    ("flashinfer-fa3", paged(d=128, shared_prefix=128, window_size=(64, 0)), HOPPER, None),
    ("flashinfer-fa3", latent(), HOPPER, None),
    ("flashinfer", latent(0), HOPPER, "latent rows only in a cache of pages"),
    ("flashinfer", latent(cache_dtype="fp8"), HOPPER, "no fp8 of latent rows"),
    ("flashinfer", latent(softcap=2.0), HOPPER, "no window and no softcap of latent rows"),
    ("flashinfer", latent(d=320, d_v=256), HOPPER, "latent rows of 576 columns with 512 of v only"),
    ("flashmla", latent(), HOPPER, None),
    ("flashmla", latent(), BLACKWELL, "needs a compute capability below 9.1"),
    ("flashmla", latent(lengths=ALIKE), HOPPER, None),
    ("flashmla", latent(128), HOPPER, "in a cache of pages of 64 tokens"),
    ("flashmla", latent(lengths=BESIDE), HOPPER, "with equal numbers of queries"),
    ("flashmla", latent(cache_dtype="fp8"), HOPPER, "an fp8 cache with chosen keys only"),
    ("flashmla", latent(d=320, d_v=256), HOPPER, "latent rows of 576 columns with 512 of v only"),
    ("flashmla", paged(), HOPPER, "latent rows of 576 columns with 512 of v only"),
    ("flashmla", chosen(), HOPPER, None),
    ("flashmla", chosen(0), HOPPER, None),
    ("flashmla", chosen(number=64), HOPPER, "64 chosen keys are not a multiple of 128"),
    ("flashmla", chosen(number=64, cache_dtype="fp8"), HOPPER, None),
    ("flashmla", chosen(dtype="fp16"), HOPPER, "chosen keys in bf16 only"),
    ("flashmla", chosen(heads="one key head"), HOPPER, "chosen keys with a multiple of 64 query heads only"),
    ("flashinfer-fa2", chosen(), HOPPER, "no keys chosen for each query"),
    ("triton", chosen(), HOPPER, "no keys chosen for each query"),
    ("cudnn", case(64, 32, window_size=(8, 40)), HOPPER, "its sliding window needs seqlen_q <= seqlen_k"),
    ("cudnn", case(lengths=MORE_QUERIES), HOPPER, None),
    ("cudnn", case(lengths=MORE_QUERIES, window_size=(8, 40)), HOPPER, "its sliding window needs"),
    ("cudnn", case(lengths=RAGGED), AMPERE, None),
    ("cudnn", case(lengths=RAGGED, direction="bwd"), AMPERE, "ragged batches are forward only on Ampere"),
    ("cudnn", case(lengths=RAGGED, direction="bwd"), RTX, "ragged batches are forward only on Ampere"),
    ("cudnn", case(lengths=RAGGED, direction="bwd"), BLACKWELL, None),
    ("cudnn-fp8", case(dtype="fp8", direction="bwd"), HOPPER, None),
    ("cudnn-fp8", case(dtype="fp8", direction="bwd"), BLACKWELL, "backward in fp8 is wired up for Hopper only"),
    ("cudnn-fp8", case(1, dtype="fp8"), BLACKWELL, None),
    ("cudnn-fp8", case(64, 96, dtype="fp8", causal=True), BLACKWELL, None),
    ("cudnn-fp8", case(dtype="fp8", d=256), HOPPER, None),
    ("cudnn-fp8", case(dtype="fp8", d=256), BLACKWELL, "on Blackwell up to 128, or 192-128"),
    ("transformer-engine-fp8", case(dtype="fp8", direction="bwd"), HOPPER, None),
    ("transformer-engine-fp8", case(dtype="fp8", direction="bwd"), BLACKWELL, "wired up for Hopper only"),
    ("transformer-engine", case(window_size=(8, 8)), HOPPER, None),
    ("transformer-engine", case(window_size=(8, None)), HOPPER, "its window must have both sides, or be causal"),
    ("transformer-engine", case(window_size=(None, 8)), HOPPER, "its window must have both sides, or be causal"),
    ("transformer-engine", case(window_size=(8, None), causal=True), HOPPER, None),
    ("xformers-cutlass", case(causal=True, window_size=(8, 0)), HOPPER, None),
    ("xformers-fa2", case(window_size=(8, 8)), HOPPER, None),
    ("xformers-fa2", case(lengths=CHUNKS, window_size=(8, 8)), HOPPER, "windows of ragged batches must be causal"),
    ("xformers-fa2", case(lengths=CHUNKS, causal=True, window_size=(8, 0)), HOPPER, None),
    ("xformers-fa2", case(lengths=MORE_QUERIES, causal=True), HOPPER, "seqlen_q <= seqlen_k in each sequence"),
    ("xformers-splitk", case(lengths=CHUNKS), HOPPER, None),
    ("xformers-splitk", case(1, causal=True), HOPPER, None),
    ("xformers-splitk", paged(), HOPPER, None),
    ("xformers-splitk", paged(q=40), HOPPER, "causal over pages with at most 16 queries in each sequence"),
    ("nsa", case(heads="grouped", causal=True), HOPPER, "power of two"),
    ("nsa", case(heads="one key head"), HOPPER, "causal"),
    ("nsa", case(64, 128, heads="one key head", causal=True), HOPPER, "as many queries"),
    ("sage", case(100, 100), HOPPER, "without a causal mask the keys must be whole blocks of 64"),
    ("sage", case(100, 100, causal=True), HOPPER, None),
    ("sage2", case(100, 300), HOPPER, None),
    ("sage2", case(100, 300, causal=True), HOPPER, "not bottom-right aligned"),
    ("sage2", case(1, 300, causal=True), HOPPER, None),
    ("sage2", case(d=256), HOPPER, "outside 8 to 128"),
    ("sage2", case(direction="bwd"), HOPPER, "forward only"),
    ("sage2", case(), BLACKWELL, "below 10.0"),
    ("sparge", case(256, 256), HOPPER, None),
    ("sparge", case(256, 256, causal=True), HOPPER, "attend to later keys"),
    ("sparge", case(64, 256), HOPPER, "whole blocks"),
    ("sparge", case(256, 300), HOPPER, "whole blocks"),
    ("sparge", case(256, 256, heads="grouped"), HOPPER, "no grouped heads"),
]


@pytest.mark.parametrize(("name", "case", "device", "reason"), REFUSALS)
def test_what_a_backend_refuses(name: str, case: Case, device: Device, reason: str | None) -> None:
    said = backend(name).unsupported(case, device)
    assert (said is None) if reason is None else (said is not None and reason in said)


DIFFERENT = {"d": 64, "d_v": 128}


@pytest.mark.parametrize(
    ("left_out", "case", "feature"),
    [
        ("FP16", case(dtype="fp16"), "fp16"),
        ("FP16", case(), ""),
        ("FP8", case(dtype="fp8"), "fp8"),
        ("BACKWARD", case(direction="fwd_bwd"), "the backward, which attnbench env create fa3 --build has"),
        ("BACKWARD", case(), ""),
        ("SOFTCAP", case(softcap=30.0), "softcap"),
        ("LOCAL", case(window_size=(8, 8)), "sliding windows"),
        ("LOCAL", case(window_size=(63, None), causal=True), ""),  # the library sees a causal mask
        ("LOCAL", case(window_size=(None, 63)), ""),
        ("LOCAL", case(window_size=(None, 0)), ""),
        ("LOCAL", paged(k=64, window_size=(63, 0)), ""),
        ("LOCAL", paged(k=64, window_size=(62, 0)), "sliding windows"),
        ("HDIM256", case(d=256), "headdim 256 and above"),
        ("HDIM96", case(d=96), ""),  # it runs in the kernel of 128
        ("HDIM192 HDIMDIFF192", case(d=192, d_v=128, direction="fwd_bwd"), ""),  # it runs in the kernel of 256
        ("HDIM192 HDIM256", case(d=192, d_v=128), "headdim 192 and above"),
        ("HDIMDIFF192", case(d=192, d_v=128), ""),
        ("HDIMDIFF64", case(**DIFFERENT), "headdim 64 with headdim_v 128, and computes it wrongly"),
        ("HDIMDIFF64", case(d=64, d_v=32), ""),
        ("HDIM64", case(d=64, d_v=96), ""),  # the kernel of 96 runs for both
        ("HDIM64", case(**DIFFERENT), "headdim 64 with headdim_v 128, and computes it wrongly"),
        ("HDIM64 HDIM96 HDIM128 HDIM192 HDIM256", case(d=64), "headdim 64 and above"),
        ("SM8x VARLEN PAGEDKV APPENDKV SPLIT PACKGQA", case(direction="bwd", window_size=(8, 8), softcap=30.0), ""),
        ("VARLEN", case(lengths=CHUNKS), "ragged batches"),
        ("PAGEDKV APPENDKV SPLIT", case(lengths=CHUNKS), ""),
        ("VARLEN", paged(), "caches of pages"),
        ("PAGEDKV", paged(), "caches of pages"),
        ("APPENDKV", paged(append=True), "appending to a cache"),
        ("APPENDKV SPLIT HDIMDIFF64", paged(), ""),
        ("HDIMDIFF64", latent(), "headdim 64 with headdim_v 512, and computes it wrongly"),
        ("HDIM96 HDIM256", latent(), ""),
        ("", case(dtype="fp16", **DIFFERENT), ""),
    ],
)
def test_what_a_build_of_fa3_leaves_out(
    monkeypatch: pytest.MonkeyPatch, left_out: str, case: Case, feature: str
) -> None:
    """The reason names the first switch of the build that excludes the case."""
    prefix = {"HDIMDIFF64": "FLASH_ATTENTION", "HDIMDIFF192": "FLASH_ATTENTION"}  # the spelling of setup.py
    flags = [f"{prefix.get(switch, 'FLASHATTENTION')}_DISABLE_{switch}" for switch in left_out.split()]
    made = backend("fa3")
    assert made.unsupported(case, HOPPER) is None, "what is installed is not asked before the library is probed"
    install(monkeypatch, flash_attn.version_3(*flags), flash_attn.VERSIONS_3)
    assert made.probe().usable
    switch = left_out.partition(" ")[0]
    wanted = f"this build leaves out {feature} (FLASH_ATTENTION_DISABLE_{switch})" if feature else None
    assert made.unsupported(case, HOPPER) == wanted


def test_each_backend_computes_one_kind_of_attention() -> None:
    """A backend of softmax refuses a delta rule and an indexer, whatever its limits, and the other way round."""
    softmax, rule = case(causal=True), case(causal=True, kind="gdn")
    indexer = case(causal=True, kind="indexer", mask="topk:16", heads="many")
    for name in {*BACKENDS} - {"fake", *OTHER_KINDS}:
        assert refusal(backend(name), rule, HOPPER) == "it computes softmax, not gdn"
        assert refusal(backend(name), indexer, HOPPER) == "it computes softmax, not indexer"
    for name in OF_KIND["gdn"]:
        assert f"{refusal(backend(name), softmax, HOPPER)}".startswith("it computes gdn")
        assert refusal(backend(name), rule, HOPPER) is None
    for name in OF_KIND["indexer"]:
        assert refusal(backend(name), softmax, HOPPER) == "it computes indexer, not softmax"
        assert refusal(backend(name), replace(indexer, dtype="fp8"), HOPPER) is None
    several = replace(case(causal=True, kind="indexer", mask="topk:16", heads="one key head"), dtype="fp8")
    assert refusal(backend("indexer-deepgemm"), several, HOPPER) == (
        "one sequence a call, of 32 or 64 heads with headdim 32, 64 or 128"
    )
