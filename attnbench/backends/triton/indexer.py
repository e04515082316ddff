"""`indexer-triton`: the scores of an indexer in one kernel (core/indexer.py); torch.topk chooses the keys.

A program has a block of keys and loops over a block of queries. The rows of its product are the heads of one query, so
that decoding fills them too, and no score of a head is written.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.backends.triton.block_sizes import MIN_BLOCK, Blocks
from attnbench.backends.triton.launch import launch


def indexer_scores(q: Tensor, k: Tensor, weights: Tensor, k_scale: Tensor | None = None) -> Tensor:
    """Return the scores (batch, seqlen_q, seqlen_k) in float32, -inf where a query does not see a key.

    q is (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, headdim), both contiguous in headdim and of one dtype;
    weights are (batch, seqlen_q, nheads) and the scales of e4m3 keys (batch, seqlen_k), both float32 and contiguous in
    the last dimension. The last query sees the last key.
    """
    (batch, seqlen_q, nheads, headdim), seqlen_k = q.shape, k.shape[1]
    scores = torch.empty((batch, seqlen_q, seqlen_k), dtype=torch.float32, device=q.device)
    blocks = Blocks(16, 32, 8, 1) if q.dtype == torch.float32 else Blocks(16, 128, 4, 2)
    launch(
        _scores,
        blocks,
        batch * triton.cdiv(seqlen_q, blocks.BLOCK_M) * triton.cdiv(seqlen_k, blocks.BLOCK_N),
        q,
        *(q, k, weights, k_scale, scores),
        *(*q.stride()[:3], *k.stride()[:2], *weights.stride()[:2], 0 if k_scale is None else k_scale.stride(0)),
        *(seqlen_q, seqlen_k, nheads),
        HEADDIM=headdim,
        BLOCK_D=max(MIN_BLOCK, triton.next_power_of_2(headdim)),
        BLOCK_H=max(MIN_BLOCK, triton.next_power_of_2(nheads)),
        SCALED=k_scale is not None,
    )
    return scores


@triton.jit(do_not_specialize=["seqlen_q", "seqlen_k"])
def _scores(
    Q, K, Weights, Scale, Scores,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_wb, stride_wm, stride_sb,
    seqlen_q, seqlen_k, nheads,
    HEADDIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the scores of BLOCK_M queries for BLOCK_N keys."""
    blocks_m, blocks_n = tl.cdiv(seqlen_q, BLOCK_M), tl.cdiv(seqlen_k, BLOCK_N)
    pid = tl.program_id(0)
    first_k = pid % blocks_n * BLOCK_N
    first_q = (pid // blocks_n % blocks_m * BLOCK_M).to(tl.int64)  # so products with strides are 64 bits
    b = (pid // blocks_n // blocks_m).to(tl.int64)
    keys, cols, heads = first_k + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    there, offset = keys < seqlen_k, seqlen_k - seqlen_q
    Scores += b * seqlen_q * seqlen_k
    end = tl.minimum(first_q + BLOCK_M, seqlen_q)
    begin = tl.minimum(tl.maximum(first_q, first_k - offset), end)  # the first query that sees a key of the block
    for m in range(first_q, begin):
        tl.store(Scores + m * seqlen_k + keys, tl.full((BLOCK_N,), float("-inf"), tl.float32), mask=there)

    of_k = K + b * stride_kb + keys[None, :].to(tl.int64) * stride_kn + cols[:, None]
    k = tl.load(of_k, mask=there[None, :] & (cols[:, None] < HEADDIM), other=0.0)  # (BLOCK_D, BLOCK_N)
    scale = tl.load(Scale + b * stride_sb + keys, mask=there, other=0.0) if SCALED else 1.0
    of_q = Q + b * stride_qb + heads[:, None] * stride_qh + cols[None, :]
    is_head = heads < nheads
    in_q = is_head[:, None] & (cols[None, :] < HEADDIM)
    for m in range(begin, end):
        q = tl.load(of_q + m * stride_qm, mask=in_q, other=0.0)
        weights = tl.load(Weights + b * stride_wb + m * stride_wm + heads, mask=is_head, other=0.0)
        terms = tl.maximum(tl.dot(q, k, input_precision="ieee"), 0.0) * weights[:, None]
        scores = tl.where(keys <= m + offset, tl.sum(terms, 0) * scale, float("-inf"))
        tl.store(Scores + m * seqlen_k + keys, scores, mask=there)
