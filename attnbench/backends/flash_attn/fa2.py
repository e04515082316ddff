"""`fa2`: flash-attn 2.x (Dao-AILab/flash-attention). Checked against the source of 2.8.3.post1.

Its causal mask is aligned bottom-right, and the output of a query that sees no key is 0. The oldest version accepted is
2.6, the first with softcap. flash_attn_varlen_func computes ragged batches. Where all sequences have the same number of
queries, flash_attn_with_kvcache reads a cache of pages; it splits the keys and can append to the cache. Otherwise
flash_attn_varlen_func reads it. PyPI has only its source; FLASH_ATTN_CUDA_ARCHS=90 builds for one architecture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, FLASH, PAGES, PAGES_THD, THD, Paste
from attnbench.backends.shared.libraries import VARLEN, Library, deterministic_option, varlen_options
from attnbench.backends.shared.masks import flash_window, slopes
from attnbench.core.backend import Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.pages import cached_seqlens, queries

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

PAGED_KERNEL = "flash_fwd_splitkv"


class FlashAttention2(Library):
    name = "fa2"
    paste = Paste(
        (
            "from flash_attn import flash_attn_func",
            "from flash_attn import flash_attn_varlen_func",
            "from flash_attn import flash_attn_with_kvcache",
        ),
        {
            "dense": f"{BSHD}out = flash_attn_func(q, k, v{{options}})",
            "ragged": f"{THD}out = {VARLEN}",
            "paged": f"{PAGES}out = flash_attn_with_kvcache(\n    q, k_cache, v_cache, cache_seqlens=seqlens_k, "
            "block_table=page_table{options}\n)",
            "unlike": f"{PAGES_THD}out = flash_attn_varlen_func(\n    q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, "
            "max_seqlen_q, max_seqlen_k,\n    block_table=page_table{options}\n)",
        },
        **FLASH,
        dropout="dropout_p={dropout}",
        alibi="alibi_slopes=alibi_slopes",
        deterministic="deterministic=True",
    )
    engine_names: ClassVar = {
        "transformers": "flash_attention_2",
        "vllm": "FLASH_ATTN flash_attn_version=2",
        "diffusers": "flash",
    }
    efficiency = 0.45
    module = "flash_attn.flash_attn_interface"
    distributions: ClassVar = ("flash-attn",)
    install = "pip install 'flash-attn>=2.6,<3' --no-build-isolation"
    min_version, below_version = "2.6", "3"
    limits: ClassVar = Limits(
        window=True,
        softcap=True,
        dropout=True,
        alibi=True,
        deterministic=True,
        ragged=True,
        page_sizes=(256,),
        append=True,
    )
    forward_kernels = "flash_fwd"
    backward_kernels = "flash_bwd"
    other_kernels: ClassVar = ("pytorch_flash",)  # torch's copy of flash-attn 2

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.softcap and case.dropout_p:
            return "softcap and dropout exclude each other"
        if case.append and not case.has_like_queries:
            return "it appends the same number of keys to each sequence"
        return super().unsupported(case, device)

    def signature(self, case: Case, device: Device) -> Signature:
        found = super().signature(case, device)
        return replace(found, runs=(PAGED_KERNEL,)) if case.is_paged else found

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from flash_attn import flash_attn_func, flash_attn_varlen_func

        options: dict[str, Any] = {
            "dropout_p": case.dropout_p,
            "softmax_scale": case.softmax_scale,
            "causal": case.causal,
            "window_size": flash_window(case),
            "softcap": case.softcap,
            "alibi_slopes": slopes(case, inputs.q.device),
            **deterministic_option(case, flash_attn_varlen_func if case.is_ragged else flash_attn_func),
        }
        if case.is_paged:
            return _prepare_paged(case, inputs, options)
        if case.is_ragged:
            plan = functools.partial(varlen_options, case, inputs.q.device)
            attention = functools.partial(flash_attn_varlen_func, **options, **plan())
            return autograd_prepared(case, inputs, attention, "thd", strided=True, plan=plan)
        return autograd_prepared(case, inputs, functools.partial(flash_attn_func, **options), strided=True)


def _prepare_paged(case: Case, inputs: Inputs, options: dict[str, Any]) -> Prepared:
    from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

    device, attention, q = inputs.q.device, flash_attn_varlen_func, inputs.q[0]
    plan: Callable[[], dict[str, Any]] = functools.partial(varlen_options, case, device)
    options["block_table"] = inputs.page_table
    if case.has_like_queries:
        del options["dropout_p"]
        attention, q = flash_attn_with_kvcache, queries(case, inputs.q)
        plan = lambda: {"cache_seqlens": cached_seqlens(case, device)}  # noqa: E731
        if inputs.new_k is not None and inputs.new_v is not None:
            options |= {"k": queries(case, inputs.new_k), "v": queries(case, inputs.new_v)}
    launch = functools.partial(attention, q, inputs.k, inputs.v, **plan(), **options)
    return Prepared(launch, lambda out: {"out": out.view(inputs.q.shape)}, plan=plan)
