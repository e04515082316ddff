"""Right attention functions, as a person would pass them to attnbench, on any device.

Wrong kernels are built on them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[..., Tensor]


def probabilities(q: Tensor, k: Tensor, causal: bool, softmax_scale: float, diagonal: int | None = None) -> Tensor:
    """Return the probabilities, (batch, nheads, seqlen_q, seqlen_k).

    Causal is aligned bottom-right unless `diagonal` says otherwise.
    """
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)) * softmax_scale
    if causal:
        diagonal = k.shape[1] - q.shape[1] if diagonal is None else diagonal
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(diagonal), float("-inf"))
    return scores.softmax(-1)


def weigh(p: Tensor, v: Tensor) -> Tensor:
    """Return the probabilities times v, (batch, seqlen_q, nheads, headdim_v)."""
    return torch.einsum("bhij,bjhd->bihd", p, v.repeat_interleave(p.shape[1] // v.shape[2], dim=2))


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Return attention by its definition."""
    return weigh(probabilities(q, k, causal, softmax_scale), v)


def fused(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Return attention by torch's own choice of a fused kernel; needs seqlen_q == seqlen_k."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=grouped)
    return out.transpose(1, 2)
