"""Stand-ins for flash-attn 1.0.9, 2.8.3, 3 (hopper, commit 0251105) and 4.0.0b36, with their Python interfaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from standins import module
from standins.attend import append_paged, attend, attend_paged, attend_varlen, check, check_half, opened

VERSIONS_1 = {"flash-attn": "1.0.9"}
VERSIONS_2 = {"flash-attn": "2.8.3.post1"}
VERSIONS_3 = {"flash-attn-3": "3.0.0"}
VERSIONS_4 = {"flash-attn-4": "4.0.0b36"}


def _flash_attn_unpadded_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
) -> Tensor:
    assert softmax_scale is not None
    check_half(q, k, v)
    check(q.shape[1:] == k.shape[1:] == v.shape[1:], "CHECK_SHAPE: no other nheads or headdim")
    check(q.shape[2] % 8 == 0 and q.shape[2] <= 128, "head_size % 8 == 0 and head_size <= 128")
    options: dict[str, Any] = {"right": 0 if causal else None, "bottom_right": False, "dropout_p": dropout_p}
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return attend_varlen(q, k, v, *lengths, scale=softmax_scale, **options)


def _flash_attn_func_2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    assert softmax_scale is not None
    check_half(q, k, v)
    check(q.shape[-1] == v.shape[-1] <= 256, "headdim at most 256, and v of the same")
    check(q.shape[2] % k.shape[2] == 0, "Number of heads in key/value must divide number of heads in query")
    check(not (softcap and dropout_p), "Softcapping does not support dropout for now")
    left, right = opened(window_size)
    options: dict[str, Any] = {"softcap": softcap, "dropout_p": dropout_p, "slopes": alibi_slopes}
    return attend(q, k, v, scale=softmax_scale, left=left, right=0 if causal else right, **options)[0]


def _flash_attn_varlen_func_2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    assert softmax_scale is not None
    check_half(q, k, v)
    check(q.ndim == 3 and q.shape[-1] == v.shape[-1] <= 256, "headdim at most 256, and v of the same")
    check(q.shape[1] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    left, right = opened(window_size)
    options: dict[str, Any] = {"softcap": softcap, "dropout_p": dropout_p, "left": left, "slopes": alibi_slopes}
    if block_table is not None:
        check(k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
        assert max_seqlen_q == int(cu_seqlens_q.diff().max())
        assert max_seqlen_k == int(cu_seqlens_k.diff().max())
        options |= {"scale": softmax_scale, "right": 0 if causal else right, "starts_q": cu_seqlens_q}
        return attend_paged(q, k, v, block_table, cu_seqlens_k.diff(), **options)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return attend_varlen(q, k, v, *lengths, scale=softmax_scale, right=0 if causal else right, **options)


def _flash_attn_with_kvcache_2(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Compute attention over pages; the other caches of the library have no use here."""
    assert softmax_scale is not None
    assert block_table is not None
    assert isinstance(cache_seqlens, Tensor)
    check_half(q, k_cache, v_cache)
    check(q.ndim == 4 and q.shape[-1] == v_cache.shape[-1] <= 256, "headdim at most 256, and v of the same")
    check(k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    if k is not None:
        assert v is not None
        check(k.shape == v.shape == (*q.shape[:2], *k_cache.shape[2:]), "CHECK_SHAPE: k and v")
        starts = list(range(0, k.shape[0] * k.shape[1] + 1, k.shape[1]))
        append_paged(k_cache, v_cache, k.flatten(0, 1), v.flatten(0, 1), block_table, cache_seqlens, starts)
        cache_seqlens = cache_seqlens + k.shape[1]
    left, right = opened(window_size)
    options: dict[str, Any] = {"left": left, "right": 0 if causal else right, "softcap": softcap}
    options["slopes"] = alibi_slopes
    return attend_paged(q, k_cache, v_cache, block_table, cache_seqlens, scale=softmax_scale, **options)


def _flash_attn_func_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor:
    assert softmax_scale is not None
    (d, d_v), fp8 = (q.shape[-1], v.shape[-1]), q.dtype == torch.float8_e4m3fn
    check(d % (16 if fp8 else 8) == 0 and d_v % (16 if fp8 else 8) == 0, "head_size should be a multiple of 8 or 16")
    check(d <= 256, "FlashAttention forward only supports head dimension at most 256")
    check(
        d == d_v or (128 < d <= 192 and 96 < d_v <= 128) or (d <= 64 and d_v <= 512),
        "If V headdim is different from Q/K dim, we only support (128, 192] and (96, 128], or (Q/K <= 64 and V <= 512)",
    )
    if fp8:
        descales = []
        for name, descale in (("q", q_descale), ("k", k_descale), ("v", v_descale)):
            assert descale is not None
            check(descale.shape == (q.shape[0], k.shape[2]), f"{name}_descale must be (batch_size, num_heads_k)")
            check(descale.dtype == torch.float32, f"{name}_descale must be float32")
            descales.append(descale[:, None, :, None])
        group = q.shape[2] // k.shape[2]
        q = q.float() * descales[0].repeat_interleave(group, dim=2)
        k, v = k.float() * descales[1], v.float() * descales[2]
    else:
        check_half(q, k, v)
    left, right = opened(window_size)
    right = 0 if causal else right
    dtype = torch.bfloat16 if fp8 else None
    return attend(q, k, v, scale=softmax_scale, left=left, right=right, softcap=softcap, dtype=dtype)[0]


def _flash_attn_varlen_func_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor:
    assert softmax_scale is not None
    assert q.ndim == 3
    check_half(q, k, v)
    left, right = opened(window_size)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options: dict[str, Any] = {"left": left, "right": 0 if causal else right, "softcap": softcap}
    return attend_varlen(q, k, v, *lengths, scale=softmax_scale, **options)


class Schedule:
    """What get_scheduler_metadata returns: here the arguments that it must have in common with the call."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


def _get_scheduler_metadata_3(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Schedule:
    return Schedule(
        sizes=(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, headdim_v, page_size),
        lengths=(cache_seqlens.tolist(), max_seqlen_k_new, *(t is not None for t in (cu_seqlens_q, cu_seqlens_k_new))),
        kind=(qkv_dtype, causal, window_size, has_softcap),
    )


def _flash_attn_with_kvcache_3(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Schedule | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Compute attention over pages; the other caches of the library have no use here."""
    assert softmax_scale is not None
    assert page_table is not None
    assert isinstance(cache_seqlens, Tensor)
    (d, d_v), fp8 = (q.shape[-1], v_cache.shape[-1]), q.dtype == torch.float8_e4m3fn
    check(q.dtype == k_cache.dtype == v_cache.dtype, "query and key must have the same dtype")
    check(d % (16 if fp8 else 8) == 0 and d <= 256, "head_size should be a multiple of 8 or 16, at most 256")
    check(d == d_v or (128 < d <= 192 and 96 < d_v <= 128) or (d <= 64 and d_v <= 512), "V headdim is different")
    check(all(t.stride(-1) == 1 for t in (q, k_cache, v_cache)), "Input tensor must have contiguous last dimension")
    if cu_seqlens_q is None:
        starts = list(range(0, q.shape[0] * q.shape[1] + 1, q.shape[1]))
        longest = q.shape[1]
    else:
        check(type(max_seqlen_q) is int, "max_seqlen_q must be provided if cu_seqlens_q is provided")
        starts = cu_seqlens_q.tolist()
        longest = max_seqlen_q  # type: ignore[assignment]
        assert longest == max(cu_seqlens_q.diff().tolist())
    batch, pages = page_table.shape
    sizes = (longest, pages * k_cache.shape[1], q.shape[-2], k_cache.shape[2])
    if scheduler_metadata is not None:
        planned = scheduler_metadata.arguments
        assert planned["sizes"] == (batch, *sizes, d, d_v, k_cache.shape[1])
        assert planned["lengths"][0] == cache_seqlens.tolist()
        assert planned["lengths"][1:] == (
            0 if k is None else longest,
            cu_seqlens_q is not None,
            cu_seqlens_k_new is not None,
        )
        assert planned["kind"] == (q.dtype, causal, window_size, softcap > 0)
    if k is not None:
        assert v is not None
        check(k.dtype == q.dtype == v.dtype, "k_new must have the same dtype as query")
        check((k.ndim == 3) == (cu_seqlens_k_new is not None), "CHECK_SHAPE: k and v")
        new = starts if cu_seqlens_k_new is None else cu_seqlens_k_new.tolist()
        flat = (t.flatten(0, -3) for t in (k, v))
        append_paged(k_cache, v_cache, *flat, page_table, cache_seqlens, new)
        cache_seqlens = cache_seqlens + torch.tensor(new, dtype=torch.int32).diff()
    keys = k_cache
    if qv is not None:
        check(d <= 64 and d_v >= 256 and not fp8, "q_v is only supported for head_size <= 64 and hdim_v >= 256.")
        check(qv.shape == (*q.shape[:-1], d_v) and qv.dtype == q.dtype, "CHECK_SHAPE: q_v")
        q, keys = torch.cat([qv, q], -1), torch.cat([v_cache, k_cache], -1)
    options: dict[str, Any] = {"scale": softmax_scale, "softcap": softcap, "starts_q": cu_seqlens_q}
    left, right = opened(window_size)
    options |= {"left": left, "right": 0 if causal else right}
    if fp8:
        assert q_descale is not None
        assert k_descale is not None
        assert v_descale is not None
        for name, descale in (("q", q_descale), ("k", k_descale), ("v", v_descale)):
            check(descale.shape == (batch, k_cache.shape[2]), f"{name}_descale must be (batch_size, num_heads_k)")
        factors = q_descale[:, 0].repeat_interleave(torch.tensor(starts).diff())
        q = q.float() * factors.view(*q.shape[:-2], 1, 1)
        options |= {"descale": (k_descale[:, 0], v_descale[:, 0]), "dtype": torch.bfloat16}
    return attend_paged(q, keys, v_cache, page_table, cache_seqlens, **options)


def _flash_attn_func_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    aux_tensors: Any = None,
    aux_scalars: Any = None,
    block_sparse_tensors: Any = None,
    block_sparse_tensors_bwd: Any = None,
    return_lse: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    assert softmax_scale is not None
    check_half(q, k, v)
    assert all(8 <= d <= 256 and d % 8 == 0 for d in (q.shape[-1], v.shape[-1]))
    left, right = window_size
    options: dict[str, Any] = {"left": left, "right": 0 if causal else right, "sink": _learnable_sink(learnable_sink)}
    options |= _scores_changed(score_mod, score_mod_bwd, aux_tensors, q.requires_grad)
    options |= {"scale": softmax_scale, "softcap": softcap}
    if block_sparse_tensors is None:
        assert mask_mod is None
        return attend(q, k, v, **options)
    assert not causal, "its backward does not drop causal for a mask_mod, as its forward does"
    assert left is right is None
    mask = _computed(q, k, mask_mod, aux_tensors)
    visible = _visible(q, k, v, block_sparse_tensors, mask, FORWARD_TILES)
    if not q.requires_grad:
        return attend(q, k, v, visible=visible, **options)
    backward = _visible(q, k, v, block_sparse_tensors_bwd, mask, BACKWARD_TILES, by_keys=True)
    out, lse = attend(q, k, v, visible=visible, **options)
    return out + _of_the_backward(out, attend(q, k, v, visible=backward, **options)[0]), lse


def _of_the_backward(forward: Tensor, backward: Tensor) -> Tensor:
    """Return zero, whose gradients turn those of one tensor into those of another."""
    difference = backward - forward
    return difference - difference.detach()


# Head dims up to the first number: tile_m and tile_n with sparse blocks of 128 queries on Hopper (interface.py)
FORWARD_TILES = ((128, 128, 128), (192, 128, 128), (256, 128, 80))
BACKWARD_TILES = ((64, 128, 128), (128, 64, 128), (192, 64, 96), (256, 64, 64))


class BlockSparseTensorsTorch(NamedTuple):
    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor | None = None
    full_block_idx: Tensor | None = None
    cu_total_m_blocks: Tensor | None = None
    cu_block_idx_offsets: Tensor | None = None
    block_size: tuple[int, int] | None = None
    dq_write_order: Tensor | None = None
    dq_write_order_full: Tensor | None = None
    spt: bool | None = None


def _computed(q: Tensor, k: Tensor, mask_mod: Any, aux_tensors: Any) -> Tensor:
    """Return what a mask_mod says of the pairs of whole tiles, (seqlen_q, seqlen_k) rounded up; x[0] is all of x."""
    sizes = (-(-q.shape[1] // 128) * 128, -(-k.shape[1] // 128) * 128)
    i, j = (torch.arange(n, dtype=torch.int32) for n in sizes)
    info = SimpleNamespace(seqlen_q=q.shape[1], seqlen_k=k.shape[1])
    zero = torch.zeros(1, dtype=torch.int32)
    found: Tensor = mask_mod(zero, zero, i[None, :, None].expand(1, *sizes), j.expand(1, *sizes), info, aux_tensors)
    assert found.shape == (1, *sizes)
    assert found.dtype == torch.bool
    return found[0]


def _visible(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: BlockSparseTensorsTorch,
    mask: Tensor,
    tiles: Any,
    *,
    by_keys: bool = False,
) -> Tensor:
    """Return which pairs a kernel computes that visits these blocks, (1, 1, seqlen_q, seqlen_k).

    Keys beyond the last are hidden in the first block only that it takes from the end of each list; those that it sees
    elsewhere are an error here, as is a block that is listed twice.
    """
    (batch, seqlen_q, nheads, d), seqlen_k = q.shape, k.shape[1]
    assert lists.block_size is not None
    size_q, size_k = lists.block_size
    tile_m, tile_n = next(sizes for most, *sizes in tiles if d <= most)
    if not by_keys and 128 < d <= 192 and v.shape[-1] > 128:
        tile_n = 112
    assert size_q % tile_m == 0, f"Block sparsity requires sparse_block_size[0] to be a multiple of tile_m={tile_m}"
    assert size_k == tile_n, f"Block sparsity requires sparse_block_size[1]={size_k} to match tile_n={tile_n}"
    blocks = (-(-seqlen_q // size_q), -(-seqlen_k // size_k))
    rows, columns = reversed(blocks) if by_keys else blocks
    whole = torch.zeros(blocks[0] * size_q, blocks[1] * size_k, dtype=torch.bool)
    padded = torch.zeros_like(whole)
    padded[: len(mask), : mask.shape[1]] = mask[: len(padded), : padded.shape[1]]
    of_partial, of_full = (lists.mask_block_cnt, lists.mask_block_idx), (lists.full_block_cnt, lists.full_block_idx)
    for (counts, indices), given in ((of_partial, padded), (of_full, torch.ones_like(padded))):
        assert counts is not None
        assert indices is not None
        assert counts.dtype == indices.dtype == torch.int32, "tensors must have dtype torch.int32"
        assert counts.shape in ((1, 1, rows), (batch, nheads, rows))
        assert indices.shape[:3] == counts.shape
        assert indices.shape[3] <= columns
        assert indices.is_contiguous()
        for row, (count, listed) in enumerate(zip(counts[0, 0].tolist(), indices[0, 0].tolist(), strict=True)):
            for place, other in enumerate(listed[:count]):
                m, n = (other, row) if by_keys else (row, other)
                assert 0 <= m < blocks[0]
                assert 0 <= n < blocks[1]
                at = slice(m * size_q, (m + 1) * size_q), slice(n * size_k, (n + 1) * size_k)
                assert not whole[at].any(), "a block twice"
                whole[at] = given[at]
                beyond = whole[at[0], seqlen_k:].any() if (n + 1) * size_k > seqlen_k else False
                assert by_keys or not beyond or place == count - 1, "keys beyond the last are read"
    return whole[None, None, :seqlen_q, :seqlen_k]


def _scores_changed(score_mod: Any, score_mod_bwd: Any, aux_tensors: Any, grad: bool) -> dict[str, Any]:
    """Return the option of `attend` that calls `score_mod`, head by head; the backward needs that of a bias."""
    if score_mod is None:
        return {}
    if grad:
        assert score_mod_bwd is not None, "score_mod_bwd is required when score_mod is provided"
        assert score_mod_bwd(5.0, *range(6), aux_tensors) == 5.0

    def change(scores: Tensor) -> Tensor:
        i, j = (torch.arange(n) for n in scores.shape[-2:])
        info = SimpleNamespace(seqlen_q=len(i), seqlen_k=len(j))
        places = {"q_idx": i[:, None].expand(scores.shape[-2:]), "kv_idx": j.expand(scores.shape[-2:])}
        heads = (
            score_mod(of, None, torch.tensor([h]), **places, seqlen_info=info, aux_tensors=aux_tensors)
            for h, of in enumerate(scores.unbind(1))
        )
        return torch.stack([*heads], dim=1)

    return {"change": change}


class Registers:
    """What cute.make_rmem_tensor returns."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.values = torch.zeros(size, dtype=dtype)

    def __setitem__(self, place: int, value: Tensor) -> None:
        self.values[place] = value

    def load(self) -> Tensor:
        return self.values


def _cutlass() -> dict[str, Any]:
    """Return what a score_mod needs of CuTe DSL, for torch's tensors."""
    cute = module(
        "cutlass.cute",
        jit=lambda function: function,
        make_rmem_tensor=Registers,
        full_like=torch.full_like,
        TensorSSA=lambda value, shape, dtype: value,
    )
    math = module("cutlass._mlir.dialects.math", absi=torch.abs)
    names = ("cutlass._mlir", "cutlass._mlir.dialects")
    top = module("cutlass", cute=cute, Float32=torch.float32, Int32=torch.int32)
    return {made.__name__: made for made in (top, cute, *map(module, names), math)}


def _learnable_sink(sink: Tensor | None) -> Tensor | None:
    check(sink is None or sink.dtype != torch.float64, "learnable_sink must be float16, bfloat16, or float32")
    return sink


def _flash_attn_varlen_func_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    block_sparse_tensors: Any = None,
    aux_tensors: Any = None,
    aux_scalars: Any = None,
    return_lse: bool = False,
    scheduler_metadata: Any = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    assert softmax_scale is not None
    check_half(q, k, v)
    left, right = window_size
    options: dict[str, Any] = {"left": left, "right": 0 if causal else right, "softcap": softcap}
    options["sink"] = _learnable_sink(learnable_sink)
    options |= _scores_changed(score_mod, score_mod_bwd, aux_tensors, q.requires_grad)
    if page_table is not None:
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert seqused_k is not None
        assert max_seqlen_k is None or type(max_seqlen_k) is int
        assert num_splits == 1, "SplitKV not supported on SM 9.0"
        assert q.ndim == (4 if cu_seqlens_q is None else 3)
        assert cu_seqlens_q is None or max_seqlen_q == int(cu_seqlens_q.diff().max())
        options |= {"scale": softmax_scale, "starts_q": cu_seqlens_q}
        return attend_paged(q, k, v, page_table, seqused_k, **options), None
    assert cu_seqlens_q is not None
    assert cu_seqlens_k is not None
    assert q.ndim == 3
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return attend_varlen(q, k, v, *lengths, scale=softmax_scale, **options), None


def version_1() -> dict[str, Any]:
    interface = module("flash_attn.flash_attn_interface", flash_attn_unpadded_func=_flash_attn_unpadded_func)
    return {"flash_attn": module("flash_attn"), "flash_attn.flash_attn_interface": interface}


def version_2() -> dict[str, Any]:
    interface = module("flash_attn.flash_attn_interface", flash_attn_func=_flash_attn_func_2)
    functions = {
        "flash_attn_func": _flash_attn_func_2,
        "flash_attn_varlen_func": _flash_attn_varlen_func_2,
        "flash_attn_with_kvcache": _flash_attn_with_kvcache_2,
    }
    top = module("flash_attn", **functions, __version__="2.8.3.post1")
    return {"flash_attn": top, "flash_attn.flash_attn_interface": interface}


def version_3(*left_out: str) -> dict[str, Any]:
    """Return the modules of a build of flash-attn 3; `left_out` as setup.py writes it: FLASHATTENTION_DISABLE_FP16."""
    flags = dict.fromkeys(("FLASHATTENTION_DISABLE_FP16", "FLASHATTENTION_ENABLE_VCOLMAJOR"), False)
    config = module("flash_attn_config", CONFIG={"build_flags": flags | dict.fromkeys(left_out, True)})
    functions = {
        "flash_attn_func": _flash_attn_func_3,
        "flash_attn_varlen_func": _flash_attn_varlen_func_3,
        "flash_attn_with_kvcache": _flash_attn_with_kvcache_3,
        "get_scheduler_metadata": _get_scheduler_metadata_3,
    }
    interface = module("flash_attn_interface", **functions)
    return {"flash_attn_interface": interface, "flash_attn_config": config}


def version_4(*, results: int = 5) -> dict[str, Any]:
    """Return the modules of flash-attn 4; its forward has 5 results in 4.0.0b36, and 2 until 4.0.0b18."""

    def forward() -> None: ...

    forward.__annotations__["return"] = tuple[(Tensor,) * results]  # type: ignore[misc]
    functions = {"flash_attn_func": _flash_attn_func_4, "flash_attn_varlen_func": _flash_attn_varlen_func_4}
    cute = module("flash_attn.cute", **functions)
    interface = module("flash_attn.cute.interface", _flash_attn_fwd=forward)
    utils = module("flash_attn.cute.utils", scalar_to_ssa=lambda value, dtype: value[None].to(dtype))
    cute.utils = utils  # type: ignore[attr-defined]
    sparsity = module("flash_attn.cute.block_sparsity", BlockSparseTensorsTorch=BlockSparseTensorsTorch)
    found = {made.__name__: made for made in (module("flash_attn"), cute, interface, utils, sparsity)}
    return found | _cutlass()
