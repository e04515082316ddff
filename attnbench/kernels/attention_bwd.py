"""The backward of exact attention: delta, then dK and dV, then dQ; attention.py explains the algorithm."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.kernels.attention_config import (
    LOG2_E,
    Blocks,
    blocks_for,
    heads_per_section,
    launch,
    load_rows,
    padded,
    place,
    store_rows,
)


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    softmax_scale: float,
    *,
    need_dq: bool = True,
    need_dkv: bool = True,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dq, dk, dv), contiguous, in the dtype of q; lse as attention_forward gives it."""
    batch, seqlen_q, nheads, headdim = q.shape
    seqlen_k, nheads_k, headdim_v = v.shape[1:]
    group = nheads // nheads_k
    if dout.stride(-1) != 1:  # a broadcast gradient, as that of out.sum()
        dout = dout.contiguous()
    delta = torch.empty_like(lse)
    launch(
        _delta,
        Blocks(64, 1, 4, 1),
        triton.cdiv(seqlen_q, 64) * batch * nheads,
        q,
        *(out, dout, delta, *out.stride()[:3], *dout.stride()[:3], seqlen_q, nheads),
        HEADDIM_V=headdim_v,
        BLOCK_DV=padded(headdim_v),
    )

    inputs = (q, k, v, dout, lse, delta)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3])
    scales = (softmax_scale, softmax_scale * LOG2_E)
    dims = {"HEADDIM": headdim, "HEADDIM_V": headdim_v, "BLOCK_D": padded(headdim), "BLOCK_DV": padded(headdim_v)}
    dims["CAUSAL"] = causal
    row_bytes = (headdim + headdim_v) * q.element_size()
    dq = dk = dv = None
    if need_dkv:
        dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (k, v))
        blocks, heads = blocks_for("dkdv", q, v), batch * nheads_k
        section = heads_per_section(heads, group * seqlen_q * row_bytes)
        launch(
            _dk_dv,
            blocks,
            triton.cdiv(seqlen_k, blocks.BLOCK_N) * heads,
            q,
            *(*inputs, dk, dv, *strides, *dk.stride()[:3], *dv.stride()[:3], *scales),
            *(seqlen_q, seqlen_k, nheads, group, heads, section),
            **dims,
        )
    if need_dq:
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        blocks, heads = blocks_for("dq", q, v), batch * nheads
        section = heads_per_section(batch * nheads_k, seqlen_k * row_bytes) * group
        launch(
            _dq,
            blocks,
            triton.cdiv(seqlen_q, blocks.BLOCK_M) * heads,
            q,
            *(*inputs, dq, *strides, *dq.stride()[:3], *scales),
            *(seqlen_q, seqlen_k, nheads, group, heads, section, seqlen_k - seqlen_k % blocks.BLOCK_N),
            **dims,
        )
    return dq, dk, dv


@triton.jit(do_not_specialize=["seqlen_q", "nheads"])
def _delta(
    Out, DOut, Delta,
    stride_ob, stride_om, stride_oh, stride_gb, stride_gm, stride_gh,
    seqlen_q, nheads,
    HEADDIM_V: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # noqa: ARG001  every kernel here is launched with both
):  # fmt: skip
    """delta = rowsum(out * dout), (batch, nheads, seqlen_q)."""
    blocks = tl.cdiv(seqlen_q, BLOCK_M)
    pid = tl.program_id(0)
    start_m, bh = pid % blocks * BLOCK_M, (pid // blocks).to(tl.int64)
    b, h = bh // nheads, bh % nheads
    rows = tl.arange(0, BLOCK_M)
    limit, first = seqlen_q - start_m, start_m.to(tl.int64)
    out = load_rows(
        Out + b * stride_ob + h * stride_oh + first * stride_om, stride_om, rows, limit, HEADDIM_V, BLOCK_DV, True
    )
    dout = load_rows(
        DOut + b * stride_gb + h * stride_gh + first * stride_gm, stride_gm, rows, limit, HEADDIM_V, BLOCK_DV, True
    )
    tl.store(Delta + bh * seqlen_q + start_m + rows, tl.sum(out.to(tl.float32) * dout, 1), mask=rows < limit)


@triton.jit(do_not_specialize=["scale", "scale_log2", "seqlen_q", "seqlen_k", "nheads", "group", "heads", "section"])
def _dk_dv(
    Q, K, V, DOut, Lse, Delta, DK, DV,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    stride_gb, stride_gm, stride_gh, stride_dkb, stride_dkn, stride_dkh, stride_dvb, stride_dvn, stride_dvh,
    scale, scale_log2, seqlen_q, seqlen_k, nheads, group,
    heads,  # batch * nheads_k
    section,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A block of keys of one key head, over all the queries of the query heads that share it."""
    # Under causal the first keys are seen by the most queries, so the natural order starts with the heaviest.
    rank, bh = place(tl.cdiv(seqlen_k, BLOCK_N), heads, section)
    start_n = rank * BLOCK_N
    nheads_k = nheads // group
    b, h_k = bh // nheads_k, bh % nheads_k
    cols = tl.arange(0, BLOCK_N)
    limit_n, first_n = seqlen_k - start_n, start_n.to(tl.int64)
    k = load_rows(
        K + b * stride_kb + h_k * stride_kh + first_n * stride_kn, stride_kn, cols, limit_n, HEADDIM, BLOCK_D, True
    )
    v = load_rows(
        V + b * stride_vb + h_k * stride_vh + first_n * stride_vn, stride_vn, cols, limit_n, HEADDIM_V, BLOCK_DV, True
    )

    # Queries before `begin` see none of these keys, those in [begin, full) some, those from `full` on all.
    shift = seqlen_k - seqlen_q
    if CAUSAL:
        begin = tl.maximum(start_n - shift, 0) // BLOCK_M * BLOCK_M
        last_n = tl.minimum(start_n + BLOCK_N, seqlen_k) - 1
        full = tl.cdiv(tl.maximum(last_n - shift, 0), BLOCK_M) * BLOCK_M
    else:
        begin = 0
        full = 0

    diagonal = start_n - shift
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for member in range(group):
        h = h_k * group + member
        q_head = Q + b * stride_qb + h * stride_qh
        g_head = DOut + b * stride_gb + h * stride_gh
        lse_head = Lse + (b * nheads + h) * seqlen_q
        delta_head = Delta + (b * nheads + h) * seqlen_q
        if CAUSAL:
            for start_m in range(begin, full, BLOCK_M):
                dk, dv = _dk_dv_block(
                    dk, dv, k, v, q_head, g_head, lse_head, delta_head, stride_qm, stride_gm, scale_log2, diagonal,
                    start_m, seqlen_q, HEADDIM, HEADDIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, MASK=True,
                )  # fmt: skip
        for start_m in range(full, seqlen_q, BLOCK_M):
            dk, dv = _dk_dv_block(
                dk, dv, k, v, q_head, g_head, lse_head, delta_head, stride_qm, stride_gm, scale_log2, diagonal,
                start_m, seqlen_q, HEADDIM, HEADDIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, MASK=False,
            )  # fmt: skip

    store_rows(
        DK + b * stride_dkb + h_k * stride_dkh + first_n * stride_dkn,
        stride_dkn, cols, limit_n, dk * scale, HEADDIM, BLOCK_D,
    )  # fmt: skip
    store_rows(
        DV + b * stride_dvb + h_k * stride_dvh + first_n * stride_dvn,
        stride_dvn, cols, limit_n, dv, HEADDIM_V, BLOCK_DV,
    )  # fmt: skip


@triton.jit
def _dk_dv_block(
    dk, dv, k, v,
    Q, DOut, Lse, Delta,
    stride_qm, stride_gm,
    scale_log2,
    diagonal,  # the first key of the block is seen by the queries from this one on
    start_m, seqlen_q,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """One block of queries into dk and dv. Scores are transposed, keys x queries: both results are by key.

    Only the causal mask needs one here. A query beyond seqlen_q loads lse +inf, which makes its p 0; a key beyond
    seqlen_k spoils only its own row of dk and dv, which is not stored.
    """
    rows = tl.arange(0, BLOCK_M)
    limit, offset = seqlen_q - start_m, tl.cast(start_m, tl.int64)
    q = load_rows(Q + offset * stride_qm, stride_qm, rows, limit, HEADDIM, BLOCK_D, True)
    lse = tl.load(Lse + offset + rows, mask=rows < limit, other=float("inf"))
    scores = tl.dot(k, tl.trans(q), input_precision="ieee")
    if MASK:
        seen = start_m + rows[None, :] >= diagonal + tl.arange(0, BLOCK_N)[:, None]
        scores = tl.where(seen, scores, float("-inf"))
    p = tl.exp2(scores * scale_log2 - lse[None, :])
    dout = load_rows(DOut + offset * stride_gm, stride_gm, rows, limit, HEADDIM_V, BLOCK_DV, True)
    dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision="ieee")
    dp = tl.dot(v, tl.trans(dout), input_precision="ieee")
    delta = tl.load(Delta + offset + rows, mask=rows < limit, other=0.0)
    ds = p * (dp - delta[None, :])
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(
    do_not_specialize=["scale", "scale_log2", "seqlen_q", "seqlen_k", "nheads", "group", "heads", "section", "whole"]
)
def _dq(
    Q, K, V, DOut, Lse, Delta, DQ,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    stride_gb, stride_gm, stride_gh, stride_dqb, stride_dqm, stride_dqh,
    scale, scale_log2, seqlen_q, seqlen_k, nheads, group,
    heads,  # batch * nheads
    section,
    whole,  # seqlen_k without a last block that it does not fill
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head, over its keys: the same walk as the forward's."""
    blocks = tl.cdiv(seqlen_q, BLOCK_M)
    rank, bh = place(blocks, heads, section)
    start_m = (blocks - 1 - rank if CAUSAL else rank) * BLOCK_M
    b, h = bh // nheads, bh % nheads
    h_k = h // group
    rows = tl.arange(0, BLOCK_M)
    limit_m, first_m = seqlen_q - start_m, start_m.to(tl.int64)
    q = load_rows(
        Q + b * stride_qb + h * stride_qh + first_m * stride_qm, stride_qm, rows, limit_m, HEADDIM, BLOCK_D, True
    )
    dout = load_rows(
        DOut + b * stride_gb + h * stride_gh + first_m * stride_gm, stride_gm, rows, limit_m, HEADDIM_V, BLOCK_DV, True
    )
    lse = tl.load(Lse + bh * seqlen_q + start_m + rows, mask=rows < limit_m, other=float("inf"))
    delta = tl.load(Delta + bh * seqlen_q + start_m + rows, mask=rows < limit_m, other=0.0)
    K += b * stride_kb + h_k * stride_kh
    V += b * stride_vb + h_k * stride_vh

    shift = seqlen_k - seqlen_q
    if CAUSAL:
        end = tl.maximum(tl.minimum(start_m + BLOCK_M, seqlen_q) + shift, 0)
        full = tl.maximum(start_m + shift + 1, 0) // BLOCK_N * BLOCK_N
    else:
        end = seqlen_k
        full = whole  # given, not computed, as in the forward

    diagonal = start_m + shift
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(0, full, BLOCK_N):
        dq = _dq_block(
            dq, q, dout, lse, delta, K, V, stride_kn, stride_vn, scale_log2, diagonal, start_n, seqlen_k,
            HEADDIM, HEADDIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, CAUSAL, MASK=False,
        )  # fmt: skip
    for start_n in range(full, end, BLOCK_N):
        dq = _dq_block(
            dq, q, dout, lse, delta, K, V, stride_kn, stride_vn, scale_log2, diagonal, start_n, seqlen_k,
            HEADDIM, HEADDIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, CAUSAL, MASK=True,
        )  # fmt: skip

    store_rows(
        DQ + b * stride_dqb + h * stride_dqh + first_m * stride_dqm,
        stride_dqm, rows, limit_m, dq * scale, HEADDIM, BLOCK_D,
    )  # fmt: skip


@triton.jit
def _dq_block(
    dq, q, dout, lse, delta,
    K, V,
    stride_kn, stride_vn,
    scale_log2,
    diagonal,  # the first query of the block sees the keys up to this one
    start_n, seqlen_k,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """One block of keys into dq."""
    cols = tl.arange(0, BLOCK_N)
    limit, offset = seqlen_k - start_n, tl.cast(start_n, tl.int64)
    k = load_rows(K + offset * stride_kn, stride_kn, cols, limit, HEADDIM, BLOCK_D, MASK)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASK:
        if CAUSAL:
            seen = start_n + cols[None, :] <= diagonal + tl.arange(0, BLOCK_M)[:, None]
        else:
            seen = start_n + cols[None, :] < seqlen_k
        scores = tl.where(seen, scores, float("-inf"))
    p = tl.exp2(scores * scale_log2 - lse[:, None])
    v = load_rows(V + offset * stride_vn, stride_vn, cols, limit, HEADDIM_V, BLOCK_DV, MASK)
    ds = p * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
