"""The forward for few queries: several programs read the K and V of a key head once, and their results are combined.

A decode step has one query for each head, and most of its time goes into reading K and V. The plain forward would start
one program per query head. These are too few programs to use the memory bandwidth, most of their rows would be empty,
and each query head of a key head would read its K and V. Therefore, as in Flash-Decoding
(https://crfm.stanford.edu/2023/10/12/flashdecoding.html):

- The queries of all query heads that share a key head are the rows of one block: row r is query r // group of head
  r % group of the group.
- The keys are split into stretches, with one program for each. It computes attention over its stretch alone, and the
  log-sum-exp of the stretch.
- `_combine` adds the results of the stretches, weighted by exp2(lse of the stretch - lse of all keys).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.backends.triton.block_sizes import Blocks, decode_blocks, head_dim_constants, key_splits
from attnbench.backends.triton.device_functions import alibi_slope, keys_seen, sequence_bounds
from attnbench.backends.triton.forward import (
    apply_descale,
    empty_results,
    finish_softmax,
    forward_block,
    softmax_of_sink,
    v_as_read,
)
from attnbench.backends.triton.launch import launch
from attnbench.backends.triton.problem import Problem

MAX_ROWS = 64  # seqlen_q * group; with more rows the blocks of the plain forward are full enough


def is_short(seqlen_q: int, group: int) -> bool:
    """Return whether all queries of a key head, seqlen_q for each of its `group` query heads, fit one block."""
    return seqlen_q * group <= MAX_ROWS


def attention_decode(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return (out, lse) as attention_forward does, for problems of which `is_short` is true."""
    out, lse = empty_results(q, v)
    nheads, nheads_k = q.shape[2], k.shape[2]
    group, heads = nheads // nheads_k, problem.batch * nheads_k
    constants = head_dim_constants(q, v)
    blocks = decode_blocks(q, v, rows=problem.seqlen_q * group)
    splits = key_splits(q, heads, problem.seqlen_k, blocks.BLOCK_N)
    part, part_lse = out[None], lse[None]
    if splits > 1:
        part = torch.empty((splits, *out.shape), dtype=torch.float32, device=q.device)
        part_lse = torch.empty((splits, *lse.shape), dtype=torch.float32, device=q.device)
    launch(
        _decode,
        blocks,
        splits * heads,
        q,
        *(q, k, v, part, part_lse),
        *(problem.cu_seqlens_q, problem.cu_seqlens_k, *(problem.descale or (None, None, None))),
        *(problem.sink, problem.alibi_slopes),
        *(*problem.strides(q, k, v_as_read(v)), part.stride(0), *problem.strides(part[0])),
        *(part_lse.stride(0), *problem.lse_strides(lse)),
        *(*problem.scales, problem.seqlen_q, problem.seqlen_k, *problem.window, nheads_k, group, splits),
        **constants,
        **problem.features,
        SINK=problem.sink is not None,
        FP8=problem.descale is not None,
    )
    if splits > 1:
        combine_stretches(part, part_lse, out, lse, constants)
    return out, lse


def combine_stretches(part: Tensor, part_lse: Tensor, out: Tensor, lse: Tensor, constants: dict[str, int]) -> None:
    """Write attention over all keys to `out` and `lse`, from the results over stretches of the keys.

    `part` is (stretches, *out.shape), `part_lse` (stretches, *lse.shape), both fp32.
    """
    splits = len(part)
    launch(
        _combine,
        Blocks(1, min(16, triton.next_power_of_2(splits)), 4, 1),
        lse.numel(),
        out,
        *(part, part_lse, out, lse, splits, lse.numel(), out.shape[1], out.shape[2]),
        HEADDIM_V=constants["HEADDIM_V"],
        BLOCK_DV=constants["BLOCK_DV"],
    )


@triton.jit(
    do_not_specialize=[
        *("scale_tanh", "scale_log2", "seqlen_q", "seqlen_k", "left", "right"),
        *("nheads_k", "group", "splits"),
    ]
)
def _decode(
    Q, K, V,
    Out, Lse,  # one result for each stretch; with a single stretch the final result
    Cu_q, Cu_k, Descale_q, Descale_k, Descale_v, Sink, Slopes,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kn, stride_kh,
    stride_vb, stride_vn, stride_vh,  # with FP8, stride_vn is the stride of the headdim
    stride_os, stride_ob, stride_om, stride_oh, stride_ls, stride_lb, stride_lh,
    scale_tanh, scale_log2, seqlen_q, seqlen_k, left, right, nheads_k, group, splits,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, VARLEN: tl.constexpr, ALIBI: tl.constexpr,
    SINK: tl.constexpr, FP8: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute attention over one stretch of the keys of one key head, for all queries of the head."""
    pid = tl.program_id(0)
    split, bh = pid % splits, (pid // splits).to(tl.int64)
    b, h_k = bh // nheads_k, bh % nheads_k
    first_q, first_k, seqlen_q, seqlen_k = sequence_bounds(b, Cu_q, Cu_k, seqlen_q, seqlen_k, VARLEN)

    rows = tl.arange(0, BLOCK_M)
    m, h = rows // group, h_k * group + rows % group
    there = m < seqlen_q
    row = first_q + m.to(tl.int64)
    cols, cols_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    pointers = Q + b * stride_qb + (row * stride_qm + h * stride_qh)[:, None] + cols[None, :]
    q = tl.load(pointers, mask=there[:, None] & (cols[None, :] < HEADDIM), other=0.0)
    K += b * stride_kb + h_k * stride_kh + first_k * stride_kn
    V += b * stride_vb + h_k * stride_vh + (first_k if FP8 else first_k * stride_vn)
    scale_tanh, scale_log2 = apply_descale(scale_tanh, scale_log2, Descale_q, Descale_k, SOFTCAP, FP8)

    # The visible keys of this stretch, [low, high).
    stretch = tl.cdiv(tl.cdiv(seqlen_k, BLOCK_N), splits) * BLOCK_N
    low = split * stretch
    high = tl.minimum(low + stretch, seqlen_k)
    whole = seqlen_k // BLOCK_N * BLOCK_N
    begin, full_begin, full_end, end = keys_seen(
        0, seqlen_q, seqlen_q, seqlen_k, left, right, whole, LEFT, RIGHT, VARLEN, BLOCK_N
    )
    begin = tl.maximum(begin, low)
    end = tl.maximum(tl.minimum(end, high), low)
    full_begin = tl.maximum(tl.minimum(full_begin, high), low)
    full_end = tl.maximum(tl.minimum(full_end, high), low)
    middle = (m + seqlen_k - seqlen_q)[:, None]
    first = middle - left
    last = tl.minimum(middle + right, seqlen_k - 1) if RIGHT else seqlen_k - 1
    slope = alibi_slope(tl.load(Slopes + h, mask=there, other=0.0), scale_log2)[:, None] if ALIBI else 0.0

    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    if SINK and split == 0:  # only one stretch includes the sink
        row_max, row_sum = softmax_of_sink(tl.load(Sink + h, mask=there, other=0.0), row_sum)
    for start_n in range(full_begin, full_end, BLOCK_N):
        acc, row_max, row_sum = forward_block(
            acc, row_max, row_sum, (q,), K, V, stride_kn, stride_vn, b, h_k, None, scale_tanh, scale_log2, slope,
            middle, first, last, start_n, seqlen_k, None, HEADDIM, HEADDIM_V, BLOCK_D, 1, BLOCK_DV, BLOCK_N, LEFT,
            SOFTCAP, ALIBI, 0, 0, FP8, TMA=False, MASK=False,
        )  # fmt: skip
    between = full_end - full_begin
    for start in range(begin if LEFT else full_end, end - between if LEFT else end, BLOCK_N):
        start_n = start + tl.where(start < full_begin, 0, between) if LEFT else start
        acc, row_max, row_sum = forward_block(
            acc, row_max, row_sum, (q,), K, V, stride_kn, stride_vn, b, h_k, None, scale_tanh, scale_log2, slope,
            middle, first, last, start_n, seqlen_k, None, HEADDIM, HEADDIM_V, BLOCK_D, 1, BLOCK_DV, BLOCK_N, LEFT,
            SOFTCAP, ALIBI, 0, 0, FP8, TMA=False, MASK=True,
        )  # fmt: skip

    acc, lse = finish_softmax(acc, row_max, row_sum, Descale_v, FP8)
    split = split.to(tl.int64)
    tl.store(Lse + split * stride_ls + b * stride_lb + h * stride_lh + row, lse, mask=there)
    pointers = Out + split * stride_os + b * stride_ob + (row * stride_om + h * stride_oh)[:, None] + cols_v[None, :]
    tl.store(pointers, acc.to(Out.dtype.element_ty), mask=there[:, None] & (cols_v[None, :] < HEADDIM_V))


@triton.jit(do_not_specialize=["splits", "count", "seqlen_q", "nheads"])
def _combine(
    Part, PartLse, Out, Lse,
    splits,
    count,  # batch * seqlen_q * nheads
    seqlen_q, nheads,
    HEADDIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,  # noqa: ARG001  `launch` passes both to every kernel
    BLOCK_N: tl.constexpr,  # stretches per turn of the loop
):  # fmt: skip
    """Combine the results of the stretches, (splits, count, headdim_v), for one query of one head.

    It is an online softmax over the stretches.
    """
    index = tl.program_id(0).to(tl.int64)  # index in (batch, seqlen_q, nheads), the layout of out
    bm, h = index // nheads, index % nheads
    at = (
        bm // seqlen_q * nheads + h
    ) * seqlen_q + bm % seqlen_q  # index in (batch, nheads, seqlen_q), the layout of lse
    cols = tl.arange(0, BLOCK_DV)
    acc = tl.zeros((BLOCK_DV,), tl.float32)
    total = 0.0
    top = float("-inf")
    for start in range(0, splits, BLOCK_N):
        split = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        there = split < splits
        lse = tl.load(PartLse + split * count + at, mask=there, other=float("inf"))
        lse = tl.where(lse == float("inf"), float("-inf"), lse)  # a stretch without a visible key
        new_top = tl.maximum(top, tl.max(lse, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight, alpha = tl.exp2(lse - base), tl.exp2(top - base)
        pointers = Part + (split * count + index)[:, None] * HEADDIM_V + cols[None, :]
        part = tl.load(pointers, mask=there[:, None] & (cols[None, :] < HEADDIM_V), other=0.0)
        acc = acc * alpha + tl.sum(weight[:, None] * part, 0)
        total = total * alpha + tl.sum(weight, 0)
        top = new_top
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    tl.store(Out + index * HEADDIM_V + cols, (acc / total).to(Out.dtype.element_ty), mask=cols < HEADDIM_V)
    tl.store(Lse + at, tl.where(empty, float("inf"), top + tl.log2(total)))
