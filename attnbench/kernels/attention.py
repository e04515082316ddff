"""Exact attention in Triton, forward and backward, without the seqlen_q x seqlen_k matrix ever reaching memory.

    S = softmax_scale * Q K^T        P = softmax(S) over keys        O = P V

**Forward** (attention_fwd.py). One program owns BLOCK_M queries of one head and walks over the keys in blocks.
The softmax needs the maximum and the sum of a whole row, which it has not seen yet; so it keeps both for the keys
so far, and when a block raises the maximum from m to m', it multiplies the sum and the output so far by exp(m - m').
This "online softmax" is exact, not approximate (Milakov & Gimelshein, arXiv 1805.02867). As in FlashAttention-2
(arXiv 2307.08691) the output is divided by the sum once, at the end, and only one number per row is kept for the
backward: the log-sum-exp. Everything is in base 2 (softmax_scale carries a factor log2(e)), because the hardware
computes 2^x.

**Causal** is aligned bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q. For a block of queries the
blocks of keys are of three sorts, and each has its own loop:

    full       every query sees every key: no mask
    diagonal   the mask cuts through; also a last block that seqlen_k does not fill
    hidden     no query sees any key: never visited, which is where causal saves half the work

A query that sees no key (its row of P is empty, 0/0) has output 0 and gradient 0.

**Backward** (attention_bwd.py) recomputes P = exp2(S - logsumexp) block by block from Q, K and the saved
log-sum-exp: cheaper than reading a stored P. With dP = dO V^T and delta = rowsum(dO * O), which equals
rowsum(dP * P) and so needs no second pass over the keys:

    dV = P^T dO        dS = P * (dP - delta)        dQ = softmax_scale * dS K        dK = softmax_scale * dS^T Q

Three kernels: delta; dK and dV, where a program owns a block of keys and walks over the queries; dQ, where it owns
queries and walks over keys. S is thus computed twice, 7 matmuls instead of 5, and in exchange no two programs write
the same element: no atomics, and the result is the same bits every time. With grouped heads (GQA, MQA) the dK/dV
program walks over all the query heads that share its key head; K and V are never expanded.

**Precision**: scores, softmax and sums in fp32; P and dS are rounded to the input's dtype before they enter a matmul,
as in FlashAttention. fp32 inputs use true fp32 arithmetic ("ieee"), not TF32.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.attention_bwd import attention_backward
from attnbench.kernels.attention_fwd import attention_forward

MIN_HEADDIM = 16  # what a tensor core's matmul takes at least
MAX_HEADDIM = 256  # more would leave no room for the accumulators in registers


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    """softmax(softmax_scale * q k^T) v, differentiable once in q, k and v.

    q is (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k,
    headdim_v), of one dtype (bf16, fp16 or fp32), with any strides whose last is 1. Head h of q uses head
    h // (nheads // nheads_k) of k and v. The result is (batch, seqlen_q, nheads, headdim_v), contiguous.
    `softmax_scale` is headdim ** -0.5 unless given, and must be positive. `causal` aligns bottom-right.
    """
    _check(q, k, v)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    if not scale > 0:
        # The kernels take the maximum of a row before they scale it, which only a positive factor allows.
        raise ValueError(f"softmax_scale must be positive, got {scale}")
    out: Tensor = _Attention.apply(q, k, v, causal, scale)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float) -> Tensor:
        out, lse = attention_forward(q, k, v, causal, softmax_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.softmax_scale = causal, softmax_scale
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        q, k, v, out, lse = ctx.saved_tensors
        need_dq, need_dk, need_dv = ctx.needs_input_grad[:3]
        dq, dk, dv = attention_backward(
            dout, q, k, v, out, lse, ctx.causal, ctx.softmax_scale, need_dq=need_dq, need_dkv=need_dk or need_dv
        )
        return dq, dk if need_dk else None, dv if need_dv else None, None, None


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What would otherwise read or write out of bounds, or silently compute something else."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must be (batch, seqlen, nheads, headdim), got {tuple(x.shape)}")
        if x.stride(-1) != 1:
            raise ValueError(f"{name}'s last dimension must be contiguous, its strides are {x.stride()}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"q, k and v must share dtype and device; q is {q.dtype} on {q.device}, {name} is "
                f"{x.dtype} on {x.device}"
            )
        if not MIN_HEADDIM <= x.shape[-1] <= MAX_HEADDIM:
            raise ValueError(f"{name}'s headdim must be {MIN_HEADDIM} to {MAX_HEADDIM}, got {x.shape[-1]}")
        if 0 in x.shape:
            raise ValueError(f"{name} is empty: {tuple(x.shape)}")
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"dtype must be bfloat16, float16 or float32, got {q.dtype}")
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"nheads ({q.shape[2]}) must be a multiple of nheads_k ({k.shape[2]})")
