"""Exact attention in Triton, forward and backward, without the seqlen_q x seqlen_k matrix ever reaching memory.

    S = softmax_scale * Q K^T        P = softmax(S) over keys        O = P V

**Forward** (forward.py). One program owns BLOCK_M queries of one head and walks over the keys in blocks
(Rabe and Staats, arXiv 2112.05682; FlashAttention, arXiv 2205.14135). The softmax needs the maximum and the sum of a
whole row, which it has not seen yet; so it keeps both for the keys so far, and when a block raises the maximum from m
to m', it multiplies the sum and the output so far by exp(m - m'). This "online softmax" is exact, not approximate
(Milakov and Gimelshein, arXiv 1805.02867). As in FlashAttention-2 (arXiv 2307.08691) the output is divided by the sum
once, at the end, and only one number per row is kept for the backward: the log-sum-exp. Everything inside is in base
2 (softmax_scale carries a factor log2(e)), because the hardware computes 2^x; `return_lse` gives natural logarithms.

**Causal and windows** are aligned bottom-right: query i stands at key i + seqlen_k - seqlen_q and sees those from
`left` before to `right` after it; causal is right = 0. For a block of queries the blocks of keys are of three sorts,
and there are two loops:

    full       every query sees every key: no mask
    edge       the diagonal or the window's end cuts through; also a last block that seqlen_k does not fill
    hidden     no query sees any key: never visited, which is where causal saves half the work

A query that sees no key (its row of P is empty, 0/0) has output 0, gradient 0 and log-sum-exp -inf.

**Backward** (backward.py) recomputes P = exp2(S - logsumexp) block by block from Q, K and the saved
log-sum-exp: cheaper than reading a stored P. With dP = dO V^T and delta = rowsum(dO * O), which equals
rowsum(dP * P) and so needs no second pass over the keys:

    dV = P^T dO        dS = P * (dP - delta)        dQ = softmax_scale * dS K        dK = softmax_scale * dS^T Q

Three kernels: delta; dK and dV (attention_dkdv.py), where a program owns a block of keys and walks over the queries;
dQ (dq.py), where it owns queries and walks over keys. S is thus computed twice, 7 matmuls instead of 5, and
in exchange no two programs write the same element: no atomics, and the result is the same bits every time. With
grouped heads (GQA, MQA) the dK/dV program walks over all the query heads that share its key head; K and V are never
expanded.

**Softcap** makes S = softcap * tanh(softmax_scale * Q K^T / softcap), and dS has one more factor, 1 - tanh^2.

**Variable lengths**: a program reads where its sequence begins and how long it is from cu_seqlens; those that the
longest sequence has and its own has not do nothing.

**Few queries** (decode.py): the length of the keys is split over programs, as in Flash-Decoding.

**Precision**: scores, softmax and sums in fp32; P and dS are rounded to the input's dtype before they enter a matmul,
as in FlashAttention. fp32 inputs use true fp32 arithmetic ("ieee"), not TF32. fp8 inputs (e4m3, forward only) come
with a factor each that gives them their size back, and have a bf16 output.

Every feature is a compile-time constant: what a call does not use is not in its kernel.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.backends.triton.backward import attention_backward
from attnbench.backends.triton.decode import attention_decode, is_short
from attnbench.backends.triton.forward import attention_forward
from attnbench.backends.triton.problem import Problem, Window, dense, varlen

Descale = tuple[Tensor, Tensor, Tensor]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window_size: Window = (None, None),
    softcap: float = 0.0,
    softmax_scale: float | None = None,
    descale: Descale | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(softmax_scale * q k^T) v, differentiable once in q, k and v.

    q is (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k,
    headdim_v), of one dtype, with any strides whose last is 1. Head h of q uses head h // (nheads // nheads_k) of k
    and v. The result is (batch, seqlen_q, nheads, headdim_v), contiguous.

    `window_size` is (left, right): query i sees the keys from i + seqlen_k - seqlen_q - left to i + seqlen_k -
    seqlen_q + right; None or -1 is open. `causal` is a window whose right is 0. `softcap` bounds the scores to
    softcap * tanh(score / softcap), 0 for not. `softmax_scale` is headdim ** -0.5 unless given, and must be positive.

    dtype is bf16, fp16, fp32, or float8_e4m3fn with `descale`: one float32 each on the device by which q, k and v are
    multiplied (their values were divided by it when they were rounded). Of v, seqlen must then be contiguous, as in
    v.transpose(1, 3).contiguous().transpose(1, 3). Such a call has no backward; its result is bf16.

    With `return_lse` the result is (out, lse): the natural logarithm of the sum of exp(score) over the keys that a
    query sees, (batch, nheads, seqlen_q) in fp32, -inf where it sees none; not differentiable.

    Raises ValueError, with the reason, for inputs that do not fit.
    """
    options = {"softcap": softcap, "softmax_scale": softmax_scale, "descale": descale}
    problem = dense(q, k, v, causal, window_size, **options)
    out, lse = _Attention.apply(q, k, v, problem)
    return (out, _natural(lse)) if return_lse else out


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window_size: Window = (None, None),
    softcap: float = 0.0,
    softmax_scale: float | None = None,
    descale: Descale | None = None,
    return_lse: bool = False,
) -> Any:
    """`attention` for sequences of different lengths that lie one behind the other, none of which sees another.

    q is (total_q, nheads, headdim), k (total_k, nheads_k, headdim), v (total_k, nheads_k, headdim_v), out (total_q,
    nheads, headdim_v), lse (nheads, total_q). Sequence b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1,
    and its keys likewise: int32 of batch + 1, from 0 to the total, rising by at most max_seqlen; a sequence may be
    empty. Their values are on the device and not checked. Rows beyond the last sequence are left as they are.
    """
    options = {"softcap": softcap, "softmax_scale": softmax_scale, "descale": descale}
    cu_seqlens, max_seqlens = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    problem = varlen(q, k, v, cu_seqlens, max_seqlens, causal, window_size, **options)
    out, lse = _Attention.apply(q[None], k[None], v[None], problem)
    return (out[0], _natural(lse[0])) if return_lse else out[0]


def _natural(lse: Tensor) -> Tensor:
    """The kernels' log-sum-exp, in base 2 and +inf where there is nothing, as people expect it."""
    return torch.where(lse == math.inf, -math.inf, lse * math.log(2))


class _Attention(torch.autograd.Function):
    """(out, lse), lse as the kernels use it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        short = is_short(problem.seqlen_q, q.shape[2] // k.shape[2])
        out, lse = (attention_decode if short else attention_forward)(q, k, v, problem)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.problem = problem
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # or autograd would fill a gradient of lse with zeros, a kernel more
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, dout: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if dout is None:
            return None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        need_dq, need_dk, need_dv = ctx.needs_input_grad[:3]
        dq, dk, dv = attention_backward(
            dout, q, k, v, out, lse, ctx.problem, need_dq=need_dq, need_dkv=need_dk or need_dv
        )
        return dq, dk if need_dk else None, dv if need_dv else None, None
