"""`fa1` to `fa4`, through stand-ins with their interfaces."""

from __future__ import annotations

import base64
import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnbench.backends.flash_attn.fa4_mask import mask_mod
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.judge import inputs
from standins import flash_attn, install
from standins.contract import ADA, AMPERE, BLACKWELL, CASES, CPU, HOPPER, RTX, TURING, backend, cases, check

STAND_INS = {
    "fa1": (flash_attn.version_1, flash_attn.VERSIONS_1),
    "fa2": (flash_attn.version_2, flash_attn.VERSIONS_2),
    "fa3": (flash_attn.version_3, flash_attn.VERSIONS_3),
    "fa4": (flash_attn.version_4, flash_attn.VERSIONS_4),
}
UNLIKE = ((1, 1, 64), (1, 32, 32))  # aligned top-left, the single query would see one key
PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")
MASKED = replace(PLAIN, mask="dilated:2")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The backend's library, or its stand-in."""
    modules, versions = STAND_INS[name]
    install(monkeypatch, modules(), versions)


@pytest.mark.usefixtures("stand_in")
@cases(*STAND_INS)
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", STAND_INS)
def test_probe_names_the_version(name: str) -> None:
    assert backend(name).probe().version == " ".join(*STAND_INS[name][1].items())


@pytest.mark.parametrize("name", STAND_INS)
def test_not_on_a_cpu(name: str) -> None:
    assert backend(name).unsupported(PLAIN, CPU) == "needs a CUDA GPU"


@pytest.mark.parametrize(
    ("name", "case", "device", "reason"),
    [
        ("fa1", replace(PLAIN, dtype="bf16"), TURING, "no bf16 below compute capability 8.0"),
        ("fa1", replace(PLAIN, dtype="fp16"), TURING, None),
        ("fa1", replace(PLAIN, shape=Shape(1, 64, 64, 4, 2, 64, 64)), AMPERE, "no grouped heads"),
        ("fa1", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 128, 128), direction="bwd"), ADA, "backward of headdim"),
        ("fa1", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 128, 128), direction="bwd"), AMPERE, None),
        ("fa1", replace(PLAIN, shape=Shape(1, 32, 64, 2, 2, 64, 64), causal=True), AMPERE, "not bottom-right"),
        ("fa1", replace(PLAIN, shape=Shape(1, 1, 64, 2, 2, 64, 64), causal=True), AMPERE, None),
        ("fa1", PLAIN, BLACKWELL, "below 9.1, this GPU has 10.0"),
        ("fa1", replace(PLAIN, shape=Shape(2, 32, 64, 2, 2, 64, 64), lengths=UNLIKE), HOPPER, None),
        (
            "fa1",
            replace(PLAIN, shape=Shape(2, 32, 64, 2, 2, 64, 64), lengths=UNLIKE, causal=True),
            HOPPER,
            "not bottom",
        ),
        ("fa2", PLAIN, TURING, "8.0 or newer, this GPU has 7.5"),
        ("fa2", replace(PLAIN, dtype="fp32"), HOPPER, "no fp32, only bf16 and fp16"),
        ("fa2", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 192, 128)), HOPPER, "v must have the headdim"),
        ("fa2", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 36, 36)), HOPPER, "no multiple of 8"),
        ("fa2", replace(PLAIN, softcap=30.0, dropout_p=0.1), HOPPER, "exclude each other"),
        ("fa2", replace(PLAIN, dropout_p=0.1, window_size=(8, 8)), HOPPER, None),
        ("fa3", PLAIN, AMPERE, "needs compute capability 9.0"),
        ("fa3", PLAIN, BLACKWELL, "below 10.0"),
        ("fa3", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 192, 128)), HOPPER, None),
        ("fa3", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 128, 64)), HOPPER, "they may differ where"),
        ("fa3", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 64, 512)), HOPPER, None),
        ("fa3", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 64, 512), direction="bwd"), HOPPER, "512 is above 256"),
        ("fa3", replace(PLAIN, dropout_p=0.1), HOPPER, "no dropout"),
        ("fa4", PLAIN, AMPERE, "needs compute capability 9.0"),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 256, 256)), HOPPER, None),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 160, 160)), HOPPER, None),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 160, 160)), BLACKWELL, "on Blackwell to 128"),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 192, 128)), BLACKWELL, None),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 256, 256)), BLACKWELL, None),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 256, 256)), RTX, "exceed the shared memory"),
        ("fa4", replace(PLAIN, direction="bwd", alibi=True), HOPPER, None),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 4, 2, 64, 64), alibi=True), HOPPER, None),
        (
            "fa4",
            replace(PLAIN, shape=Shape(1, 64, 64, 4, 2, 64, 64), direction="bwd", alibi=True),
            HOPPER,
            "no backward with ALiBi for grouped heads on Hopper",
        ),
        ("fa4", replace(PLAIN, shape=Shape(1, 64, 64, 2, 1, 192, 128), direction="bwd"), HOPPER, "of grouped heads"),
        ("fa4", MASKED, BLACKWELL, None),
        ("fa4", MASKED, RTX, "no block sparsity"),
        ("fa4", replace(MASKED, shape=Shape(1, 64, 64, 2, 2, 192, 128)), BLACKWELL, "headdim 192 with a mask by name"),
        ("fa4", replace(MASKED, mask="mine.py:documents@0"), HOPPER, "CuTe DSL, not one of tensors"),
    ],
)
def test_what_it_refuses(name: str, case: Case, device: Device, reason: str | None) -> None:
    said = backend(name).unsupported(case, device)
    assert (said is None) if reason is None else (said is not None and reason in said)


@pytest.mark.parametrize(
    ("name", "versions", "reason"),
    [
        ("fa1", {"flash-attn": "2.8.3"}, "flash-attn 2.8.3 is not below 2"),
        ("fa2", {"flash-attn": "1.0.9"}, "flash-attn 1.0.9 is older than 2.6"),
        ("fa2", {"flash-attn": "2.5.9.post1"}, "flash-attn 2.5.9.post1 is older than 2.6"),
    ],
)
def test_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, versions: dict[str, str], reason: str
) -> None:
    install(monkeypatch, STAND_INS[name][0](), versions)
    probe = backend(name).probe()
    assert probe.reason == reason
    assert probe.install


def test_older_builds_of_fa3_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """They return (out, lse) and not out alone."""
    modules = flash_attn.version_3()
    install(monkeypatch, modules, flash_attn.VERSIONS_3)
    interface = modules["flash_attn_interface"]
    new = interface.flash_attn_func
    monkeypatch.setattr(interface, "flash_attn_func", lambda *a, **k: (new(*a, **k), torch.empty(())))
    check(backend("fa3"), CASES["gqa-causal-bf16-bwd"])


RAGGED = replace(PLAIN, shape=Shape(2, 64, 64, 2, 2, 64, 64), lengths=((1, 32, 48), (1, 64, 64)))
PAGED = Case(Shape(1, 1, 64, 2, 2, 64, 64), "bf16", "fwd", page_size=16)
MLA = Case(Shape(1, 1, 64, 16, 1, 576, 512), "bf16", "fwd", page_size=64, latent=True)
EVERYTHING = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "bwd", window_size=(8, 8), softcap=30.0)
D96, D192_128 = (Shape(1, 64, 64, 2, 2, d, d_v) for d, d_v in ((96, 96), (192, 128)))
D64_128, D64_96 = (Shape(1, 64, 64, 2, 2, 64, d_v) for d_v in (128, 96))
D256 = Shape(1, 64, 64, 2, 2, 256, 256)


@pytest.mark.parametrize(
    ("left_out", "case", "reason"),
    [
        ("FP16", replace(PLAIN, dtype="fp16"), "this build leaves out fp16 (FLASH_ATTENTION_DISABLE_FP16)"),
        ("FP16", PLAIN, None),
        ("FP8", replace(PLAIN, dtype="fp8"), "this build leaves out fp8 (FLASH_ATTENTION_DISABLE_FP8)"),
        (
            "BACKWARD",
            replace(PLAIN, direction="fwd_bwd"),
            "this build leaves out the backward (FLASH_ATTENTION_DISABLE_BACKWARD)",
        ),
        ("BACKWARD", PLAIN, None),
        ("SOFTCAP", replace(PLAIN, softcap=30.0), "this build leaves out softcap (FLASH_ATTENTION_DISABLE_SOFTCAP)"),
        (
            "LOCAL",
            replace(PLAIN, window_size=(8, 8)),
            "this build leaves out sliding windows (FLASH_ATTENTION_DISABLE_LOCAL)",
        ),
        ("LOCAL", replace(PLAIN, causal=True, window_size=(63, None)), None),  # the library sees a causal mask
        ("LOCAL", replace(PLAIN, window_size=(None, 63)), None),
        ("LOCAL", replace(PLAIN, window_size=(None, 0)), None),
        (
            "HDIM256",
            replace(PLAIN, shape=D256),
            "this build leaves out headdim 256 and what is above (FLASH_ATTENTION_DISABLE_HDIM256)",
        ),
        ("HDIM96", replace(PLAIN, shape=D96), None),  # it runs in 128
        ("HDIM192 HDIMDIFF192", replace(PLAIN, shape=D192_128, direction="fwd_bwd"), None),  # it runs in 256
        (
            "HDIM192 HDIM256",
            replace(PLAIN, shape=D192_128),
            "this build leaves out headdim 192 and what is above (FLASH_ATTENTION_DISABLE_HDIM192)",
        ),
        ("HDIMDIFF192", replace(PLAIN, shape=D192_128), None),
        (
            "HDIMDIFF64",
            replace(PLAIN, shape=D64_128),
            "this build leaves out headdim 64 with headdim_v 128, and computes it wrongly "
            "(FLASH_ATTENTION_DISABLE_HDIMDIFF64)",
        ),
        ("HDIMDIFF64", replace(PLAIN, shape=Shape(1, 64, 64, 2, 2, 64, 32)), None),
        ("HDIM64", replace(PLAIN, shape=D64_96), None),  # 96 for both
        (
            "HDIM64",
            replace(PLAIN, shape=D64_128),
            "this build leaves out headdim 64 with headdim_v 128, and computes it wrongly "
            "(FLASH_ATTENTION_DISABLE_HDIM64)",
        ),
        (
            "HDIM64 HDIM96 HDIM128 HDIM192 HDIM256",
            PLAIN,
            "this build leaves out headdim 64 and what is above (FLASH_ATTENTION_DISABLE_HDIM64)",
        ),
        ("SM8x VARLEN PAGEDKV APPENDKV SPLIT PACKGQA CLUSTER", EVERYTHING, None),
        ("VARLEN", RAGGED, "this build leaves out ragged batches (FLASH_ATTENTION_DISABLE_VARLEN)"),
        ("PAGEDKV APPENDKV SPLIT", RAGGED, None),
        ("VARLEN", PAGED, "this build leaves out caches of pages (FLASH_ATTENTION_DISABLE_VARLEN)"),
        ("PAGEDKV", PAGED, "this build leaves out caches of pages (FLASH_ATTENTION_DISABLE_PAGEDKV)"),
        (
            "APPENDKV",
            replace(PAGED, append=True),
            "this build leaves out appending to a cache (FLASH_ATTENTION_DISABLE_APPENDKV)",
        ),
        ("APPENDKV SPLIT HDIMDIFF64", PAGED, None),
        (
            "HDIMDIFF64",
            MLA,
            "this build leaves out headdim 64 with headdim_v 512, and computes it wrongly "
            "(FLASH_ATTENTION_DISABLE_HDIMDIFF64)",
        ),
        ("HDIM96 HDIM256", MLA, None),
        ("LOCAL", replace(PAGED, window_size=(63, 0)), None),
        (
            "LOCAL",
            replace(PAGED, window_size=(62, 0)),
            "this build leaves out sliding windows (FLASH_ATTENTION_DISABLE_LOCAL)",
        ),
        ("", replace(PLAIN, dtype="fp16", shape=D64_128), None),
    ],
)
def test_what_a_build_of_fa3_leaves_out(
    monkeypatch: pytest.MonkeyPatch, left_out: str, case: Case, reason: str | None
) -> None:
    prefix = {"HDIMDIFF64": "FLASH_ATTENTION", "HDIMDIFF192": "FLASH_ATTENTION"}  # as setup.py spells them
    flags = [f"{prefix.get(switch, 'FLASHATTENTION')}_DISABLE_{switch}" for switch in left_out.split()]
    made = backend("fa3")
    before = made.unsupported(case, HOPPER)
    assert before is None, "what is installed is not asked before the library is probed"
    install(monkeypatch, flash_attn.version_3(*flags), flash_attn.VERSIONS_3)
    assert made.probe().usable
    assert made.unsupported(case, HOPPER) == reason


def test_fa3_names_what_makes_a_build_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [f"FLASHATTENTION_DISABLE_{switch}" for switch in ("HDIM96", "FP16", "PACKGQA", "VARLEN")]
    install(monkeypatch, flash_attn.version_3(*flags), flash_attn.VERSIONS_3)
    assert backend("fa3").probe().version == "flash-attn-3 3.0.0, without HDIM96 PACKGQA"


def test_builds_of_fa3_are_told_apart_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn.version_3(), flash_attn.VERSIONS_3)
    digest = base64.urlsafe_b64encode(bytes.fromhex("12345678" + 56 * "0")).decode().rstrip("=")
    file = importlib.metadata.PackagePath("flash_attn_3/_C.abi3.so")
    file.hash = importlib.metadata.FileHash(f"sha256={digest}")
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [importlib.metadata.PackagePath("x.py"), file])
    assert backend("fa3").probe().version == "flash-attn-3 3.0.0, code 12345678"


@pytest.mark.parametrize("config", [None, {}, {"build_flags": 0}])
def test_a_build_of_fa3_that_does_not_say_is_refused_nothing(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, int] | None
) -> None:
    modules = flash_attn.version_3()
    if config is None:
        modules["flash_attn_config"] = None
    else:
        modules["flash_attn_config"].CONFIG = config
    install(monkeypatch, modules, flash_attn.VERSIONS_3)
    made = backend("fa3")
    assert made.probe().version == "flash-attn-3 3.0.0"
    assert made.unsupported(replace(PLAIN, dtype="fp16", softcap=30.0, window_size=(8, 8)), HOPPER) is None


def test_fa3_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """In addition to the contract: out is bf16, and the name of its kernel must say e4m3."""
    install(monkeypatch, flash_attn.version_3(), flash_attn.VERSIONS_3)
    fp8 = Case(Shape(2, 40, 48, 4, 2, 64, 64), "fp8", "fwd")
    made = backend("fa3")
    assert made.unsupported(replace(fp8, direction="bwd"), HOPPER) == "fp8 is forward only"
    prepared = made.prepare(fp8, inputs.make(fp8, "cpu", seed=0))
    assert prepared.canonical(prepared.launch())["out"].dtype == torch.bfloat16
    kernel = (
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Mainloop<2, {}, float>>>>(x)"
    )
    (pattern,) = made.signature(fp8, HOPPER).runs
    assert re.search(pattern, kernel.format("cutlass::float_e4m3_t"))
    assert not re.search(pattern, kernel.format("cutlass::bfloat16_t"))


@pytest.mark.parametrize(
    ("name", "forward", "backward", "others"),
    [
        ("fa1", "void fmha_fwd_loop_kernel<FMHA_kernel_traits<256, 64>>", "void fmha_bwd_dq_dk_dv_loop_kernel<x>", ()),
        (
            "fa2",
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
            "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>",
            ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>",),
        ),
        (
            "fa3",
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>",
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<x>>>",
            (),
        ),
        (
            "fa4",
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensor0000o11",
            "kernel_cutlass_kernel_flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90_object_at__tensor0000o1",
            ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>",),
        ),
    ],
)
def test_signatures_match_the_names_of_kernels(name: str, forward: str, backward: str, others: tuple[str, ...]) -> None:
    signature = backend(name).signature(replace(PLAIN, direction="fwd_bwd"), HOPPER)
    assert [bool(re.search(pattern, forward)) for pattern in signature.runs] == [True, False]
    assert [bool(re.search(pattern, backward)) for pattern in signature.runs] == [False, True]
    assert not any(re.search(pattern, kernel) for pattern in signature.never for kernel in (forward, backward))
    assert all(any(re.search(pattern, kernel) for pattern in signature.never) for kernel in others)


TABLES = {"fa2": "block_table", "fa3": "page_table", "fa4": "page_table"}
FAULTS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "another order of pages": lambda given, table: {table: given[table].flip(1)},
    "a neighbour's pages": lambda given, table: {table: given[table].roll(1, 0)},
    "a key too few": lambda given, _: _lengths(given, -1),
    "a key too many": lambda given, _: _lengths(given, 1),
    "another scale": lambda given, _: {"softmax_scale": 1.3 * given["softmax_scale"]},
}


def _lengths(given: dict[str, Any], more: int) -> dict[str, Any]:
    """Return the lengths of the keys with `more` keys each."""
    if "cu_seqlens_k" in given:
        starts = given["cu_seqlens_k"]
        more_each = more * torch.arange(len(starts), dtype=torch.int32)
        return {"cu_seqlens_k": starts + more_each, "max_seqlen_k": given["max_seqlen_k"] + more}
    (name,) = {"cache_seqlens", "seqused_k"} & set(given)
    return {name: given[name] + more}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("key", ["decode", "unlike", "beside", "decode-append", "mla"])
@pytest.mark.parametrize("name", TABLES)
def test_a_call_with_other_pages_or_lengths_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str, fault: str
) -> None:
    """The stand-ins read what they are given: where the wiring is wrong, the contract fails."""
    made, case = backend(name), CASES[f"pages-256-{key}"]
    if made.unsupported(case, HOPPER):
        pytest.skip("a case of other backends")
    modules, versions = STAND_INS[name]
    found = modules()
    for module in found.values():
        for function in set(vars(module)) & {"flash_attn_with_kvcache", "flash_attn_varlen_func"}:
            monkeypatch.setattr(module, function, _faulty(getattr(module, function), FAULTS[fault], TABLES[name]))
    install(monkeypatch, found, versions)
    with pytest.raises((AssertionError, RuntimeError)):
        check(made, case)


def _faulty(function: Any, fault: Any, table: str) -> Any:
    return lambda *given, **options: function(*given, **{**options, **fault(options, table)})


def test_fa2_appends_as_many_keys_to_each_sequence() -> None:
    made = backend("fa2")
    assert made.unsupported(CASES["pages-256-unlike-append"], HOPPER) is None
    assert made.unsupported(CASES["pages-256-beside-append"], HOPPER) == "it appends as many keys to each sequence"
    assert made.unsupported(CASES["pages-64-decode"], HOPPER) == "no pages of 64 tokens, only multiples of 256"
    assert made.unsupported(CASES["pages-256-decode-fp8"], HOPPER) == "no fp8 cache for bf16 queries"
    assert made.unsupported(CASES["pages-256-mla"], HOPPER) == "no latent rows (MLA with absorbed weights)"
    (pattern,) = made.signature(CASES["pages-256-decode"], HOPPER).runs
    assert re.search(pattern, "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>")
    assert not re.search(pattern, "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (PAGED, None),
        (replace(PAGED, page_size=1), None),
        (replace(PAGED, cache_dtype="fp8"), "no fp8 cache for bf16 queries"),
        (replace(PAGED, dtype="fp8"), None),
        (replace(PAGED, dtype="fp8", append=True), "fp8 of appended keys is not wired up"),
        (MLA, None),
        (replace(MLA, page_size=0), "latent rows only in a cache of pages"),
        (replace(MLA, dtype="fp8"), "no fp8 of latent rows"),
        (replace(MLA, shape=replace(MLA.shape, headdim=640)), "latent rows of 128 + 512 columns"),
        (replace(MLA, shape=replace(MLA.shape, headdim=192, headdim_v=128)), "latent rows of 64 + 128 columns"),
    ],
)
def test_pages_of_fa3(case: Case, reason: str | None) -> None:
    said = backend("fa3").unsupported(case, HOPPER)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_fa3_makes_its_schedule_before_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the plan, made once a step; launches read the caches themselves."""
    modules = flash_attn.version_3()
    install(monkeypatch, modules, flash_attn.VERSIONS_3)
    interface, calls = modules["flash_attn_interface"], []
    make = interface.get_scheduler_metadata
    monkeypatch.setattr(interface, "get_scheduler_metadata", lambda *a, **k: (calls.append(a), make(*a, **k))[1])
    given = inputs.make(MLA, "cpu", seed=0)
    prepared = backend("fa3").prepare(MLA, given)
    prepared.launch()
    prepared.launch()
    assert len(calls) == 1
    assert prepared.plan is not None
    prepared.plan()
    assert len(calls) == 2
    assert prepared.reads == {}


@pytest.mark.parametrize(
    ("sizes", "device", "reason"),
    [
        ((64, 64), HOPPER, None),
        ((128, 128), BLACKWELL, None),
        ((192, 128), BLACKWELL, None),
        ((192, 128), HOPPER, "pages with headdim 192 and headdim_v 128: it tests 64, 128 only"),
        ((96, 96), HOPPER, "pages with headdim 96 and headdim_v 96: it tests 64, 128 only"),
        ((64, 64), RTX, "no cache of pages on compute capability 12"),
    ],
)
def test_pages_of_fa4(sizes: tuple[int, int], device: Device, reason: str | None) -> None:
    case = Case(Shape(1, 1, 64, 2, 2, *sizes), "bf16", "fwd", page_size=16)
    assert backend("fa4").unsupported(case, device) == reason


@pytest.mark.parametrize(("headdim", "keys"), [(64, 128), (256, 80)])
def test_what_fa4_plans_for_a_mask(monkeypatch: pytest.MonkeyPatch, headdim: int, keys: int) -> None:
    """The lists are made again by `plan`, and the pairs are those of the blocks that its forward visits."""
    install(monkeypatch, flash_attn.version_4(), flash_attn.VERSIONS_4)
    case = Case(Shape(1, 256, 256, 2, 2, headdim, headdim), "bf16", "fwd_bwd", True, mask="random:0.000001")
    prepared = backend("fa4").prepare(case, inputs.make(case, "cpu", seed=0))
    assert prepared.pairs is not None
    assert prepared.plan is not None
    planned: Any = prepared.plan()
    assert prepared.pairs() == sum({128: (1, 1), 80: (2, 3)}[keys]) * 128 * keys
    assert planned["block_sparse_tensors"].block_size == (128, keys)
    assert planned["block_sparse_tensors_bwd"].mask_block_cnt.shape[-1] == 256 // (128 if headdim == 64 else 64)
    assert planned["aux_tensors"][0].shape == (4, 4)


@pytest.mark.parametrize("mask", ["strided:16", "random:0.3"])
def test_a_mask_of_fa4_is_compiled_once(monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    """utils.py, hash_callable: functions are alike if what they capture has the same repr."""
    install(monkeypatch, flash_attn.version_4(), flash_attn.VERSIONS_4)
    case = replace(MASKED, causal=True, mask=mask)
    cases = (case, case, replace(case, causal=False), replace(case, shape=Shape(1, 64, 80, 2, 2, 64, 64)))
    one, again, *others = (str([c.cell_contents for c in mask_mod(of).__closure__ or ()]) for of in cases)
    assert one == again
    assert one not in others
