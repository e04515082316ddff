"""The forward: host side and kernel. attention.py explains the algorithm."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.backends.triton.block_sizes import Blocks, heads_per_section, tile_constants
from attnbench.backends.triton.device_functions import (
    add_alibi,
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
    load_transposed_block,
    load_transposed_rows,
    mask_by_name,
    mask_scores,
    sequence_bounds,
    store_rows,
    tanh,
    zero_beyond,
)
from attnbench.backends.triton.launch import can_use_tma, launch, launch_best, tensor_descriptors
from attnbench.backends.triton.named_mask import arguments
from attnbench.backends.triton.problem import FLOAT8, Problem

# Exponent by which P, which is at most 1, is scaled in fp8 to use the range of e4m3 (2^-9 to 448): values below 2^-17
# are lost instead of values below 2^-9.
FLOAT8_SHIFT = tl.constexpr(8.0)


def attention_forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return (out, lse): lse is the log-sum-exp of the scaled scores in BASE 2, (batch, nheads, seqlen_q) in fp32.

    A query that sees no key has lse +inf, not -inf, so that exp2(score - lse) in the backward is 0 without a test.
    """
    out, lse = empty_results(q, v)
    nheads, nheads_k = q.shape[2], k.shape[2]
    group = nheads // nheads_k
    head_bytes = problem.seqlen_k * (k.shape[3] + v.shape[3]) * q.element_size()
    constants = tile_constants(q, v)
    width, width_v = constants["BLOCK_D"], constants["BLOCK_DV"]
    read = v_as_read(v)
    use_tma = can_use_tma(q, k, read)

    def run(blocks: Blocks) -> None:
        inputs: tuple[Any, ...] = (q, k, v)
        if blocks.tma and use_tma:
            keys = (read, blocks.BLOCK_N, width_v) if read is v else (read, width_v, blocks.BLOCK_N)
            inner = ((k, blocks.BLOCK_N, width), keys)
            inputs = tensor_descriptors(((q, blocks.BLOCK_M, width),), inner, blocks.resident)
        launch(
            _forward,
            blocks,
            problem.blocks_of_queries(q, blocks.BLOCK_M) * problem.heads_in_order(nheads),
            q,
            *(*inputs, out, lse),
            *(problem.cu_seqlens_q, problem.cu_seqlens_k, *(problem.descale or (None, None, None))),
            *(problem.sink, problem.alibi_slopes),
            *arguments(problem.named_mask, blocks.BLOCK_M, blocks.BLOCK_N, forward=True),
            *(*problem.strides(q, k, read, out), *problem.lse_strides(lse)),
            *(*problem.scales, problem.seqlen_q, problem.seqlen_k, *problem.window),
            *(nheads, group, problem.batch * nheads, problem.blocks_of_queries(q, blocks.BLOCK_M)),
            heads_per_section(problem.heads_in_order(nheads_k), head_bytes) * group,
            problem.seqlen_k if problem.varlen else problem.seqlen_k - problem.seqlen_k % blocks.BLOCK_N,
            **constants,
            **problem.features,
            **problem.named_constants,
            SINK=problem.sink is not None,
            FP8=problem.descale is not None,
            TMA=blocks.tma and use_tma,
            RESIDENT=blocks.resident,
            # With q and k in parts, ptxas would serialise the matmuls (its warning C7514).
            AHEAD=blocks.ahead and problem.named_mask is None and constants["PARTS"] == 1,
        )

    launch_best("fwd", q, v, problem.mask_kind, use_tma, run)
    return out, lse


def v_as_read(v: Tensor) -> Tensor:
    """Return v as the kernels read it; for fp8 (batch, headdim_v, nheads_k, seqlen_k), with contiguous keys."""
    return v.transpose(1, 3) if v.dtype == FLOAT8 else v


def empty_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return new tensors for out and lse. out is bf16 where q is fp8."""
    dtype = torch.bfloat16 if q.dtype == FLOAT8 else q.dtype
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=dtype, device=q.device)
    return out, torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32, device=q.device)


# Triton specialises arguments on being multiples of 16. Strides need it for wide loads. Lengths and counts must not be
# specialised, or a new length would compile a new kernel.
@triton.jit(
    do_not_specialize=[
        *("scale_tanh", "scale_log2", "seqlen_q", "seqlen_k", "left", "right"),
        *("nheads", "group", "heads", "blocks", "section", "whole"),
    ]
)
def _forward(
    Q, K, V,  # with TMA, their tensor descriptors
    Out, Lse, Cu_q, Cu_k, Descale_q, Descale_k, Descale_v, Sink, Slopes, Listed, Kept,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh,
    stride_vb, stride_vn, stride_vh,  # with FP8, stride_vn is the stride of the headdim
    stride_ob, stride_om, stride_oh, stride_lb, stride_lh,
    scale_tanh, scale_log2, seqlen_q, seqlen_k, left, right, nheads, group,
    heads,  # batch * nheads
    blocks,  # number of blocks of queries (Problem.blocks_of_queries)
    section,
    whole,  # seqlen_k rounded down to a multiple of BLOCK_N; with VARLEN the longest seqlen_k
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, VARLEN: tl.constexpr, FP8: tl.constexpr,
    ALIBI: tl.constexpr, KIND: tl.constexpr, NUMBER: tl.constexpr, SINK: tl.constexpr,
    TMA: tl.constexpr, RESIDENT: tl.constexpr, AHEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Under a causal mask the last queries see the most keys, so they come first.
    b, h, start_m = block_of_program(Cu_q, blocks, nheads, heads, section, RIGHT, VARLEN, BLOCK_M)
    h_k = h // group
    first_q, first_k, seqlen_q, seqlen_k = sequence_bounds(b, Cu_q, Cu_k, seqlen_q, seqlen_k, VARLEN)
    rows = tl.arange(0, BLOCK_M)
    limit_m, first_m = seqlen_q - start_m, start_m.to(tl.int64) + first_q

    first_key = first_k if TMA and VARLEN else None
    if TMA:
        b = b * 0 if VARLEN else b  # packed sequences are one batch entry
        q = load_block_parts(Q, b, h, first_q + start_m, BLOCK_M, BLOCK_D, PARTS, BY_HEAD=not RESIDENT)
    else:
        Q += b * stride_qb + h * stride_qh + first_m * stride_qm
        K += b * stride_kb + h_k * stride_kh + first_k * stride_kn
        V += b * stride_vb + h_k * stride_vh + (first_k if FP8 else first_k * stride_vn)
        q = load_row_parts(Q, stride_qm, rows, limit_m, HEADDIM, BLOCK_D, PARTS, True)
    scale_tanh, scale_log2 = apply_descale(scale_tanh, scale_log2, Descale_q, Descale_k, SOFTCAP, FP8)

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

    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    if SINK:
        row_max, row_sum = softmax_of_sink(tl.load(Sink + h), row_sum)
    if AHEAD:  # S of the next block starts before the softmax of this one and keeps the tensor cores busy meanwhile
        scores = raw_scores(
            q, K, stride_kn, b, h_k, first_key, full_begin, seqlen_k, HEADDIM, BLOCK_D, PARTS, BLOCK_N, TMA, CHECK=True
        )
        for start_n in range(full_begin, full_end - BLOCK_N, BLOCK_N):
            following = raw_scores(
                q, K, stride_kn, b, h_k, first_key, start_n + BLOCK_N, seqlen_k, HEADDIM, BLOCK_D, PARTS, BLOCK_N, TMA,
                CHECK=False,
            )  # fmt: skip
            acc, row_max, row_sum = update_softmax(
                acc, row_max, row_sum, scores, V, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope, middle,
                first, last, start_n, seqlen_k, Kept, q[0].dtype, HEADDIM_V, BLOCK_DV, BLOCK_N, LEFT, SOFTCAP, ALIBI,
                KIND, NUMBER, FP8, TMA, MASK=False,
            )  # fmt: skip
            scores = following
        if full_begin < full_end:
            acc, row_max, row_sum = update_softmax(
                acc, row_max, row_sum, scores, V, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope, middle,
                first, last, full_end - BLOCK_N, seqlen_k, Kept, q[0].dtype, HEADDIM_V, BLOCK_DV, BLOCK_N, LEFT,
                SOFTCAP, ALIBI, KIND, NUMBER, FP8, TMA, MASK=False,
            )  # fmt: skip
    else:
        for start in range(full_begin, full_end, BLOCK_N):
            start_n = tl.load(Listed + start // BLOCK_N) * BLOCK_N if KIND else start
            acc, row_max, row_sum = forward_block(
                acc, row_max, row_sum, q, K, V, stride_kn, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope,
                middle, first, last, start_n, seqlen_k, Kept, HEADDIM, HEADDIM_V, BLOCK_D, PARTS, BLOCK_DV, BLOCK_N,
                LEFT, SOFTCAP, ALIBI, KIND, NUMBER, FP8, TMA, MASK=False,
            )  # fmt: skip
    # One loop for both edges, which halves the code: `between` skips the full blocks.
    between = full_end - full_begin
    for start in range(begin if LEFT else full_end, end - between if LEFT else end, BLOCK_N):
        start_n = start + tl.where(start < full_begin, 0, between) if LEFT else start
        if KIND:
            start_n = tl.load(Listed + start_n // BLOCK_N) * BLOCK_N
        acc, row_max, row_sum = forward_block(
            acc, row_max, row_sum, q, K, V, stride_kn, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope,
            middle, first, last, start_n, seqlen_k, Kept, HEADDIM, HEADDIM_V, BLOCK_D, PARTS, BLOCK_DV, BLOCK_N, LEFT,
            SOFTCAP, ALIBI, KIND, NUMBER, FP8, TMA, MASK=True,
        )  # fmt: skip

    acc, lse = finish_softmax(acc, row_max, row_sum, Descale_v, FP8)
    tl.store(Lse + b * stride_lb + h * stride_lh + first_m + rows, lse, mask=rows < limit_m)
    store_rows(
        Out + b * stride_ob + h * stride_oh + first_m * stride_om, stride_om, rows, limit_m, acc, HEADDIM_V, BLOCK_DV
    )


@triton.jit
def softmax_of_sink(sink, zeros):
    """Return (row_max, row_sum) of an online softmax over the sink alone, a score whose value is 0."""
    return zeros + sink.to(tl.float32) * 1.4426950408889634, zeros + 1.0  # log2(e)


@triton.jit
def apply_descale(scale_tanh, scale_log2, Descale_q, Descale_k, SOFTCAP: tl.constexpr, FP8: tl.constexpr):
    """Return (scale_tanh, scale_log2), the first to be applied to q k^T times the descale factors of q and k."""
    if FP8:
        factor = tl.load(Descale_q) * tl.load(Descale_k)
        if SOFTCAP:
            scale_tanh *= factor
        else:
            scale_log2 *= factor
    return scale_tanh, scale_log2


@triton.jit
def forward_block(
    acc, row_max, row_sum,
    q,  # a tuple of PARTS tiles
    K, V,
    stride_kn, stride_vn,
    b, h_k, first_key,  # for tensor descriptors, which cover whole tensors (key_row)
    scale_tanh, scale_log2,
    slope,  # ALiBi's slope, a scalar or (queries, 1)
    middle, first, last,  # each query's position as a key, and the first and last key that it sees, (queries, 1)
    start_n, seqlen_k,
    Kept,  # blocks of a mask by name
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, LEFT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, KIND: tl.constexpr,
    NUMBER: tl.constexpr, FP8: tl.constexpr, TMA: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Return (acc, row_max, row_sum) of the online softmax with one block of keys added."""
    scores = raw_scores(
        q, K, stride_kn, b, h_k, first_key, start_n, seqlen_k, HEADDIM, BLOCK_D, PARTS, BLOCK_N, TMA, MASK
    )
    return update_softmax(
        acc, row_max, row_sum, scores, V, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope, middle, first,
        last, start_n, seqlen_k, Kept, q[0].dtype, HEADDIM_V, BLOCK_DV, BLOCK_N, LEFT, SOFTCAP, ALIBI, KIND, NUMBER,
        FP8, TMA, MASK,
    )  # fmt: skip


@triton.jit
def raw_scores(
    q, K, stride_kn, b, h_k, first_key, start_n, seqlen_k,
    HEADDIM: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr,
    CHECK: tl.constexpr,
):  # fmt: skip
    """Return the unscaled q k^T of one block of keys. q is in PARTS tiles."""
    if TMA:
        k = load_block_parts(K, b, h_k, key_row(first_key, start_n), BLOCK_N, BLOCK_D, PARTS, BY_HEAD=False)
    else:
        offset, cols = tl.cast(start_n, tl.int64), tl.arange(0, BLOCK_N)
        k = load_row_parts(K + offset * stride_kn, stride_kn, cols, seqlen_k - start_n, HEADDIM, BLOCK_D, PARTS, CHECK)
    return dot_of_parts(q, k, PARTS)


@triton.jit
def update_softmax(
    acc, row_max, row_sum, scores, V, stride_vn, b, h_k, first_key, scale_tanh, scale_log2, slope, middle, first, last,
    start_n, seqlen_k, Kept,
    dtype: tl.constexpr,  # dtype of q
    HEADDIM_V: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, KIND: tl.constexpr, NUMBER: tl.constexpr, FP8: tl.constexpr, TMA: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """Return (acc, row_max, row_sum) of the online softmax with the scores of one block of keys added."""
    cols = tl.arange(0, BLOCK_N)
    if SOFTCAP:
        scores = tanh(scores * scale_tanh, EXACT=dtype == tl.float32)
    if ALIBI:
        scores = add_alibi(scores, slope, start_n + cols[None, :] - middle)
    if MASK and KIND:
        keys = start_n + cols[None, :]
        scores = mask_by_name(scores, middle, keys, first, last, seqlen_k, Kept, KIND, NUMBER, LEFT)
    elif MASK:
        scores = mask_scores(scores, start_n + cols[None, :], first, last, LEFT)
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
    # A row that has seen no key yet would compute -inf - -inf; with any finite maximum its p is 0, as it must be.
    base = tl.where(new_max == float("-inf"), 0.0, new_max) if MASK else new_max
    p = tl.exp2(scores * scale_log2 - ((base - FLOAT8_SHIFT) if FP8 else base)[:, None])
    alpha = tl.exp2(row_max - base)
    row_sum = row_sum * alpha + tl.sum(p, 1)
    # Tensor cores take e4m3 only where the summed dimension, here the keys, is contiguous. Otherwise each block of v
    # would have to be transposed in the kernel.
    if TMA and FP8:
        v = load_transposed_block(V, b, h_k, key_row(first_key, start_n), BLOCK_N, BLOCK_DV)
    elif FP8:
        offset = tl.multiple_of(
            tl.cast(start_n, tl.int64), 16
        )  # start_n is a multiple of BLOCK_N; wide loads need to know that 16 divides it
        v = load_transposed_rows(V + offset, stride_vn, seqlen_k - start_n, HEADDIM_V, BLOCK_DV, BLOCK_N, MASK)
    elif TMA:
        v = load_block(V, b, h_k, key_row(first_key, start_n), 0, BLOCK_N, BLOCK_DV, BY_HEAD=False)
    else:
        offset = tl.cast(start_n, tl.int64)
        v = load_rows(V + offset * stride_vn, stride_vn, cols, seqlen_k - start_n, HEADDIM_V, BLOCK_DV, MASK)
    if TMA and MASK and first_key is not None:
        v = zero_beyond((v,), seqlen_k - start_n, BLOCK_N)[0]
    # Tensor cores of Hopper add e4m3 products to a sum with some 14 bits. So each block of keys has its own sum,
    # which is added to acc in fp32; one sum over 16k keys with values about 1 is off by 0.2.
    weights = p.to(v.dtype)
    if FP8:  # dot's max_num_imprecise_acc would make ptxas serialise all matmuls of the kernel
        acc = acc * alpha[:, None] + tl.dot(weights, v)
    else:
        acc = tl.dot(weights, v, acc * alpha[:, None], input_precision="ieee")
    return acc, new_max, row_sum


@triton.jit
def finish_softmax(acc, row_max, row_sum, Descale_v, FP8: tl.constexpr):
    """Return out, and lse in base 2 (+inf where no key was seen), of an online softmax over all keys."""
    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)  # the row's acc is 0, so that any divisor will do
    out = acc / row_sum[:, None]
    lse = tl.where(empty, float("inf"), row_max + tl.log2(row_sum))
    if FP8:
        out *= tl.load(Descale_v)
        lse -= FLOAT8_SHIFT
    return out, lse
