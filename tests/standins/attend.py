"""Attention for stand-ins: differentiable, in float32, with a mask that is a band of diagonals."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    left: int | None = None,
    right: int | None = None,
    bottom_right: bool = True,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (out, lse) for tensors (batch, seqlen, nheads, headdim); lse is (batch, nheads, seqlen_q).

    out has `dtype`, or that of q. Query i sees key j where -left <= j - i - shift <= right; shift is
    seqlen_k - seqlen_q with `bottom_right`, else 0. A query that sees no key has out 0.
    """
    out_dtype = dtype or q.dtype
    group = q.shape[2] // k.shape[2]
    q, k, v = q.float(), *(t.float().repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    i, j = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
    distance = j[None, :] - i[:, None] - (len(j) - len(i) if bottom_right else 0)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    hidden, blind = ~seen, ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(hidden, -math.inf).masked_fill(blind, 0.0)
    p = torch.nn.functional.dropout(torch.softmax(scores, dim=-1).masked_fill(blind, 0.0), dropout_p)
    return torch.einsum("bhij,bjhd->bihd", p, v).to(out_dtype), torch.logsumexp(scores, dim=-1)


def opened(window: tuple[int, int]) -> tuple[int | None, int | None]:
    """Return a window of flash-attn with None instead of -1 for a side without a limit."""
    left, right = window
    return (None if left < 0 else left, None if right < 0 else right)


def check(condition: bool, message: str) -> None:
    """Raise RuntimeError unless the condition holds, as TORCH_CHECK does."""
    if not condition:
        raise RuntimeError(message)


def check_half(*tensors: Tensor) -> None:
    check(all(t.dtype == tensors[0].dtype for t in tensors), "query, key and value must have the same dtype")
    check(tensors[0].dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
