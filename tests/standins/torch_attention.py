"""Stand-ins for what torch computes on GPUs only: varlen_attn, and the operators behind SDPA of nested tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from standins.attend import attend_paged, attend_varlen, check, check_half


def varlen_attn_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Compute it as torch 2.11's does, whose causal mask is a window whose right side is 0."""
    assert scale is not None
    assert type(window_size) is tuple
    check_half(query, key, value)
    left, right = (None if side < 0 else side for side in window_size)
    return attend_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, left=left, right=right)


def varlen_attn_2_13(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    **options: Any,
) -> Tensor:
    if not enable_gqa and query.shape[1] != key.shape[-2]:
        raise ValueError("Expect query and key/value to have the same number of heads")
    if block_table is None:
        return varlen_attn_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)
    check_half(query, key, value)
    check(key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    check(seqused_k is not None, "Requires seqused_k")
    assert seqused_k is not None
    assert max_q == int(cu_seq_q.diff().max())
    assert max_k == int(seqused_k.max())
    left, right = (None if side < 0 else side for side in options.get("window_size", (-1, -1)))
    starts = {"starts_q": cu_seq_q, "scale": options["scale"]}
    return attend_paged(query, key, value, block_table, seqused_k, left=left, right=right, **starts)


def _forward(q: Tensor, k: Tensor, v: Tensor, starts: tuple[Any, ...], causal: bool, scale: float | None) -> Tensor:
    assert scale is not None
    right = 0 if causal else None
    return attend_varlen(q, k, v, *starts, scale=scale, right=right, bottom_right=False)


def flash_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any, p: float, causal: bool,
    debug: bool, *, scale: float | None = None, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    out = _forward(q, k, v, (cu_q, cu_k, max_q, max_k), causal, scale)
    return out, *(torch.empty(0) for _ in range(4))


def efficient_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: None, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any, p: float,
    custom_mask_type: int, compute_log_sumexp: bool = False, *, scale: float | None = None, **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    out = _forward(q[0], k[0], v[0], (cu_q, cu_k, max_q, max_k), custom_mask_type == 1, scale)
    return out[None], torch.empty(0), torch.empty(0), torch.empty(0), max_q, max_k


def cudnn_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: None, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any,
    compute_log_sumexp: bool, p: float = 0.0, causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    out = _forward(q, k, v, (cu_q, cu_k, max_q, max_k), causal, scale)
    return out, torch.empty(0), cu_q, cu_k, max_q, max_k, *(torch.empty(0) for _ in range(3))
