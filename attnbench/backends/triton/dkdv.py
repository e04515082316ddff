"""The kernel of dK and dV: a program owns a block of keys and loops over the queries that see them."""

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
    listed_blocks,
    load_block,
    load_block_parts,
    load_row_parts,
    load_rows,
    mask_by_name,
    mask_scores,
    sequence_bounds,
    store_row_parts,
    store_rows,
    tanh,
    zero_parts,
)


@triton.jit(
    do_not_specialize=[
        *("scale", "scale_tanh", "scale_log2", "seqlen_q", "seqlen_k", "left", "right"),
        *("nheads", "group", "splits", "heads", "blocks", "section"),
    ]
)
def _dk_dv(
    Q, K, V, DOut,  # with TMA, their tensor descriptors
    Lse, Delta,  # padded; with TMA, their tensor descriptors
    DK, DV, Cu_q, Cu_k, Slopes, Listed, Kept,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    stride_gb, stride_gm, stride_gh, stride_lb, stride_lh,
    stride_dkb, stride_dkn, stride_dkh, stride_dvb, stride_dvn, stride_dvh,
    scale, scale_tanh, scale_log2, seqlen_q, seqlen_k, left, right, nheads,
    group,  # query heads of one program
    splits,  # programs that share a block of keys; None for one program
    heads,  # batch * nheads_k * splits
    blocks,  # number of blocks of keys (Problem.blocks_of_keys)
    section,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, VARLEN: tl.constexpr, ALIBI: tl.constexpr,
    KIND: tl.constexpr, NUMBER: tl.constexpr, TMA: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of one block of keys of one key head, from the queries of all query heads that share it.

    Where too few programs would run, `splits` programs share the block, each with a part of the query heads. DK and DV
    are then fp32, with splits * nheads_k heads: the parts of key head h are the heads from h * splits on, which
    _sum_splits in backward.py adds.
    """
    # Under a causal mask most queries see the first keys, so the block with the most work is already first.
    nheads_k = nheads // group  # the heads of dK and dV, including the factor `splits`
    b, h_k, start_n = block_of_program(Cu_k, blocks, nheads_k, heads, section, False, VARLEN, BLOCK_N)
    h_kv = h_k if splits is None else h_k // splits  # head of K and V
    first_q, first_k, seqlen_q, seqlen_k = sequence_bounds(b, Cu_q, Cu_k, seqlen_q, seqlen_k, VARLEN)
    cols = tl.arange(0, BLOCK_N)
    limit_n, first_n = seqlen_k - start_n, start_n.to(tl.int64) + first_k
    if TMA:
        k = load_block_parts(K, b, h_kv, start_n, BLOCK_N, BLOCK_D, PARTS, BY_HEAD=True)
        v = load_block(V, b, h_kv, start_n, 0, BLOCK_N, BLOCK_DV, BY_HEAD=True)
    else:
        K += b * stride_kb + h_kv * stride_kh + first_n * stride_kn
        V += b * stride_vb + h_kv * stride_vh + first_n * stride_vn
        k = load_row_parts(K, stride_kn, cols, limit_n, HEADDIM, BLOCK_D, PARTS, True)
        v = load_rows(V, stride_vn, cols, limit_n, HEADDIM_V, BLOCK_DV, True)

    begin, full_begin, full_end, end = queries_seeing(
        start_n, tl.minimum(start_n + BLOCK_N, seqlen_k), seqlen_q, seqlen_k, left, right, LEFT, RIGHT, VARLEN, BLOCK_M
    )
    if KIND:  # the loop below then counts blocks of the list of a mask by name
        begin, full_begin = 0, 0
        Listed, full_end, end = listed_blocks(Listed, start_n // BLOCK_N, tl.cdiv(seqlen_q, BLOCK_M), BLOCK_M)
    # Query m sees the keys from m - left to m + right, counted from the key with which query 0 is aligned. `keys` are
    # the positions of this program's keys in this count.
    keys = (start_n - (seqlen_k - seqlen_q) + cols)[:, None]
    dk = zero_parts(BLOCK_N, BLOCK_D, PARTS)
    dv = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for member in range(group):
        h = h_k * group + member
        q_head = Q if TMA else Q + b * stride_qb + h * stride_qh + first_q * stride_qm
        g_head = DOut if TMA else DOut + b * stride_gb + h * stride_gh + first_q * stride_gm
        lse_head = Lse if TMA else Lse + b * stride_lb + h * stride_lh + first_q
        delta_head = Delta if TMA else Delta + b * stride_lb + h * stride_lh + first_q
        slope = alibi_slope(tl.load(Slopes + h), scale_log2) if ALIBI else 0.0
        for start in range(begin, end, BLOCK_M):
            start_m = tl.load(Listed + start // BLOCK_M) * BLOCK_M if KIND else start
            is_edge = (start < full_begin) | (start >= full_end)
            dk, dv = _dk_dv_block(
                dk, dv, k, v, q_head, g_head, lse_head, delta_head, stride_qm, stride_gm, b, h, scale_tanh, scale_log2,
                slope, keys, left, right, start_m, is_edge, seqlen_q, seqlen_k, Kept, HEADDIM, HEADDIM_V, BLOCK_D,
                PARTS, BLOCK_DV, BLOCK_M, LEFT, RIGHT, SOFTCAP, VARLEN, ALIBI, KIND, NUMBER, TMA, AHEAD,
            )  # fmt: skip

    store_row_parts(
        DK + b * stride_dkb + h_k * stride_dkh + first_n * stride_dkn,
        stride_dkn, cols, limit_n, dk, scale, HEADDIM, BLOCK_D, PARTS,
    )  # fmt: skip
    store_rows(
        DV + b * stride_dvb + h_k * stride_dvh + first_n * stride_dvn,
        stride_dvn, cols, limit_n, dv, HEADDIM_V, BLOCK_DV,
    )  # fmt: skip


@triton.jit
def queries_seeing(
    begin_n, end_n, seqlen_q, seqlen_k, left, right,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, VARLEN: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Return (begin, full_begin, full_end, end) of the queries that see keys [begin_n, end_n), in blocks of BLOCK_M.

    Queries of [full_begin, full_end) see every key, queries of [begin, full_begin) and [full_end, end) see some keys,
    and all others see none.
    """
    shift = seqlen_k - seqlen_q
    begin = 0
    full_begin = 0
    end = seqlen_q
    full_end = seqlen_q  # not rounded to BLOCK_M, because queries beyond seqlen_q add nothing
    if RIGHT:
        begin = tl.maximum(begin_n - shift - right, 0) // BLOCK_M * BLOCK_M
        full_begin = tl.cdiv(tl.maximum(end_n - 1 - shift - right, 0), BLOCK_M) * BLOCK_M
    if LEFT:
        end = tl.minimum(tl.maximum(end_n + left - shift, 0), seqlen_q)
        full_end = tl.minimum(tl.maximum(begin_n + left - shift + 1, 0), seqlen_q) // BLOCK_M * BLOCK_M
        full_begin = tl.minimum(full_begin, full_end)
    if VARLEN:
        some = begin_n < end_n  # false where the block is beyond the end of a short sequence
        full_begin = tl.where(some, full_begin, 0)
        full_end = tl.where(some, full_end, 0)
        end = tl.where(some, end, 0)
    return begin, full_begin, full_end, end


@triton.jit
def _dk_dv_block(
    dk, dv, k, v,  # dk and k in PARTS tiles
    Q, DOut, Lse, Delta,
    stride_qm, stride_gm,
    b, h,  # for TMA
    scale_tanh, scale_log2,
    slope,  # ALiBi's slope
    keys,  # (keys, 1), counted from the key with which query 0 is aligned
    left, right,
    start_m,
    is_edge,  # whether some query does not see some key
    seqlen_q, seqlen_k,
    Kept,  # blocks of a mask by name
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    VARLEN: tl.constexpr, ALIBI: tl.constexpr, KIND: tl.constexpr, NUMBER: tl.constexpr, TMA: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Return dk and dv with the contribution of one block of queries added.

    Scores are transposed (keys x queries), because both results are by key. Only a causal mask or window needs a mask:
    a query beyond seqlen_q has lse +inf, which makes its p 0, and a key beyond seqlen_k changes only its own row of dk
    and dv, which is not stored. With AHEAD, dP is computed before P.
    """
    rows = tl.arange(0, BLOCK_M)
    limit, offset = seqlen_q - start_m, tl.cast(start_m, tl.int64)
    if TMA:
        q = load_block_parts(Q, b, h, start_m, BLOCK_M, BLOCK_D, PARTS, BY_HEAD=False)
        dout = load_block(DOut, b, h, start_m, 0, BLOCK_M, BLOCK_DV, BY_HEAD=False)
        lse = Lse.load([b.to(tl.int32), h.to(tl.int32), start_m]).reshape(BLOCK_M)
        delta = Delta.load([b.to(tl.int32), h.to(tl.int32), start_m]).reshape(BLOCK_M)
    else:
        q = load_row_parts(Q + offset * stride_qm, stride_qm, rows, limit, HEADDIM, BLOCK_D, PARTS, True)
        dout = load_rows(DOut + offset * stride_gm, stride_gm, rows, limit, HEADDIM_V, BLOCK_DV, True)
        if VARLEN:  # packed sequences have no padding between them
            lse = tl.load(Lse + offset + rows, mask=rows < limit, other=float("inf"))
            delta = tl.load(Delta + offset + rows, mask=rows < limit, other=0.0)
        else:
            lse = tl.load(Lse + offset + rows)
            delta = tl.load(Delta + offset + rows)
    # dP - delta is one matmul that starts from -delta, so that delta does not occupy registers until a subtraction.
    minus_delta = tl.broadcast_to(-delta[None, :], (v.shape[0], BLOCK_M))
    scores = dot_of_parts(k, q, PARTS)
    if AHEAD:
        dp = tl.dot(v, tl.trans(dout), minus_delta, input_precision="ieee")
    if SOFTCAP:
        scores = tanh(scores * scale_tanh, EXACT=dout.dtype == tl.float32)
        softcap_slope = 1.0 - scores * scores
    if ALIBI:
        scores = add_alibi(scores, slope, keys - start_m - rows[None, :])
    if LEFT or RIGHT or KIND:  # noqa: SIM102  the outer condition is a compile-time constant
        # A branch instead of a second loop: two loops would need too many registers.
        if is_edge:
            position = start_m + rows[None, :]
            if KIND:
                shift = seqlen_k - seqlen_q
                last = position + right if RIGHT else seqlen_k
                scores = mask_by_name(
                    scores, position + shift, keys + shift, position + shift - left, last + shift, seqlen_k, Kept,
                    KIND, NUMBER, LEFT,
                )  # fmt: skip
            elif RIGHT:
                scores = mask_scores(scores, keys, position - left, position + right, LEFT)
            else:
                scores = tl.where(keys >= position - left, scores, float("-inf"))
    p = tl.exp2(scores * scale_log2 - lse[None, :])
    dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision="ieee")
    if not AHEAD:
        dp = tl.dot(v, tl.trans(dout), minus_delta, input_precision="ieee")
    ds = p * dp
    if SOFTCAP:
        ds *= softcap_slope
    dk = add_dot_by_parts(dk, ds.to(dout.dtype), q, PARTS)
    return dk, dv
