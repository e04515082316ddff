"""`fa3`: flash-attn 3 for Hopper (flash-attention/hopper, module flash_attn_interface).

Checked against the source at commit 0251105 (2026-08) and the wheel tokenspeed-fa3 3.0.0.post20260810. Its causal mask
is aligned bottom-right. fp8 (e4m3) is forward only, takes one descale factor per (batch entry, key head) and writes
bf16. Older builds return (out, lse), newer ones out alone.

flash_attn_with_kvcache reads a cache of pages, with the schedule that get_scheduler_metadata makes from the lengths,
once a step. Queries and cache have one dtype. MLA (latent rows) uses the option `qv`: v is the first 512 columns of a
row and k the last 64, and q is split in the same way.

Switches of a build leave features out (FLASH_ATTENTION_DISABLE_FP16=TRUE, ...). The module flash_attn_config, which
setup.py writes, lists them. A call of a missing feature raises an error, but a v wider than the kernel that runs gives
wrong results, so the backend refuses it. A head dim that is left out runs in the next larger one. The wheel
tokenspeed-fa3 has no backward, softcap, kernel for headdim 96, or MLA.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import importlib.metadata
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, FLASH, PAGES, PAGES_THD, THD, Paste
from attnbench.backends.shared.libraries import VARLEN, Library, deterministic_option, installed_build, varlen_options
from attnbench.backends.shared.masks import effective_window, flash_window
from attnbench.core.backend import Prepared, Probe, Signature, cu_seqlens, operand_dtype
from attnbench.core.case import Case
from attnbench.core.fp8 import quantize_inputs
from attnbench.core.machine import Device
from attnbench.core.pages import cached_seqlens, queries

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs


CACHED = "out = flash_attn_with_kvcache(\n    q, k_cache, v_cache, cache_seqlens=seqlens_k, page_table=page_table"
HEADDIMS = (64, 96, 128, 192, 256)  # head dims of its kernels
SLOWER_WITHOUT = (
    "HDIM96",
    "HDIM192",
    "HDIMDIFF192",
    "PACKGQA",
    "CLUSTER",
    "SPLIT",
)  # these switches leave results correct, but slower
LATENT_K, LATENT_V = 64, (256, 512)  # latent rows: most columns of the key alone; least and most columns of the value


class FlashAttention3(Library):
    name = "fa3"
    paste = Paste(
        (
            "from flash_attn_interface import flash_attn_func",
            "from flash_attn_interface import flash_attn_varlen_func",
            "from flash_attn_interface import flash_attn_with_kvcache",
        ),
        {
            "dense": f"{BSHD}out = flash_attn_func(q, k, v{{options}})",
            "ragged": f"{THD}out = {VARLEN}",
            "paged": f"{PAGES}{CACHED}{{options}}\n)",
            "latent": "# q: (batch, seqlen_q, nheads, headdim); cache: (pages, page_size, 1, headdim)\n"
            "out = flash_attn_with_kvcache(\n    q[..., headdim_v:], cache[..., headdim_v:], cache[..., :headdim_v],\n"
            "    qv=q[..., :headdim_v], cache_seqlens=seqlens_k, page_table=page_table{options}\n)",
            "unlike": f"{PAGES_THD}{CACHED},\n    cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q{{options}}\n)",
        },
        **FLASH,
        deterministic="deterministic=True",
    )
    engine_names: ClassVar = {
        "transformers": "flash_attention_3",
        "vllm": "FLASH_ATTN flash_attn_version=3",
        "vllm mla": "FLASH_ATTN_MLA",
        "sglang": "fa3",
        "sglang mla": "fa3",
        "diffusers": "_flash_3",
    }
    efficiency = 0.75
    module = "flash_attn_interface"
    distributions: ClassVar[tuple[str, ...]] = ("flash-attn-3", "tokenspeed-fa3", "flashattn-hopper")
    required_name = "flash_attn_func"
    install = "attnbench env create fa3  # a wheel without backward; --build compiles one, with nvcc"
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp8"),
        capability=(9, 0),
        capability_below=(10, 0),
        headdim=(8, 512),
        headdim_v=True,
        window=True,
        softcap=True,
        deterministic=True,
        ragged=True,
        page_sizes=(1,),
        append=True,
        latent=True,
    )
    forward_kernels = "FlashAttnFwdSm90"
    backward_kernels = "FlashAttnBwdSm90"
    extension = "_C."  # the start of the name of the file with its compiled code
    packs = False  # whether a dense batch too is given as sequences that follow each other
    left_out: frozenset[str] = frozenset()  # features that the installed build lacks, by switch; set by `probe`

    def probe(self) -> Probe:
        """Return the probe. Its version has a hash of the compiled code and the lacking features that cost speed.

        The version alone is not enough: builds of many commits are 3.0.0.
        """
        found = super().probe()
        if not found.usable:
            return found
        self.left_out = self.find_left_out()
        slower = [switch for switch in SLOWER_WITHOUT if switch in self.left_out]
        parts = (found.version, self.compiled_code(), f"without {' '.join(slower)}" if slower else None)
        return replace(found, version=", ".join(filter(None, parts)))

    def find_left_out(self) -> frozenset[str]:
        """Return the features that the build lacks, by switch."""
        return left_out_of_build()

    def compiled_code(self) -> str | None:
        """Return the first digits of the SHA-256 of the extension, as its wheel states it; None where not known."""
        build, _ = installed_build(self.distributions, self.module)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(build) or ():
                if file.name.startswith(self.extension) and file.hash:
                    return f"code {base64.urlsafe_b64decode(f'{file.hash.value}=').hex()[:8]}"
        return None

    def unsupported(self, case: Case, device: Device) -> str | None:
        refusal = _latent_refusal(case) if case.latent else _headdim_refusal(case)
        return super().unsupported(case, device) or refusal or build_refusal(case, self.left_out)

    def signature(self, case: Case, device: Device) -> Signature:
        """Return the names of its kernels; for fp8 the template arguments in the name must say e4m3."""
        found = super().signature(case, device)
        return replace(found, runs=(f"{self.forward_kernels}.*e4m3",)) if case.dtype == "fp8" else found

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        s, library = case.shape, self.load()
        packed = case.is_ragged or self.packs
        attention = library.flash_attn_varlen_func if packed else library.flash_attn_func
        options: dict[str, Any] = {
            "softmax_scale": case.softmax_scale,
            "causal": case.causal,
            "window_size": flash_window(case),
            "softcap": case.softcap,
            **deterministic_option(case, attention),
        }

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _out(attention(q, k, v, **options))

        if case.is_paged:
            return _prepare_paged(library, case, inputs, options)
        if packed:
            plan = functools.partial(varlen_options, case, inputs.q.device)
            options |= plan()
            return autograd_prepared(case, inputs, call, "thd", strided=True, plan=plan)
        if case.dtype == "fp8":
            operands, descale = quantize_inputs(inputs)
            options |= {f"{name}_descale": factor.expand(s.batch, s.nheads_k) for name, factor in descale.items()}
            return Prepared(lambda: call(**operands), lambda out: {"out": out}, reads=operands)
        return autograd_prepared(case, inputs, call, strided=True)


def _out(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the output alone: older builds return it with the log-sum-exp."""
    return result[0] if isinstance(result, tuple) else result


def _prepare_paged(library: Any, case: Case, inputs: Inputs, options: dict[str, Any]) -> Prepared:
    assert inputs.page_table is not None
    s, q, k, v = case.shape, inputs.q, inputs.k, inputs.v
    reads: dict[str, Tensor] = {}
    if case.dtype == "fp8":
        reads, descale = quantize_inputs(inputs)
        q, k, v = reads["q"], reads["k"], reads["v"]
        options |= {f"{name}_descale": factor.expand(s.batch, s.nheads_k) for name, factor in descale.items()}
    view = functools.partial(queries, case) if case.has_like_queries else operator.itemgetter(0)
    if inputs.new_k is not None and inputs.new_v is not None:
        options |= {"k": view(inputs.new_k), "v": view(inputs.new_v)}
    if case.latent:
        options["qv"] = view(q)[..., : s.headdim_v]
        q, k = q[..., s.headdim_v :], k[..., s.headdim_v :]
    plan = functools.partial(_schedule, library, case, inputs.page_table)
    attention = functools.partial(library.flash_attn_with_kvcache, page_table=inputs.page_table)
    call = functools.partial(attention, view(q), k, v, **plan(), **options)
    shape = (*inputs.q.shape[:3], -1)
    return Prepared(lambda: _out(call()), lambda out: {"out": out.view(shape)}, reads=reads, plan=plan)


def _schedule(library: Any, case: Case, page_table: Tensor) -> dict[str, Any]:
    """Return the arguments of flash_attn_with_kvcache for the lengths, and the schedule that it plans for them."""
    s, device = case.shape, page_table.device
    headdim = s.headdim - s.headdim_v if case.latent else s.headdim
    lengths: dict[str, Any] = {"cache_seqlens": cached_seqlens(case, device)}
    starts: dict[str, Any] = {}
    if not case.has_like_queries:
        starts["cu_seqlens_q"] = cu_seqlens(case, device)[0]
        if case.append:
            starts["cu_seqlens_k_new"] = starts["cu_seqlens_q"]
        lengths["max_seqlen_q"] = s.seqlen_q
    schedule = library.get_scheduler_metadata(
        *(s.batch, s.seqlen_q, page_table.shape[1] * case.page_size, s.nheads, s.nheads_k, headdim),
        lengths["cache_seqlens"],
        qkv_dtype=operand_dtype(case),
        headdim_v=s.headdim_v,
        page_size=case.page_size,
        max_seqlen_k_new=s.seqlen_q if case.append else 0,
        causal=case.causal,
        window_size=flash_window(case),
        has_softcap=case.softcap > 0,
        **starts,
    )
    return {"scheduler_metadata": schedule, **lengths, **starts}


def _latent_refusal(case: Case) -> str | None:
    """Return why latent rows are refused, by the checks of q_v in hopper/flash_api.cpp."""
    d, d_v = case.shape.headdim - case.shape.headdim_v, case.shape.headdim_v
    if not case.is_paged:
        return "latent rows only in a cache of pages"
    if case.dtype == "fp8":
        return "no fp8 of latent rows"
    if not 0 < d <= LATENT_K or not LATENT_V[0] <= d_v <= LATENT_V[1] or d % 8 or d_v % 8:
        return (
            f"latent rows of {d} + {d_v} columns: up to {LATENT_K} + {LATENT_V[0]} to {LATENT_V[1]}, in multiples of 8"
        )
    return None


def _headdim_refusal(case: Case) -> str | None:
    """Return why the head dims are refused, by the same checks as hopper/flash_api.cpp."""
    d, d_v = case.shape.headdim, case.shape.headdim_v
    fp8 = case.dtype == "fp8"
    if fp8 and case.append:
        return "fp8 of appended keys is not wired up"
    if fp8 and case.is_ragged and not case.is_paged:
        return "fp8 of ragged batches is not wired up"
    if fp8 and case.has_backward:
        return "fp8 is forward only"
    if fp8 and (d % 16 or d_v % 16):
        return f"fp8 needs head dims that are multiples of 16, not {d} and {d_v}"
    if d > 256 or (case.has_backward and d_v > 256):
        return f"headdim {max(d, d_v)} is above 256"
    if d != d_v and not ((128 < d <= 192 and 96 < d_v <= 128) or (d <= 64 and not fp8) or (d <= 64 >= d_v)):
        return f"headdim {d} with headdim_v {d_v}: they may differ where headdim <= 64, or as 129-192 with 97-128"
    return None


def left_out_of_build() -> frozenset[str]:
    """Return the features that the build lacks: "FP16" for FLASH_ATTENTION_DISABLE_FP16; empty where not known."""
    try:
        flags = importlib.import_module("flash_attn_config").CONFIG["build_flags"]
        return frozenset(flag.partition("DISABLE_")[2] for flag, is_set in flags.items() if is_set is True) - {""}
    except (ImportError, AttributeError, KeyError, TypeError):
        return frozenset()


def build_refusal(case: Case, left_out: frozenset[str]) -> str | None:
    """Return why a build without the features `left_out` cannot run the case, and by which switch; None where it can.

    The rules are those of run_mha_fwd_constexpr and mha_bwd in hopper/flash_api_stable.cpp.
    """
    features = (
        ("FP16", case.dtype == "fp16", "fp16"),
        ("FP8", case.dtype == "fp8", "fp8"),
        ("BACKWARD", case.has_backward, "the backward, which attnbench env create fa3 --build has"),
        ("VARLEN", case.is_ragged, "ragged batches"),
        *((switch, case.is_paged, "caches of pages") for switch in ("VARLEN", "PAGEDKV")),
        ("APPENDKV", case.append, "appending to a cache"),
        ("SOFTCAP", case.softcap > 0, "softcap"),
        ("LOCAL", _is_local(case), "sliding windows"),
    )
    for switch, needed, feature in features:
        if needed and switch in left_out:
            return f"this build leaves out {feature} ({_variable(switch)})"
    d, d_v = case.shape.headdim, case.shape.headdim_v
    if case.latent:
        d -= d_v
    built = [n for n in HEADDIMS if f"HDIM{n}" not in left_out]
    largest = max(d, d_v) if case.has_backward else d
    if largest > max(built, default=0):
        switch = f"HDIM{min(n for n in HEADDIMS if n >= largest)}"
        return f"this build leaves out headdim {largest} and above ({_variable(switch)})"
    kernel = min(n for n in built if n >= d)
    if d_v > kernel and (kernel > 64 or "HDIMDIFF64" in left_out):
        switch = "HDIMDIFF64" if kernel == 64 else "HDIM64"
        return f"this build leaves out headdim {d} with headdim_v {d_v}, and computes it wrongly ({_variable(switch)})"
    return None


def _variable(switch: str) -> str:
    return f"FLASH_ATTENTION_DISABLE_{switch}"


def _is_local(case: Case) -> bool:
    """Return whether the kernel for windows runs: where the window has an effect and is no causal mask."""
    left, right = effective_window(case)
    keys = max(case.pages) * case.page_size if case.is_paged else case.shape.seqlen_k
    if left is not None and left < keys - 1:
        return True
    return right is not None and 0 < right < case.shape.seqlen_q - 1
