"""Exact attention in Triton, forward and backward. The seqlen_q x seqlen_k score matrix is never written to memory.

    S = softmax_scale * Q K^T        P = softmax(S) over keys        O = P V

**Forward** (forward.py). One program owns BLOCK_M queries of one head and loops over the keys in blocks of BLOCK_N
(Rabe and Staats, arXiv 2112.05682; FlashAttention, arXiv 2205.14135). The softmax needs the maximum and the sum of the
whole row. The program keeps both for the keys so far, and when a block raises the maximum from m to m', it multiplies
the sum and the output so far by exp(m - m'). This "online softmax" is exact (Milakov and Gimelshein, arXiv 1805.02867).
As in FlashAttention-2 (arXiv 2307.08691) the output is divided by the sum only at the end, and one number per row is
kept for the backward: the log-sum-exp. Inside, everything is in base 2 (softmax_scale is multiplied by log2(e)),
because the hardware computes 2^x; `return_lse` gives natural logarithms.

**Causal masks and windows** are aligned bottom-right: query i stands at key i + seqlen_k - seqlen_q and sees the keys
from `left` before it to `right` after it; causal is right = 0. For a block of queries the blocks of keys are of three
kinds. One loop visits the full blocks, a second the edge blocks:

    full       every query sees every key: no mask is needed
    edge       some queries see some keys: at the diagonal, the end of a window, or the end of seqlen_k
    hidden     no query sees any key: never visited, which is how causal saves half the work

A query that sees no key (its row of P is empty, 0/0) has output 0, gradient 0 and log-sum-exp -inf.

**Backward** (backward.py) recomputes P = exp2(S - logsumexp) block by block from Q, K and the saved log-sum-exp, which
is cheaper than reading a stored P. With dP = dO V^T and delta = rowsum(dO * O), which equals rowsum(dP * P) and
needs no additional pass over the keys:

    dV = P^T dO        dS = P * (dP - delta)        dQ = softmax_scale * dS K        dK = softmax_scale * dS^T Q

There are three kernels: delta; dK and dV (dkdv.py), where a program owns a block of keys and loops over the queries;
dQ (dq.py), where a program owns a block of queries and loops over the keys. S is thus computed two times, and there are
7 matmuls instead of 5. In exchange no two programs write the same element: there are no atomics, and the result has the
same bits every time. With grouped heads (GQA, MQA) the dK/dV program loops over all query heads that share its key
head; K and V are never expanded.

**Softcap** makes S = softcap * tanh(softmax_scale * Q K^T / softcap), and dS has one more factor, 1 - tanh^2.

**Sink**: a score of each head that joins the softmax and has no value. The online softmax starts from it. The backward
gets it through the log-sum-exp; its gradient is the sum over the queries of -exp2(sink - logsumexp) * delta.

**Masks by name**: a program reads the blocks that it visits from a list (named_mask.py), and computes the mask of each
pair in blocks that are seen in part.

**Variable lengths**: a program finds its sequence, and reads where it begins and ends, in cu_seqlens. There are as many
programs as blocks, and at most one more for each sequence (sequence_of_block in device_functions.py).

**Few queries** (decode.py): the keys of one head are split over several programs, as in Flash-Decoding.

**Precision**: scores, softmax and sums are in fp32. P and dS are rounded to the input's dtype before they enter a
matmul, as in FlashAttention. fp32 inputs use true fp32 arithmetic ("ieee"), not TF32. fp8 inputs (e4m3, forward only)
come with one factor each to multiply their values by; the output is bf16.

Every feature is a compile-time constant, so a kernel has no code for features that the call does not use.
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
from attnbench.backends.triton.named_mask import NamedMask
from attnbench.backends.triton.problem import Problem, Window, dense_problem, varlen_problem

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
    sink: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    named_mask: NamedMask | None = None,
    return_lse: bool = False,
) -> Any:
    """Return softmax(softmax_scale * q k^T) v. First derivatives by q, k, v and sink are supported.

    q is (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k,
    headdim_v), all of one dtype. Strides are free, except that the last must be 1. Head h of q uses head
    h // (nheads // nheads_k) of k and v. The result is (batch, seqlen_q, nheads, headdim_v), contiguous.

    `window_size` is (left, right): query i sees the keys from i + seqlen_k - seqlen_q - left to i + seqlen_k -
    seqlen_q + right; None or -1 is a side without a limit. `causal` is a window whose right is 0. `softcap` makes the
    scores softcap * tanh(score / softcap); 0 switches it off. `softmax_scale` must be positive; None is
    headdim ** -0.5.

    dtype is bf16, fp16, fp32, or float8_e4m3fn with `descale`: one float32 on the device for each of q, k and v, by
    which its values must be multiplied (they were divided by it before rounding). The seqlen dimension of v must then
    be contiguous, as in v.transpose(1, 3).contiguous().transpose(1, 3). An fp8 call has no backward, and its result is
    bf16.

    `sink` (nheads,) is one more score for each query of a head, not scaled or capped: it takes part in the softmax and
    has no value. It may be of any float dtype, but not beside fp8 inputs.

    `alibi_slopes` (nheads,) fp32: the score of a query at key i for key j becomes score - slope * |i - j| (ALiBi, Press
    et al., arXiv 2108.12409), after the scale. Not differentiable by the slopes; not beside a softcap or fp8 inputs.

    `named_mask` adds keys to the keys that causal and window leave visible, or hides some of them (named_mask.py); it
    must have been made for these lengths, with the same causal and window.

    With `return_lse` the result is (out, lse). lse is the natural logarithm of the sum of exp(score) over the sink and
    the keys that a query sees, (batch, nheads, seqlen_q) in fp32, -inf for an empty sum. It is not differentiable.

    Raises ValueError, with the reason, for inputs that do not fit.
    """
    options: dict[str, Any] = {"softcap": softcap, "softmax_scale": softmax_scale}
    options |= {"descale": descale, "sink": sink, "alibi_slopes": alibi_slopes, "named_mask": named_mask}
    problem = dense_problem(q, k, v, causal, window_size, **options)
    out, lse = _Attention.apply(q, k, v, sink, problem)
    return (out, natural_lse(lse)) if return_lse else out


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
    sink: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Return `attention` for each sequence of a batch whose sequences differ in length, packed without padding.

    q is (total_q, nheads, headdim), k (total_k, nheads_k, headdim), v (total_k, nheads_k, headdim_v), out (total_q,
    nheads, headdim_v), lse (nheads, total_q). Sequence b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1,
    and its keys likewise. cu_seqlens_q and cu_seqlens_k are int32 of batch + 1 values on the device, from 0 to the
    total, rising by at most max_seqlen; a sequence may be empty. Their values are not checked. Rows of out beyond the
    last sequence are not written.
    """
    options: dict[str, Any] = {"softcap": softcap, "softmax_scale": softmax_scale}
    options |= {"descale": descale, "sink": sink, "alibi_slopes": alibi_slopes}
    cu_seqlens, max_seqlens = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    problem = varlen_problem(q, k, v, cu_seqlens, max_seqlens, causal, window_size, **options)
    out, lse = _Attention.apply(q[None], k[None], v[None], sink, problem)
    return (out[0], natural_lse(lse[0])) if return_lse else out[0]


def natural_lse(lse: Tensor) -> Tensor:
    """Convert the kernels' log-sum-exp (base 2, +inf for queries without keys) to base e, with -inf for these."""
    return torch.where(lse == math.inf, -math.inf, lse * math.log(2))


class _Attention(torch.autograd.Function):
    """The differentiable function (q, k, v, sink) -> (out, lse), with lse in base 2 as the kernels write it."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        short = problem.named_mask is None and is_short(problem.seqlen_q, q.shape[2] // k.shape[2])
        out, lse = (attention_decode if short else attention_forward)(q, k, v, problem)
        ctx.save_for_backward(q, k, v, out, lse, sink)
        ctx.problem = problem
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(
            False
        )  # otherwise autograd would launch a kernel to fill a gradient of lse with zeros
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, dout: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return None, None, None, None, None
        q, k, v, out, lse, _sink = ctx.saved_tensors
        need_dq, need_dk, need_dv, need_dsink = ctx.needs_input_grad[:4]
        dq, dk, dv, dsink = attention_backward(
            *(dout, q, k, v, out, lse, ctx.problem),
            need_dq=need_dq,
            need_dkv=need_dk or need_dv,
            need_dsink=need_dsink,
        )
        return dq, dk if need_dk else None, dv if need_dv else None, dsink, None
