"""The kernel of dQ: a program owns a block of queries of one head and loops over its keys, as the forward does."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from attnbench.backends.triton.device_functions import (
    add_alibi,
    add_dot_by_parts,
    alibi_slope,
    block_of_program,
    dot_of_parts,
    key_row,
    keys_seen,
    listed_blocks,
    load_block,
    load_block_parts,
    load_row_parts,
    load_rows,
    mask_by_name,
    mask_scores,
    sequence_bounds,
    store_row_parts,
    tanh,
    zero_beyond,
    zero_parts,
)


@triton.jit(
    do_not_specialize=[
        *("scale", "scale_tanh", "scale_log2", "seqlen_q", "seqlen_k", "left", "right"),
        *("nheads", "group", "heads", "blocks", "section", "whole"),
    ]
)
def _dq(
    Q, K, V, DOut,  # with TMA, their tensor descriptors
    Lse, Delta, DQ, Cu_q, Cu_k, Slopes, Listed, Kept,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    stride_gb, stride_gm, stride_gh, stride_lb, stride_lh, stride_dqb, stride_dqm, stride_dqh,
    scale, scale_tanh, scale_log2, seqlen_q, seqlen_k, left, right, nheads, group,
    heads,  # batch * nheads
    blocks,  # number of blocks of queries (Problem.blocks_of_queries)
    section,
    whole,  # seqlen_k rounded down to a multiple of BLOCK_N; with VARLEN the longest seqlen_k
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, VARLEN: tl.constexpr, ALIBI: tl.constexpr,
    KIND: tl.constexpr, NUMBER: tl.constexpr, TMA: tl.constexpr, RESIDENT: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b, h, start_m = block_of_program(Cu_q, blocks, nheads, heads, section, RIGHT, VARLEN, BLOCK_M)
    h_k = h // group
    first_q, first_k, seqlen_q, seqlen_k = sequence_bounds(b, Cu_q, Cu_k, seqlen_q, seqlen_k, VARLEN)
    rows = tl.arange(0, BLOCK_M)
    limit_m, first_m = seqlen_q - start_m, start_m.to(tl.int64) + first_q
    first_key = first_k if TMA and VARLEN else None
    if TMA:
        b = b * 0 if VARLEN else b  # packed sequences are one batch entry
        q = load_block_parts(Q, b, h, first_q + start_m, BLOCK_M, BLOCK_D, PARTS, BY_HEAD=not RESIDENT)
        dout = load_block(DOut, b, h, first_q + start_m, 0, BLOCK_M, BLOCK_DV, BY_HEAD=not RESIDENT)
    else:
        Q += b * stride_qb + h * stride_qh + first_m * stride_qm
        DOut += b * stride_gb + h * stride_gh + first_m * stride_gm
        K += b * stride_kb + h_k * stride_kh + first_k * stride_kn
        V += b * stride_vb + h_k * stride_vh + first_k * stride_vn
        q = load_row_parts(Q, stride_qm, rows, limit_m, HEADDIM, BLOCK_D, PARTS, True)
        dout = load_rows(DOut, stride_gm, rows, limit_m, HEADDIM_V, BLOCK_DV, True)
    row_values = b * stride_lb + h * stride_lh + first_m + rows
    lse = tl.load(Lse + row_values, mask=rows < limit_m, other=float("inf"))
    delta = tl.load(Delta + row_values, mask=rows < limit_m, other=0.0)

    begin, full_begin, full_end, end = keys_seen(
        start_m, tl.minimum(start_m + BLOCK_M, seqlen_q), seqlen_q, seqlen_k, left, right, whole,
        LEFT, RIGHT, VARLEN, BLOCK_N,
    )  # fmt: skip
    if KIND:  # the loops below then count blocks of the list of a mask by name
        begin, full_begin = 0, 0
        Listed, full_end, end = listed_blocks(Listed, start_m // BLOCK_M, tl.cdiv(seqlen_k, BLOCK_N), BLOCK_N)
    middle = (start_m + seqlen_k - seqlen_q + rows)[:, None]
    first = middle - left
    last = tl.minimum(middle + right, seqlen_k - 1) if RIGHT else seqlen_k - 1
    slope = alibi_slope(tl.load(Slopes + h), scale_log2) if ALIBI else 0.0

    dq = zero_parts(BLOCK_M, BLOCK_D, PARTS)
    for start in range(full_begin, full_end, BLOCK_N):
        start_n = tl.load(Listed + start // BLOCK_N) * BLOCK_N if KIND else start
        dq = _dq_block(
            dq, q, dout, lse, delta, K, V, stride_kn, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope,
            middle, first, last, start_n, seqlen_k, Kept, HEADDIM, HEADDIM_V, BLOCK_D, PARTS, BLOCK_DV, BLOCK_N, LEFT,
            SOFTCAP, ALIBI, KIND, NUMBER, TMA, AHEAD, MASK=False,
        )  # fmt: skip
    between = full_end - full_begin  # one loop for both edges, as in forward.py
    for start in range(begin if LEFT else full_end, end - between if LEFT else end, BLOCK_N):
        start_n = start + tl.where(start < full_begin, 0, between) if LEFT else start
        if KIND:
            start_n = tl.load(Listed + start_n // BLOCK_N) * BLOCK_N
        dq = _dq_block(
            dq, q, dout, lse, delta, K, V, stride_kn, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope,
            middle, first, last, start_n, seqlen_k, Kept, HEADDIM, HEADDIM_V, BLOCK_D, PARTS, BLOCK_DV, BLOCK_N, LEFT,
            SOFTCAP, ALIBI, KIND, NUMBER, TMA, AHEAD, MASK=True,
        )  # fmt: skip

    store_row_parts(
        DQ + b * stride_dqb + h * stride_dqh + first_m * stride_dqm,
        stride_dqm, rows, limit_m, dq, scale, HEADDIM, BLOCK_D, PARTS,
    )  # fmt: skip


@triton.jit
def _dq_block(
    dq, q,  # each is a tuple of PARTS tiles
    dout, lse, delta,
    K, V,
    stride_kn, stride_vn,
    b, h_k, first_key,  # for TMA
    scale_tanh, scale_log2,
    slope, middle,  # ALiBi's slope, and each query's position as a key, (queries, 1)
    first, last,  # first and last key that each query sees, (queries, 1)
    start_n, seqlen_k,
    Kept,  # blocks of a mask by name
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, LEFT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, KIND: tl.constexpr,
    NUMBER: tl.constexpr, TMA: tl.constexpr, AHEAD: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Return dq with the contribution of one block of keys added. With AHEAD, dP is computed before P."""
    cols = tl.arange(0, BLOCK_N)
    limit, offset = seqlen_k - start_n, tl.cast(start_n, tl.int64)
    if TMA:
        k = load_block_parts(K, b, h_k, key_row(first_key, start_n), BLOCK_N, BLOCK_D, PARTS, BY_HEAD=False)
        v = load_block(V, b, h_k, key_row(first_key, start_n), 0, BLOCK_N, BLOCK_DV, BY_HEAD=False)
        if MASK and first_key is not None:
            k, v = zero_beyond(k, limit, BLOCK_N), zero_beyond((v,), limit, BLOCK_N)[0]
    else:
        k = load_row_parts(K + offset * stride_kn, stride_kn, cols, limit, HEADDIM, BLOCK_D, PARTS, MASK)
        v = load_rows(V + offset * stride_vn, stride_vn, cols, limit, HEADDIM_V, BLOCK_DV, MASK)
    minus_delta = tl.broadcast_to(-delta[:, None], (dout.shape[0], BLOCK_N))
    scores = dot_of_parts(q, k, PARTS)
    if AHEAD:
        dp = tl.dot(dout, tl.trans(v), minus_delta, input_precision="ieee")
    if SOFTCAP:
        scores = tanh(scores * scale_tanh, EXACT=dout.dtype == tl.float32)
        softcap_slope = 1.0 - scores * scores
    if ALIBI:
        scores = add_alibi(scores, slope, start_n + cols[None, :] - middle)
    if MASK and KIND:
        keys = start_n + cols[None, :]
        scores = mask_by_name(scores, middle, keys, first, last, seqlen_k, Kept, KIND, NUMBER, LEFT)
    elif MASK:
        scores = mask_scores(scores, start_n + cols[None, :], first, last, LEFT)
    p = tl.exp2(scores * scale_log2 - lse[:, None])
    if not AHEAD:
        dp = tl.dot(dout, tl.trans(v), minus_delta, input_precision="ieee")
    ds = p * dp
    if SOFTCAP:
        ds *= softcap_slope
    return add_dot_by_parts(dq, ds.to(v.dtype), k, PARTS)
