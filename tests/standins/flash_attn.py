"""Stand-ins for flash-attn 1.0.9, 2.8.3, 3 (hopper, commit 0251105) and 4.0.0b36, with their Python interfaces."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from standins import function, modules
from standins.attend import append_paged, attend, attend_paged, attend_varlen, check, check_half

VERSIONS_1 = {"flash-attn": "1.0.9"}
VERSIONS_2 = {"flash-attn": "2.8.3.post1"}
VERSIONS_3 = {"flash-attn-3": "3.0.0"}
VERSIONS_TOKENSPEED = {"tokenspeed-fa3": "3.0.0.post20260810"}
VERSIONS_4 = {"flash-attn-4": "4.0.0b36"}
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
CACHE = (
    "k=None, v=None, {}rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None"
)


def band(of: Any) -> dict[str, Any]:
    """Return the options of `attend` with common names in all versions from 2 on."""
    left, right = (None if side == -1 else side for side in of.window_size)
    return {"scale": of.softmax_scale, "left": left, "right": 0 if of.causal else right, "softcap": of.softcap}


def _varlen(of: Any, **options: Any) -> Tensor:
    check_half(of.q, of.k, of.v)
    lengths = (of.cu_seqlens_q, of.cu_seqlens_k, of.max_seqlen_q, of.max_seqlen_k)
    return attend_varlen(of.q, of.k, of.v, *lengths, **options)


def _unpadded_1(of: Any) -> Tensor:
    check(of.q.shape[1:] == of.k.shape[1:] == of.v.shape[1:], "CHECK_SHAPE: no other nheads or headdim")
    right = 0 if of.causal else None
    return _varlen(of, scale=of.softmax_scale, right=right, bottom_right=False, dropout_p=of.dropout_p)


def version_1() -> dict[str, ModuleType]:
    unpadded = function(
        f"q, k, v, {LENGTHS}, dropout_p, softmax_scale=None, causal=False, return_attn_probs=False, "
        "deterministic=False",
        _unpadded_1,
    )
    return modules({"flash_attn.flash_attn_interface": {"flash_attn_unpadded_func": unpadded}})


OPTIONS_2 = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)


def _dense_2(of: Any) -> Tensor:
    check_half(of.q, of.k, of.v)
    check(not (of.softcap and of.dropout_p), "Softcapping does not support dropout for now")
    return attend(of.q, of.k, of.v, dropout_p=of.dropout_p, slopes=of.alibi_slopes, **band(of))[0]


def _varlen_2(of: Any) -> Tensor:
    options = {"slopes": of.alibi_slopes, "dropout_p": of.dropout_p, **band(of)}
    if of.block_table is None:
        return _varlen(of, **options)
    check(of.k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    return attend_paged(of.q, of.k, of.v, of.block_table, of.cu_seqlens_k.diff(), starts_q=of.cu_seqlens_q, **options)


def _cached_2(of: Any) -> Tensor:
    check(of.k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    seqlens = of.cache_seqlens
    if of.k is not None:
        batch, new = of.k.shape[:2]
        flat = (t.flatten(0, 1) for t in (of.k, of.v))
        append_paged(of.k_cache, of.v_cache, *flat, of.block_table, seqlens, range(0, batch * new + 1, new))
        seqlens = seqlens + new
    return attend_paged(of.q, of.k_cache, of.v_cache, of.block_table, seqlens, slopes=of.alibi_slopes, **band(of))


def version_2() -> dict[str, ModuleType]:
    functions = {
        "flash_attn_func": function(f"q, k, v, {OPTIONS_2}", _dense_2),
        "flash_attn_varlen_func": function(f"q, k, v, {LENGTHS}, {OPTIONS_2}, block_table=None", _varlen_2),
        "flash_attn_with_kvcache": function(
            f"q, k_cache, v_cache, {CACHE.format('')}, block_table=None, softmax_scale=None, causal=False, "
            "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
            "return_softmax_lse=False",
            _cached_2,
        ),
    }
    return modules({"flash_attn": functions, "flash_attn.flash_attn_interface": functions})


DESCALE_3 = "q_descale=None, k_descale=None, v_descale=None"
OPTIONS_3 = (
    f"softmax_scale=None, causal=False, qv=None, {DESCALE_3}, window_size=(-1, -1), attention_chunk=0, softcap=0.0, "
    "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
)


def _widened(of: Any, batch: int, *given: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return fp8 q, k and v times their factors, one for each, and the dtype of out; others unchanged."""
    check(all(t.dtype == given[0].dtype for t in given), "query and key must have the same dtype")
    if given[0].dtype != torch.float8_e4m3fn:
        return given, {}
    factors = (of.q_descale, of.k_descale, of.v_descale)
    for factor in factors:
        check(factor.shape == (batch, given[1].shape[2]) and factor.dtype == torch.float32, "(batch_size, num_heads_k)")
    wide = tuple(t.float() * factor[0, 0] for t, factor in zip(given, factors, strict=True))
    return wide, {"dtype": torch.bfloat16}


def varlen_3(of: Any) -> Tensor:
    return _varlen(of, **band(of))


def _dense_3(of: Any) -> Tensor:
    given, options = _widened(of, len(of.q), of.q, of.k, of.v)
    return attend(*given, **band(of), **options)[0]


def schedule_3(of: Any) -> dict[str, Any]:
    """Return the arguments that get_scheduler_metadata and the call must share."""
    of.cache_seqlens = of.cache_seqlens.tolist()
    return {name: value for name, value in vars(of).items() if not isinstance(value, Tensor)}


def cached_3(of: Any) -> Tensor:
    starts, seqlens, batch = of.cu_seqlens_q, of.cache_seqlens, len(of.page_table)
    longest = of.q.shape[1] if starts is None else of.max_seqlen_q
    check(starts is None or longest == int(starts.diff().max()), "max_seqlen_q")
    call = {
        "batch_size": batch,
        "max_seqlen_q": longest,
        "max_seqlen_k": of.page_table.shape[1] * of.k_cache.shape[1],
        "num_heads_q": of.q.shape[-2],
        "num_heads_kv": of.k_cache.shape[2],
        "headdim": of.q.shape[-1],
        "headdim_v": of.v_cache.shape[-1],
        "page_size": of.k_cache.shape[1],
        "cache_seqlens": seqlens.tolist(),
        "qkv_dtype": of.q.dtype,
        "max_seqlen_k_new": 0 if of.k is None else longest,
        "causal": of.causal,
        "window_size": of.window_size,
        "has_softcap": of.softcap > 0,
    }
    check(of.scheduler_metadata is None or call.items() <= of.scheduler_metadata.items(), "another schedule")
    if of.k is not None:
        check((of.k.ndim == 3) == (of.cu_seqlens_k_new is not None), "CHECK_SHAPE: k and v")
        new = range(0, batch * longest + 1, longest) if starts is None else of.cu_seqlens_k_new.tolist()
        flat = (t.flatten(0, -3) for t in (of.k, of.v))
        append_paged(of.k_cache, of.v_cache, *flat, of.page_table, seqlens, new)
        seqlens = seqlens + torch.tensor(new, dtype=torch.int32).diff()
    (q, k, v), options = _widened(of, batch, of.q, of.k_cache, of.v_cache)
    if of.qv is not None:
        q, k = torch.cat([of.qv, q], -1), torch.cat([v, k], -1)
    return attend_paged(q, k, v, of.page_table, seqlens, starts_q=starts, **band(of), **options)


def version_3(*left_out: str) -> dict[str, ModuleType]:
    """Return the modules of a build of flash-attn 3; `left_out` is in setup.py's form: FLASHATTENTION_DISABLE_FP16."""
    flags = dict.fromkeys(("FLASHATTENTION_DISABLE_FP16", "FLASHATTENTION_ENABLE_VCOLMAJOR"), False)
    functions = {
        "flash_attn_func": function(f"q, k, v, {OPTIONS_3}", _dense_3),
        "flash_attn_varlen_func": function(
            f"q, k, v, {LENGTHS}, seqused_q=None, seqused_k=None, {OPTIONS_3}", varlen_3
        ),
        "flash_attn_with_kvcache": function(
            f"q, k_cache, v_cache, {CACHE.format('qv=None, ')}, page_table=None, cu_seqlens_q=None, "
            f"cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, {DESCALE_3}, softmax_scale=None, "
            "causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
            "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
            cached_3,
        ),
        "get_scheduler_metadata": function(
            "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens, "
            "qkv_dtype=None, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None, "
            "page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0, "
            "has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0",
            schedule_3,
        ),
    }
    config = {"CONFIG": {"build_flags": flags | dict.fromkeys(left_out, True)}}
    return modules({"flash_attn_interface": functions, "flash_attn_config": config})


# The features that the wheel tokenspeed-fa3 lacks, as its flash_attn_config has them
LEFT_OUT_OF_TOKENSPEED = (
    *(f"FLASHATTENTION_DISABLE_{switch}" for switch in ("BACKWARD", "SOFTCAP", "HDIM96", "SM8x")),
    *(f"FLASH_ATTENTION_DISABLE_{switch}" for switch in ("HDIMDIFF64", "HDIMDIFF192")),
)


DENSE_4 = (
    "q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None), "
    "learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, "
    "score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, "
    "block_sparse_tensors_bwd=None, return_lse=False, gather_bwd_recompute_p=False, gather_bwd_token_chunk=None"
)
VARLEN_4 = (
    "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, "
    "seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False, "
    "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "score_mod=None, score_mod_bwd=None, mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, "
    "return_lse=False, scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False, "
    "gather_bwd_recompute_p=False, gather_bwd_token_chunk=None"
)


class BlockSparseTensorsTorch(NamedTuple):
    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor
    full_block_idx: Tensor
    cu_total_m_blocks: Tensor | None = None
    cu_block_idx_offsets: Tensor | None = None
    block_size: tuple[int, int] = (0, 0)


def _options_4(of: Any) -> dict[str, Any]:
    """Return the options of `attend`; a score_mod is called for each head."""
    options = band(of) | {"sink": of.learnable_sink}
    if of.score_mod is None:
        return options
    check(of.score_mod_bwd is not None or not of.q.requires_grad, "score_mod_bwd is required")

    def change(scores: Tensor) -> Tensor:
        i, j = (torch.arange(n) for n in scores.shape[-2:])
        info = SimpleNamespace(seqlen_q=len(i), seqlen_k=len(j))
        places = {"q_idx": i[:, None].expand(scores.shape[-2:]), "kv_idx": j.expand(scores.shape[-2:])}
        heads = (
            of.score_mod(head, None, torch.tensor([h]), **places, seqlen_info=info, aux_tensors=of.aux_tensors)
            for h, head in enumerate(scores.unbind(1))
        )
        return torch.stack([*heads], dim=1)

    return options | {"change": change}


def _dense_4(of: Any) -> tuple[Tensor, Tensor | None]:
    check_half(of.q, of.k, of.v)
    options = _options_4(of)
    if of.block_sparse_tensors is not None:
        check(not of.causal and of.window_size == (None, None), "a mask_mod holds them")
        seen = _seen(of, of.block_sparse_tensors, by_keys=False)
        if of.q.requires_grad:
            check(torch.equal(seen, _seen(of, of.block_sparse_tensors_bwd, by_keys=True)), "another mask backward")
        before = options.pop("change", lambda scores: scores)
        options["change"] = lambda scores: before(scores).masked_fill(~seen, float("-inf"))
    return attend(of.q, of.k, of.v, **options)


def _seen(of: Any, lists: BlockSparseTensorsTorch, *, by_keys: bool) -> Tensor:
    """Return the pairs that a kernel computes in the listed blocks, (seqlen_q, seqlen_k) bool.

    It calls the mask_mod for pairs of whole tiles. x[0] of an index stands for all of x.
    """
    (size_q, size_k), seqlen_q, seqlen_k = lists.block_size, of.q.shape[1], of.k.shape[1]
    sizes = (-(-seqlen_q // 128) * 128, -(-seqlen_k // 128) * 128)
    i, j = (torch.arange(n, dtype=torch.int32) for n in sizes)
    zero = torch.zeros(1, dtype=torch.int32)
    info = SimpleNamespace(seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    places = (i[None, :, None].expand(1, *sizes), j.expand(1, *sizes))
    mask = of.mask_mod(zero, zero, *places, info, of.aux_tensors)[0, :seqlen_q, :seqlen_k]
    found = torch.zeros_like(mask)
    for counts, indices, given in (
        (lists.mask_block_cnt, lists.mask_block_idx, mask),
        (lists.full_block_cnt, lists.full_block_idx, torch.ones_like(mask)),
    ):
        check(counts.dtype == indices.dtype == torch.int32, "tensors must have dtype torch.int32")
        for row, (count, listed) in enumerate(zip(counts[0, 0].tolist(), indices[0, 0].tolist(), strict=True)):
            check(sorted(listed[:count]) == listed[:count], "keys beyond the last are hidden in the last block alone")
            for other in listed[:count]:
                m, n = (other, row) if by_keys else (row, other)
                at = slice(m * size_q, (m + 1) * size_q), slice(n * size_k, (n + 1) * size_k)
                found[at] |= given[at]
    return found


def _varlen_4(of: Any) -> tuple[Tensor, None]:
    if of.page_table is None:
        return _varlen(of, **_options_4(of)), None
    check(of.cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k")
    options = _options_4(of) | {"starts_q": of.cu_seqlens_q}
    return attend_paged(of.q, of.k, of.v, of.page_table, of.seqused_k, **options), None


class Registers:
    """The result of cute.make_rmem_tensor."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.values = torch.zeros(size, dtype=dtype)

    def __setitem__(self, place: int, value: Tensor) -> None:
        self.values[place] = value

    def load(self) -> Tensor:
        return self.values


CUTE = {  # the part of CuTe DSL that a score_mod and a mask_mod use, for torch's tensors
    "jit": lambda function: function,
    "make_rmem_tensor": Registers,
    "full_like": torch.full_like,
    "TensorSSA": lambda value, shape, dtype: value,
}


def version_4(*, results: int = 5) -> dict[str, ModuleType]:
    """Return the modules of flash-attn 4; its forward has 5 results in 4.0.0b36, and 2 until 4.0.0b18."""

    def forward() -> None: ...

    forward.__annotations__["return"] = tuple[(Tensor,) * results]  # type: ignore[misc]
    return modules(
        {
            "flash_attn.cute": {
                "flash_attn_func": function(DENSE_4, _dense_4),
                "flash_attn_varlen_func": function(VARLEN_4, _varlen_4),
            },
            "flash_attn.cute.interface": {"_flash_attn_fwd": forward},
            "flash_attn.cute.utils": {"scalar_to_ssa": lambda value, dtype: value[None].to(dtype)},
            "flash_attn.cute.block_sparsity": {"BlockSparseTensorsTorch": BlockSparseTensorsTorch},
            "cutlass": {"Float32": torch.float32, "Int32": torch.int32},
            "cutlass.cute": CUTE,
            "cutlass._mlir.dialects.math": {"absi": torch.abs},
        }
    )
