"""FlashMLA: MLA with absorbed weights over a cache of pages, of all keys or of keys that an indexer chose (Hopper).

Checked against sgl-flash-mla 1.0.0, whose "legacy" kernels are those for Hopper, which upstream dropped in September
2026. It has three forwards, for rows of 576 columns of which 512 are v:

- dense decode over pages of 64 tokens, in bf16 or fp16;
- keys chosen for each query (mask topk) in bf16: one list of rows of the whole cache for each query, whatever the
  batch. It is the library's prefill, and serves decode as well;
- keys chosen for each query over a cache in fp8: the library's sparse decode, with rows of 656 bytes (512 e4m3 values,
  four float32 factors, of 128 values each, and 64 bf16 values). The one factor of the case's cache becomes all four.

The lists of chosen keys come from the case (core/masks.py) in `prepare`: the time of an indexer is not in the call. An
entry of -1 is no key. The kernels read out of bounds for other numbers beyond the cache, which are never given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import Paste
from attnbench.backends.shared.libraries import Library
from attnbench.core import masks, pages
from attnbench.core.backend import Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

COLUMNS, OF_V = 576, 512  # columns of a row, and of its part v
ROW_BYTES = 656  # of a row in an fp8 cache
PART = 128  # e4m3 values with one factor


class FlashMla(Library):
    name = "flashmla"
    module = "flash_mla"
    distributions: ClassVar = ("sgl-flash-mla", "tokenspeed-flashmla", "flash-mla")
    required_name = "get_mla_decoding_metadata"  # of builds that have the kernels for Hopper
    install = "pip install --no-deps sgl-flash-mla"  # it asks for torch 2.14.1 and runs with 2.11
    paste = Paste(
        ("from flash_mla import flash_mla_with_kvcache", "from flash_mla import get_mla_metadata"),
        {
            "latent": "# q: (batch, seqlen_q, nheads, 576); cache: (pages, 64, 1, 576)\n"
            "out, lse = flash_mla_with_kvcache(\n    q, cache, page_table, seqlens_k, 512, get_mla_metadata()[0],\n"
            "    use_legacy=True{options}\n)"
        },
        causal="causal=True",
        scale="softmax_scale={scale}",
    )
    engine_names: ClassVar = {"vllm mla": "FLASHMLA", "sglang mla": "flashmla"}
    efficiency = 0.6
    limits: ClassVar = Limits(
        capability=(9, 0),
        capability_below=(9, 1),
        amd=False,
        backward=False,
        chosen=True,
        ragged=True,
        page_sizes=(64,),
        cache_dtypes=("fp8",),
        latent=True,
    )
    forward_kernels = "flash_fwd_splitkv_mla_kernel"
    chosen_kernels = "sparse_attn_fwd_kernel"
    fp8_kernels = "flash_fwd_splitkv_mla_fp8_sparse_kernel"

    def unsupported(self, case: Case, device: Device) -> str | None:
        s, fp8 = case.shape, case.cache_dtype == "fp8"
        if reason := super().unsupported(case, device):
            return reason
        if not case.latent or (s.headdim, s.headdim_v) != (COLUMNS, OF_V):
            return f"latent rows of {COLUMNS} columns with {OF_V} of v only"
        if not case.mask:
            if case.page_size != 64 or not case.has_like_queries:
                return "of all keys in a cache of pages of 64 tokens, and with equal numbers of queries, only"
            return "an fp8 cache with chosen keys only (mask topk)" if fp8 else None
        if case.dtype != "bf16":
            return "chosen keys in bf16 only"
        if s.nheads % 64 or (fp8 and s.nheads > 128):
            return f"chosen keys with {'64 or 128' if fp8 else 'a multiple of 64'} query heads only"
        multiple = 64 if fp8 else 128
        if (chosen := masks.chosen(case.mask)) % multiple:
            return f"{chosen} chosen keys are not a multiple of {multiple}"
        return None

    def signature(self, case: Case, device: Device) -> Signature:
        if not case.mask:
            return super().signature(case, device)
        return Signature((self.fp8_kernels if case.cache_dtype == "fp8" else self.chosen_kernels,))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        if not case.mask:
            return _dense(case, inputs)
        return _chosen_fp8(case, inputs) if case.cache_dtype == "fp8" else _chosen(case, inputs)


def _dense(case: Case, inputs: Inputs) -> Prepared:
    import flash_mla

    q, lengths = pages.queries(case, inputs.q), pages.seqlens_k(case, inputs.q.device)
    plans = [flash_mla.get_mla_metadata()[0]]  # the first launch fills it

    def launch() -> Tensor:
        out: Tensor = flash_mla.flash_mla_with_kvcache(
            *(q, inputs.k, inputs.page_table, lengths, OF_V, plans[0]),
            softmax_scale=case.softmax_scale,
            causal=case.causal,
            use_legacy=True,
        )[0]
        return out

    def plan() -> None:
        plans[0] = flash_mla.get_mla_metadata()[0]

    return Prepared(launch, lambda out: {"out": out.view(*inputs.q.shape[:3], OF_V)}, plan=plan)


def _chosen(case: Case, inputs: Inputs) -> Prepared:
    import flash_mla

    q, cache, rows = inputs.q.flatten(0, 1), inputs.k.flatten(0, 1), chosen_rows(case, inputs).flatten(0, 1)[:, None]

    def launch() -> Tensor:
        out: Tensor = flash_mla.flash_mla_sparse_fwd(q, cache, rows, case.softmax_scale, use_legacy=True)[0]
        return out

    return Prepared(launch, lambda out: {"out": out.view(*inputs.q.shape[:3], OF_V)})


def _chosen_fp8(case: Case, inputs: Inputs) -> Prepared:
    import flash_mla
    import torch

    q, rows = pages.queries(case, inputs.q), chosen_rows(case, inputs)
    factor, k = inputs.descale[0], inputs.k
    cache = torch.empty(*k.shape[:3], ROW_BYTES, dtype=torch.uint8, device=k.device)
    values, factors, rest = cache.split([OF_V, OF_V // PART * 4, 2 * (COLUMNS - OF_V)], dim=-1)
    values.copy_(k[..., :OF_V].view(torch.uint8))
    factors.view(torch.float32).fill_(factor)
    rest.view(torch.bfloat16).copy_(k[..., OF_V:].float() * factor)
    plan = flash_mla.get_mla_metadata()[0]

    def launch() -> Tensor:
        out: Tensor = flash_mla.flash_mla_with_kvcache(
            *(q, cache, None, None, OF_V, plan),
            softmax_scale=case.softmax_scale,
            is_fp8_kvcache=True,
            indices=rows,
            use_legacy=True,
        )[0]
        return out

    reads = {"k": (values.view(torch.float8_e4m3fn), rest.view(torch.bfloat16))}
    return Prepared(launch, lambda out: {"out": out.view(*inputs.q.shape[:3], OF_V)}, reads=reads)


def chosen_rows(case: Case, inputs: Inputs) -> Tensor:
    """Return the rows of the keys chosen for each query, in k seen as rows: (batch, seqlen_q, number) int32.

    The rows are those of a cache of pages, or of contiguous keys, one sequence after the other; -1 is none.
    """
    import torch

    s, device = case.shape, inputs.q.device
    keys = masks.chosen_keys(case.mask, torch.arange(s.seqlen_k - s.seqlen_q, s.seqlen_k, device=device))
    places = torch.arange(s.batch * s.seqlen_k, device=device).view(s.batch, s.seqlen_k)
    if inputs.page_table is not None:
        places = pages.key_places(case, inputs.page_table)
    return torch.where(keys < 0, -1, places[:, keys.clamp(min=0)]).to(torch.int32)
