"""Stand-ins for functions of torch for GPUs only: varlen_attn, and the operators of SDPA with nested tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from standins import function
from standins.attend import attend_paged, attend_varlen, check, check_half, opened


def _varlen(of: Any) -> Tensor:
    """Compute varlen_attn; as in torch a causal mask is a window with the right side 0."""
    check_half(of.query, of.key, of.value)
    left, right = opened(of.window_size)
    options: dict[str, Any] = {"scale": of.scale, "left": left, "right": right}
    if getattr(of, "block_table", None) is not None:
        check(of.key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
        check((of.max_q, of.max_k) == (int(of.cu_seq_q.diff().max()), int(of.seqused_k.max())), "the longest sequence")
        options["starts_q"] = of.cu_seq_q
        return attend_paged(of.query, of.key, of.value, of.block_table, of.seqused_k, **options)
    lengths = (of.cu_seq_q, of.cu_seq_k, of.max_q, of.max_k)
    return attend_varlen(of.query, of.key, of.value, *lengths, **options)


def _with_groups(of: Any) -> Tensor:
    check(of.enable_gqa or of.query.shape[1] == of.key.shape[-2], "query and key/value must have the same heads")
    return _varlen(of)


VARLEN = "query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)"
varlen_attn_2_11 = function(VARLEN, _varlen)
varlen_attn_2_13 = function(
    f"{VARLEN}, enable_gqa=False, seqused_k=None, block_table=None, num_splits=None", _with_groups
)


def _forward(of: Any) -> Tensor:
    """Compute attention of packed sequences with a causal mask aligned top-left."""
    q, k, v = (t.flatten(0, -3) for t in (of.q, of.k, of.v))
    options: dict[str, Any] = {"scale": of.scale, "right": 0 if of.causal else None, "bottom_right": False}
    out = attend_varlen(q, k, v, of.cu_q, of.cu_k, of.max_q, of.max_k, **options)
    return out.view(*of.q.shape[:-1], -1)


def _empty(number: int) -> tuple[Tensor, ...]:
    return tuple(torch.empty(0) for _ in range(number))


LENGTHS = "cu_q, cu_k, max_q, max_k"
flash_attention_forward = function(
    f"q, k, v, {LENGTHS}, p, causal, debug, *, scale=None, **_", lambda of: (_forward(of), *_empty(4))
)
efficient_attention_forward = function(
    f"q, k, v, bias, {LENGTHS}, p, causal, compute_log_sumexp=False, *, scale=None, **_",  # 0 or 1: a kind of mask
    lambda of: (_forward(of), *_empty(3), of.max_q, of.max_k),
)
cudnn_attention_forward = function(
    f"q, k, v, bias, {LENGTHS}, compute_log_sumexp, p=0.0, causal=False, debug=False, *, scale=None",
    lambda of: (_forward(of), *_empty(1), of.cu_q, of.cu_k, of.max_q, of.max_k, *_empty(3)),
)
