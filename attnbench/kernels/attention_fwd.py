"""The forward of exact attention; attention.py explains the algorithm."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.kernels.attention_config import (
    LOG2_E,
    blocks_for,
    heads_per_section,
    launch,
    load_rows,
    padded,
    place,
    store_rows,
)


def attention_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """(out, lse): lse is the BASE-2 log-sum-exp of the scaled scores, (batch, nheads, seqlen_q) in fp32.

    A query that sees no key has lse +inf, not -inf: exp2(score - lse) is then 0 in the backward without a test.
    """
    batch, seqlen_q, nheads, headdim = q.shape
    seqlen_k, nheads_k, headdim_v = v.shape[1:]
    out = torch.empty((batch, seqlen_q, nheads, headdim_v), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, nheads, seqlen_q), dtype=torch.float32, device=q.device)
    blocks = blocks_for("fwd", q, v)
    group, heads = nheads // nheads_k, batch * nheads
    head_bytes = seqlen_k * (headdim + headdim_v) * q.element_size()
    launch(
        _forward,
        blocks,
        triton.cdiv(seqlen_q, blocks.BLOCK_M) * heads,
        q,
        *(q, k, v, out, lse),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]),
        softmax_scale * LOG2_E,
        *(seqlen_q, seqlen_k, nheads, group, heads, heads_per_section(batch * nheads_k, head_bytes) * group),
        seqlen_k - seqlen_k % blocks.BLOCK_N,
        HEADDIM=headdim,
        HEADDIM_V=headdim_v,
        BLOCK_D=padded(headdim),
        BLOCK_DV=padded(headdim_v),
        CAUSAL=causal,
    )
    return out, lse


# Strides are specialised on being multiples of 16 (wide loads need it). Lengths and counts are not: a new length
# must not compile a new kernel.
@triton.jit(do_not_specialize=["scale_log2", "seqlen_q", "seqlen_k", "nheads", "group", "heads", "section", "whole"])
def _forward(
    Q, K, V, Out, Lse,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    stride_ob, stride_om, stride_oh,
    scale_log2, seqlen_q, seqlen_k, nheads, group,
    heads,  # batch * nheads
    section,
    whole,  # seqlen_k without a last block that it does not fill
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(seqlen_q, BLOCK_M)
    rank, bh = place(blocks, heads, section)
    # The last queries see the most keys.
    start_m = (blocks - 1 - rank if CAUSAL else rank) * BLOCK_M
    b, h = bh // nheads, bh % nheads
    h_k = h // group
    rows = tl.arange(0, BLOCK_M)
    limit_m, first_m = seqlen_q - start_m, start_m.to(tl.int64)

    q = load_rows(
        Q + b * stride_qb + h * stride_qh + first_m * stride_qm, stride_qm, rows, limit_m, HEADDIM, BLOCK_D, True
    )
    K += b * stride_kb + h_k * stride_kh
    V += b * stride_vb + h_k * stride_vh

    # Keys [0, full) are seen by every query of the block, [full, end) by some or not all there, the rest by none.
    shift = seqlen_k - seqlen_q
    if CAUSAL:
        end = tl.maximum(tl.minimum(start_m + BLOCK_M, seqlen_q) + shift, 0)
        full = tl.maximum(start_m + shift + 1, 0) // BLOCK_N * BLOCK_N
    else:
        # Were `full` computed here, LLVM would see that the second loop runs at most once and unroll it, and ptxas
        # would then serialise the matmuls of the whole kernel (its warning C7515).
        end = seqlen_k
        full = whole

    diagonal = start_m + shift
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    for start_n in range(0, full, BLOCK_N):
        acc, row_max, row_sum = _forward_block(
            acc, row_max, row_sum, q, K, V, stride_kn, stride_vn, scale_log2, diagonal, start_n, seqlen_k,
            HEADDIM, HEADDIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, CAUSAL, MASK=False,
        )  # fmt: skip
    for start_n in range(full, end, BLOCK_N):
        acc, row_max, row_sum = _forward_block(
            acc, row_max, row_sum, q, K, V, stride_kn, stride_vn, scale_log2, diagonal, start_n, seqlen_k,
            HEADDIM, HEADDIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, CAUSAL, MASK=True,
        )  # fmt: skip

    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)  # such a row's acc is 0
    acc = acc / row_sum[:, None]
    lse = tl.where(empty, float("inf"), row_max + tl.log2(row_sum))
    tl.store(Lse + bh * seqlen_q + start_m + rows, lse, mask=rows < limit_m)
    store_rows(
        Out + b * stride_ob + h * stride_oh + first_m * stride_om, stride_om, rows, limit_m, acc, HEADDIM_V, BLOCK_DV
    )


@triton.jit
def _forward_block(
    acc, row_max, row_sum, q,
    K, V,
    stride_kn, stride_vn,
    scale_log2,
    diagonal,  # the first query of the block sees the keys up to this one
    start_n, seqlen_k,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """One block of keys into the online softmax."""
    cols = tl.arange(0, BLOCK_N)
    offset = tl.cast(start_n, tl.int64)
    k = load_rows(K + offset * stride_kn, stride_kn, cols, seqlen_k - start_n, HEADDIM, BLOCK_D, MASK)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASK:
        # Under causal the last key is the last query's diagonal, so the diagonal also cuts at seqlen_k.
        if CAUSAL:
            seen = start_n + cols[None, :] <= diagonal + tl.arange(0, BLOCK_M)[:, None]
        else:
            seen = start_n + cols[None, :] < seqlen_k
        scores = tl.where(seen, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
    # A row that has seen no key yet would compute -inf - -inf; any finite maximum gives it the 0 it needs.
    base = tl.where(new_max == float("-inf"), 0.0, new_max) if MASK else new_max
    p = tl.exp2(scores * scale_log2 - base[:, None])
    alpha = tl.exp2(row_max - base)
    row_sum = row_sum * alpha + tl.sum(p, 1)
    v = load_rows(V + offset * stride_vn, stride_vn, cols, seqlen_k - start_n, HEADDIM_V, BLOCK_DV, MASK)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return acc, new_max, row_sum
