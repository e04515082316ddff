"""The names of kernels that prove which library ran, from profiles on a GPU.

tests/worker/test_kernel_rules.py has the names of torch, triton and gluon.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from standins.contract import BLACKWELL, CASES, HOPPER, backend

CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_{}prop_wgmma_{}_knob_7_128x128x128_4x1x1_cga1x1x1_kernel0_0"
FA2, FA2_BACKWARD = (
    "void flash::flash_fwd_kernel<T<128>>",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>",
)
FA2_SPLIT = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>"
FA3 = "void cutlass::device_kernel<flash::enable_sm90{}<flash::FlashAttn{}Sm90<flash::Mainloop<2, {}, float>>>>(x)"
FA4 = "kernel_cutlass_kernel_flash_attncuteflash_{}_sm90FlashAttention{}Sm90_object_at__tensor0000o11"
OF_TORCH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4>>"
BF16, E4M3 = "cutlass::bfloat16_t", "cutlass::float_e4m3_t"
OF_CUDNN = (CUDNN.format("f", "f16"), CUDNN.format("b", "f16"))
OF_FA3 = (FA3.format("", "Fwd", BF16), FA3.format("_or_later", "Bwd", BF16))
OF_FA4 = (FA4.format("fwd", "Forward"), FA4.format("bwd", "Backward"))
OF_LATENT = {
    "fa2": "void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits<x>>",
    "fa3": "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<flashinfer::x>",
}
FLASHINFER = {
    "flashinfer-fa2": (
        "void flashinfer::SinglePrefillWithKVCacheKernel<flashinfer::KernelTraits<x>>",
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<x>>",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<x>>",
    ),
    "flashinfer-fa3": ("void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<x>>",),
    "flashinfer-decode": ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode>",),
    "flashinfer-cudnn": (OF_CUDNN[0],),
    "flashinfer-trtllm": (
        "fmha_v2_flash_attention_bf16_64_128_S_q_k_v_128_causal_tma_ws_sm90_kernel",
        "fmhaSm100aKernel_QkvBfloat16OBfloat16H128SeparateQkvCausalVarSeqQ128Kv128",
    ),
}


def case(**fields: object) -> Case:
    return Case(Shape(1, 64, 64, 2, 2, 128, 128), **{"dtype": "bf16", "direction": "fwd_bwd", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("fa1", ("void fmha_fwd_loop_kernel<x>", "void fmha_bwd_dq_dk_dv_loop_kernel<x>"), ()),
        ("fa2", (FA2, FA2_BACKWARD), (OF_TORCH,)),
        ("fa3", OF_FA3, ()),
        ("fa4", OF_FA4, (OF_TORCH,)),
        ("sdpa-fa3", OF_FA3, (OF_TORCH,)),
        ("sdpa-fa4", OF_FA4, (OF_TORCH,)),
        ("transformer-engine", OF_CUDNN, ("scaled_masked_softmax_warp_forward",)),
        ("transformer-engine", (FA2, FA2_BACKWARD), ()),
        ("transformer-engine-fused", OF_CUDNN, (FA2,)),
        ("transformer-engine-flash", OF_FA3, (OF_CUDNN[0],)),
    ],
)
def test_a_forward_and_a_backward_are_proven_apart(name: str, own: tuple[str, str], others: tuple[str, ...]) -> None:
    signature = backend(name).signature(case(), HOPPER)
    for place, kernel in enumerate(own):
        assert [bool(re.search(pattern, kernel)) for pattern in signature.runs] == [place == 0, place == 1]
        assert not any(re.search(pattern, kernel) for pattern in signature.never)
    for kernel in others:
        assert any(re.search(pattern, kernel) for pattern in signature.never)


def test_both_kernels_of_cudnn_are_declared() -> None:
    """Both kernels of cuDNN are declared, because on other GPUs its names may be the same in forward and backward."""
    assert all(map(re.search, backend("cudnn").signature(case(), HOPPER).runs, OF_CUDNN))


@pytest.mark.parametrize("name", FLASHINFER)
def test_the_backends_of_flashinfer_are_told_apart(name: str) -> None:
    (pattern,) = backend(name).signature(case(direction="fwd"), HOPPER).runs
    assert {of for of, kernels in FLASHINFER.items() for kernel in kernels if re.search(pattern, kernel)} == {name}
    assert all(re.search(pattern, kernel) for kernel in FLASHINFER[name])


def test_signatures_of_caches() -> None:
    latent = CASES["pages-64-mla"]
    for name in ("fa2", "fa3"):
        (pattern,) = backend(f"flashinfer-{name}").signature(latent, HOPPER).runs
        (either,) = backend("flashinfer").signature(latent, HOPPER).runs
        for of, kernel in OF_LATENT.items():
            assert bool(re.search(pattern, kernel)) == (name == of)
            assert re.search(either, kernel)
    attends, merges = backend("flashinfer-cascade").signature(CASES["pages-16-decode-prefix"], HOPPER).runs
    for name in ("flashinfer-fa2", "flashinfer-fa3"):
        assert re.search(attends, FLASHINFER[name][-1])
    assert re.search(merges, "void flashinfer::MergeStateInPlaceKernel<8, 16, __nv_bfloat16>")
    (pattern,) = backend("fa2").signature(CASES["pages-256-decode"], HOPPER).runs
    assert re.search(pattern, FA2_SPLIT)
    assert not re.search(pattern, FA2)


@pytest.mark.parametrize("name", ["cudnn-fp8", "transformer-engine-fp8"])
def test_kernels_in_fp8_say_so_in_their_names_on_hopper(name: str) -> None:
    """Names of fp8 kernels on Hopper show 8-bit operands, which errors cannot show where results have 8 bits."""
    found = backend(name).signature(case(dtype="fp8"), HOPPER)
    for kernel in ("f", "b"):
        of_8, of_16 = (CUDNN.format(kernel, t) for t in ("f8", "f16"))
        assert sum(bool(re.search(pattern, of_8)) for pattern in found.runs) == 1
        assert not any(re.search(pattern, of_16) for pattern in found.runs)
    backward = backend(name).signature(case(dtype="fp8", direction="bwd"), HOPPER)
    assert backward.runs == found.runs[1:]
    unknown = backend(name).signature(case(dtype="fp8", direction="fwd"), BLACKWELL)
    assert "_f8" not in "".join(unknown.runs)


def test_the_kernel_of_fa3_in_fp8_says_so() -> None:
    (pattern,) = backend("fa3").signature(case(dtype="fp8", direction="fwd"), HOPPER).runs
    assert [bool(re.search(pattern, FA3.format("", "Fwd", dtype))) for dtype in (E4M3, BF16)] == [True, False]


@pytest.mark.parametrize(
    ("of", "kernel"),
    [
        ({}, "void sm90::decode::dense::flash_fwd_splitkv_mla_kernel<sm90::Traits<cutlass::bfloat16_t>>"),
        ({"mask": "topk:128"}, "void sm90::prefill::sparse_fwd::sparse_attn_fwd_kernel<576, false>"),
        (
            {"mask": "topk:128", "cache_dtype": "fp8"},
            "void sm90::decode::sparse::flash_fwd_splitkv_mla_fp8_sparse_kernel<sm90::KernelTemplate<0, 128>>",
        ),
    ],
    ids=["dense", "chosen", "fp8"],
)
def test_the_kernels_of_flashmla_are_told_apart(of: dict[str, Any], kernel: str) -> None:
    shape = Shape(1, 1, 256, 64, 1, 576, 512)
    case = Case(shape, "bf16", "fwd", True, page_size=64, latent=True, **of)
    kernels = ("flash_fwd_splitkv_mla_kernel", "sparse_attn_fwd_kernel", "flash_fwd_splitkv_mla_fp8_sparse_kernel")
    (pattern,) = backend("flashmla").signature(case, HOPPER).runs
    assert re.search(pattern, kernel)
    assert sum(bool(re.search(pattern, name)) for name in kernels) == 1
