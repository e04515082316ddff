"""The forward over a cache of pages: decode steps, a few queries each, and chunks of a prefill.

k and v are caches, (pages, page_size, nheads_k, headdim), as a server keeps them (Kwon et al., "PagedAttention", arXiv
2309.06180): key j of sequence b is row j % page_size of page page_table[b, j // page_size]. A program looks up the page
of every key that it loads; nothing is gathered first.

- As in decode.py the queries of all query heads of a key head are rows of one block, so that keys and values are read
  once for all: row r is query r // group of head r % group. A chunk has several blocks of rows.
- Where there are too few programs for the GPU, the keys are split into stretches of one length, with a program for
  each, and decode.py's `_combine` adds their results. A shorter sequence has fewer stretches: programs without keys
  end at once.
- A cache may be e4m3 (`descale`): its values are converted to q's dtype when they are loaded.
- Latent rows (MLA with absorbed weights, DeepSeek-V2, arXiv 2405.04434, section 2.1) are keys whose first headdim_v
  columns are also the values: these columns are loaded once, and the rest of a key is multiplied separately. Where a
  block of keys lies in one page, and every row sees all of it, tensor descriptors load it (TMA).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attnbench.backends.triton.block_sizes import (
    MIN_BLOCK,
    decode_blocks,
    device_index,
    has_tma,
    head_dim_constants,
    latent_blocks,
    paged_splits,
)
from attnbench.backends.triton.decode import combine_stretches
from attnbench.backends.triton.device_functions import add_alibi, alibi_slope, keys_seen, mask_scores, tanh
from attnbench.backends.triton.forward import empty_results, finish_softmax, softmax_of_sink
from attnbench.backends.triton.launch import can_use_tma, launch
from attnbench.backends.triton.problem import Problem, Window, paged_problem

MAX_ROWS = 64  # most rows of a block


def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    seqlens_k: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window_size: Window = (None, None),
    softcap: float = 0.0,
    softmax_scale: float | None = None,
    descale: tuple[float, float] | None = None,
    latent: bool = False,
    sink: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Return attention of queries that are the last of their sequences, over keys and values in pages. Forward only.

    q is (total_q, nheads, headdim), the queries of the sequences one after the other; k_cache (pages, page_size,
    nheads_k, headdim), v_cache (pages, page_size, nheads_k, headdim_v); page_table (sequences, most pages of one),
    seqlens_k (sequences,) and cu_seqlens_q (sequences + 1,) are int32 on the device. Sequence b has the queries
    cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, at most max_seqlen_q, and seqlens_k[b] keys, at most max_seqlen_k. Their
    values are not checked. The result is (total_q, nheads, headdim_v).

    Masks, softcap, scale, sink and slopes are as in `attention`. With an e4m3 cache `descale` has the factors of k and
    of v. With `latent` v_cache is a view of the first columns of k_cache.

    Raises ValueError, with the reason, for inputs that do not fit.
    """
    problem = paged_problem(
        q, k_cache, v_cache, (page_table, seqlens_k, cu_seqlens_q), (max_seqlen_q, max_seqlen_k), causal, window_size,
        softcap=softcap, softmax_scale=softmax_scale, has_descale=descale is not None,
        latent=latent, sink=sink, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return _attend(q[None], k_cache, v_cache, page_table, seqlens_k, problem, descale or (1.0, 1.0), latent)[0]


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    seqlens_k: Tensor,
    problem: Problem,
    descale: tuple[float, float],
    latent: bool,
) -> Tensor:
    out, lse = empty_results(q, v_cache)
    nheads, nheads_k = q.shape[2], k_cache.shape[2]
    group, heads = nheads // nheads_k, problem.batch * nheads_k
    rows = problem.seqlen_q * group
    if latent:  # the kernel's q and k have the columns of v; their other columns are separate tensors
        constants = head_dim_constants(v_cache, v_cache)
        rest = q.shape[3] - v_cache.shape[3]
        blocks = latent_blocks(q, v_cache.shape[3], rows)
    else:
        constants, rest = head_dim_constants(q, v_cache), 0
        blocks = decode_blocks(q, v_cache, rows=min(rows, MAX_ROWS))
    block_r = max(MIN_BLOCK, triton.next_power_of_2(rest))
    in_one_page = k_cache.shape[1] % blocks.BLOCK_N == 0 and k_cache.is_contiguous() and k_cache.dtype == q.dtype
    tma = latent and in_one_page and has_tma(device_index(q)) and can_use_tma(k_cache)
    descriptors: tuple[TensorDescriptor | None, ...] = (None, None)
    if tma:
        rows_of_k = k_cache.view(-1, k_cache.shape[3])
        widths = constants["BLOCK_D"], block_r
        descriptors = (*(TensorDescriptor.from_tensor(rows_of_k, [blocks.BLOCK_N, width]) for width in widths),)
    row_blocks = triton.cdiv(rows, blocks.BLOCK_M)
    splits = paged_splits(q, heads * row_blocks, problem.seqlen_k, blocks.BLOCK_N)
    stretch = triton.cdiv(triton.cdiv(problem.seqlen_k, blocks.BLOCK_N), splits) * blocks.BLOCK_N
    part, part_lse = out[None], lse[None]
    if splits > 1:
        part = torch.empty((splits, *out.shape), dtype=torch.float32, device=q.device)
        part_lse = torch.empty((splits, *lse.shape), dtype=torch.float32, device=q.device)
    launch(
        _paged,
        blocks,
        splits * row_blocks * heads,
        q,
        *(q, k_cache, v_cache, *descriptors, part, part_lse, page_table, seqlens_k, problem.cu_seqlens_q),
        *(problem.sink, problem.alibi_slopes),
        *(q.stride(1), q.stride(2), *k_cache.stride()[:3], *v_cache.stride()[:3], page_table.stride(0)),
        *(part.stride(0), part.stride(2), part.stride(3), part_lse.stride(0), part_lse.stride(2)),
        *(*problem.scales, *descale, problem.seqlen_k, *problem.window),
        *(nheads_k, group, row_blocks, splits, stretch),
        **constants,
        LEFT=problem.left is not None,
        RIGHT=problem.right is not None,
        SOFTCAP=problem.softcap > 0,
        ALIBI=problem.alibi_slopes is not None,
        SINK=problem.sink is not None,
        PAGE=k_cache.shape[1],
        LATENT=latent,
        REST=rest,
        BLOCK_R=block_r,
        TMA=tma,
    )
    if splits > 1:
        combine_stretches(part, part_lse, out, lse, constants)
    return out


@triton.jit(
    do_not_specialize=[
        *("scale_tanh", "scale_log2", "descale_k", "descale_v", "seqlen_k", "left", "right"),
        *("nheads_k", "group", "row_blocks", "splits", "stretch"),
    ]
)
def _paged(
    Q, K, V,
    Rows, Rest,  # with TMA, descriptors of K's rows: of the columns that are a value, and of the others
    Out, Lse,  # one result for each stretch; with a single stretch the final result
    Table, Seqlens_k, Cu_q, Sink, Slopes,
    stride_qm, stride_qh, stride_kp, stride_kn, stride_kh, stride_vp, stride_vn, stride_vh, stride_tb,
    stride_os, stride_om, stride_oh, stride_ls, stride_lh,
    scale_tanh, scale_log2, descale_k, descale_v,
    seqlen_k,  # keys of the longest sequence
    left, right, nheads_k, group, row_blocks, splits,
    stretch,  # keys of one stretch, a multiple of BLOCK_N
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, SINK: tl.constexpr,
    PAGE: tl.constexpr, LATENT: tl.constexpr,
    REST: tl.constexpr, BLOCK_R: tl.constexpr,  # with LATENT, the columns of a key that are not part of its value
    TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute attention of one block of rows over one stretch of the keys of one key head of one sequence."""
    pid = tl.program_id(0)
    split, rest = pid % splits, pid // splits
    start, bh = (row_blocks - 1 - rest % row_blocks) * BLOCK_M, rest // row_blocks  # the last rows see the most keys
    b, h_k = bh // nheads_k, (bh % nheads_k).to(tl.int64)
    whole = seqlen_k
    first_q = tl.load(Cu_q + b).to(tl.int64)
    seqlen_q, seqlen_k = tl.load(Cu_q + b + 1).to(tl.int32) - first_q.to(tl.int32), tl.load(Seqlens_k + b)

    rows = start + tl.arange(0, BLOCK_M)
    m, h = rows // group, h_k * group + rows % group
    there = m < seqlen_q
    row = first_q + m
    cols, cols_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    pointers = Q + (row * stride_qm + h * stride_qh)[:, None] + cols[None, :]
    q = tl.load(pointers, mask=there[:, None] & (cols[None, :] < HEADDIM), other=0.0)
    q_rest = q
    if LATENT:
        cols_r = tl.arange(0, BLOCK_R)
        pointers = Q + (row * stride_qm + h * stride_qh)[:, None] + HEADDIM + cols_r[None, :]
        q_rest = tl.load(pointers, mask=there[:, None] & (cols_r[None, :] < REST), other=0.0)
    K += h_k * stride_kh
    V += h_k * stride_vh
    Table += b.to(tl.int64) * stride_tb
    if SOFTCAP:
        scale_tanh *= descale_k
    else:
        scale_log2 *= descale_k

    # The keys of this stretch that some row sees.
    first_m, end_m = start // group, tl.minimum((start + BLOCK_M - 1) // group + 1, seqlen_q)
    begin, full_begin, full_end, end = keys_seen(
        first_m, end_m, seqlen_q, seqlen_k, left, right, whole, LEFT, RIGHT, True, BLOCK_N
    )
    low = split * stretch
    high = tl.minimum(low + stretch, seqlen_k)
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
        acc, row_max, row_sum = _paged_block(
            acc, row_max, row_sum, q, q_rest, K, V, Rows, Rest, Table, stride_kp, stride_kn, stride_vp, stride_vn,
            scale_tanh, scale_log2, slope, middle, first, last, start_n, seqlen_k, HEADDIM, HEADDIM_V, BLOCK_D,
            BLOCK_DV, BLOCK_N, LEFT, SOFTCAP, ALIBI, PAGE, LATENT, REST, BLOCK_R, TMA, MASK=False,
        )  # fmt: skip
    between = full_end - full_begin
    for start_e in range(begin if LEFT else full_end, end - between if LEFT else end, BLOCK_N):
        start_n = start_e + tl.where(start_e < full_begin, 0, between) if LEFT else start_e
        acc, row_max, row_sum = _paged_block(
            acc, row_max, row_sum, q, q_rest, K, V, Rows, Rest, Table, stride_kp, stride_kn, stride_vp, stride_vn,
            scale_tanh, scale_log2, slope, middle, first, last, start_n, seqlen_k, HEADDIM, HEADDIM_V, BLOCK_D,
            BLOCK_DV, BLOCK_N, LEFT, SOFTCAP, ALIBI, PAGE, LATENT, REST, BLOCK_R, False, MASK=True,
        )  # fmt: skip

    acc, lse = finish_softmax(acc, row_max, row_sum, None, False)
    split = split.to(tl.int64)
    tl.store(Lse + split * stride_ls + h * stride_lh + row, lse, mask=there)
    pointers = Out + split * stride_os + (row * stride_om + h * stride_oh)[:, None] + cols_v[None, :]
    acc *= descale_v
    tl.store(pointers, acc.to(Out.dtype.element_ty), mask=there[:, None] & (cols_v[None, :] < HEADDIM_V))


@triton.jit
def _paged_block(
    acc, row_max, row_sum, q, q_rest, K, V, Rows, Rest, Table, stride_kp, stride_kn, stride_vp, stride_vn,
    scale_tanh, scale_log2, slope, middle,  # ALiBi's slope, and each row's position as a key, (rows, 1)
    first, last,  # first and last key that each row sees, (rows, 1)
    start_n, seqlen_k,
    HEADDIM: tl.constexpr, HEADDIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, LEFT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, PAGE: tl.constexpr,
    LATENT: tl.constexpr, REST: tl.constexpr, BLOCK_R: tl.constexpr, TMA: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Return (acc, row_max, row_sum) of the online softmax with one block of keys, read from pages, added."""
    keys = start_n + tl.arange(0, BLOCK_N)
    cols, cols_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    known = keys < seqlen_k  # all true without MASK, but the compiler cannot know it
    if TMA:
        first_row = tl.load(Table + start_n // PAGE) * PAGE + start_n % PAGE
        k, rest = Rows.load([first_row, 0]), Rest.load([first_row, HEADDIM])
    else:
        page, place = tl.load(Table + keys // PAGE, mask=known, other=0).to(tl.int64), keys % PAGE
        of_k = K + (page * stride_kp + place * stride_kn)[:, None] + cols[None, :]
        k = tl.load(of_k, mask=known[:, None] & (cols[None, :] < HEADDIM), other=0.0).to(q.dtype)
        if LATENT:
            cols_r = tl.arange(0, BLOCK_R)
            of_rest = K + (page * stride_kp + place * stride_kn)[:, None] + HEADDIM + cols_r[None, :]
            rest = tl.load(of_rest, mask=known[:, None] & (cols_r[None, :] < REST), other=0.0).to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if LATENT:
        scores = tl.dot(q_rest, tl.trans(rest), scores, input_precision="ieee")
    if SOFTCAP:
        scores = tanh(scores * scale_tanh, EXACT=q.dtype == tl.float32)
    if ALIBI:
        scores = add_alibi(scores, slope, keys[None, :] - middle)
    if MASK:
        scores = mask_scores(scores, keys[None, :], first, last, LEFT)
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
    base = tl.where(new_max == float("-inf"), 0.0, new_max) if MASK else new_max  # a row that has seen no key yet
    p = tl.exp2(scores * scale_log2 - base[:, None])
    alpha = tl.exp2(row_max - base)
    row_sum = row_sum * alpha + tl.sum(p, 1)
    if LATENT:
        v = k
    else:
        of_v = V + (page * stride_vp + place * stride_vn)[:, None] + cols_v[None, :]
        v = tl.load(of_v, mask=known[:, None] & (cols_v[None, :] < HEADDIM_V), other=0.0).to(q.dtype)
    acc = tl.dot(p.to(q.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return acc, new_max, row_sum
