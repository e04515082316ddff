"""The forward for Hopper, in Gluon: the computation of triton/forward.py, with roles for a program's warps.

A program has 2 or 3 groups of four warps that compute, with 64 queries each, and one warp that loads. The computing
groups share every tile of keys and values, so that a tile is read from L2 once for 128 or 192 queries. Three things
keep the tensor cores busy while exponentials are computed:

    the loader runs ahead by the tiles of its rings, across the end of a block of queries into the next one;
    a group starts S of the next keys and O += P V of the present ones, and computes the softmax meanwhile:

        start S(i + 1) = Q K(i + 1)^T           wgmma, asynchronous
        start O += P(i) V(i)                    wgmma, asynchronous
        wait for S(i + 1); its tile of K is free
        m, P(i + 1), sums of rows               O is computed meanwhile
        wait for O; its tile of V is free
        O *= exp2(m before - m)

    the groups are not synchronised with each other, so one computes its softmax while another's matmuls run.

This is FlashAttention-3's overlap within a warpgroup (arXiv 2407.08608, section 3.2). Its "ping-pong", by which the
groups take turns at the tensor cores, made no difference (docs/dev/gluon-kernel.md).

Keys are visited from the last block to the first, so that the masked blocks come before anything overlaps with them.
Programs are persistent: one for each multiprocessor, which computes one block of queries after the other.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"
from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.backends.gluon.forward_tiles import block_lists, choose_forward_tiles, head_widths
from attnbench.backends.gluon.pipeline import Sizes, new_ring, store_tile, tile_descriptor
from attnbench.backends.triton.block_sizes import device_index, heads_per_section, multiprocessors
from attnbench.backends.triton.problem import Problem

ROWS = gl.constexpr(64)  # queries of a computing group, the rows of one wgmma

# Lists that a captured CUDA graph reads at each replay. Kept here, since the cache of work_lists may drop them, and
# their memory would be used again.
_captured: list[Tensor] = []


def attention_forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return (out, lse) as the Triton kernels' attention_forward: lse in base 2, +inf where a query sees no key.

    `problem` is dense, bf16 or fp16, and has no mask but a causal one (attention.py).
    """
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32, device=q.device)
    nheads, nheads_k = q.shape[2], k.shape[2]
    width, rest = head_widths(q.shape[3], v.shape[3])
    tiles = choose_forward_tiles(width, rest, problem.seqlen_q)
    heads, rows = problem.batch * nheads, tiles.groups * ROWS.value
    head_bytes = problem.seqlen_k * (k.shape[3] + v.shape[3]) * q.element_size()
    section = heads_per_section(problem.batch * nheads_k, head_bytes) * (nheads // nheads_k)
    programs = min(triton.cdiv(problem.seqlen_q, rows) * heads, multiprocessors(device_index(q)))
    sizes = (problem.seqlen_q, problem.seqlen_k, heads)
    work = work_lists(sizes, problem.right, section, (rows, tiles.keys), programs, q.device)
    with torch.cuda.device_of(q):
        if torch.cuda.is_current_stream_capturing():
            _captured.append(work)
        _forward_hopper[(programs,)](
            tile_descriptor(q, ROWS.value, width),
            tile_descriptor(q[..., width:], ROWS.value, rest) if rest else None,
            tile_descriptor(k, tiles.keys, width),
            tile_descriptor(k[..., width:], tiles.keys, rest) if rest else None,
            tile_descriptor(v, tiles.keys, width),
            tile_descriptor(out, ROWS.value, width),
            *(lse, *problem.lse_strides(lse), work, work.stride(0)),
            *(problem.scales[1], problem.seqlen_q, problem.seqlen_k, problem.right or 0, nheads, nheads // nheads_k),
            RIGHT=problem.right is not None,
            STAGES=tiles.stages,
            GROUPS=tiles.groups,
            BLOCKS=tiles.blocks,
            REGISTERS=tiles.registers,
            num_warps=4,
        )
    return out, lse


@functools.lru_cache(maxsize=64)
def work_lists(
    sizes: tuple[int, int, int],
    right: int | None,
    section: int,
    block: tuple[int, int],
    programs: int,
    device: torch.device,
) -> Tensor:
    """Return `block_lists` on a GPU, (programs, 3 + 2 * most blocks of a list) int32.

    They are made on the host, once for these sizes, in some ms, and copied to the GPU. The alternative, a counter in
    memory from which programs take the next block, would have to be reset before each call.
    """
    return torch.tensor(block_lists(sizes, right, section, block, programs), dtype=torch.int32, device=device)


@gluon.jit(do_not_specialize=["work_length", "scale_log2", "seqlen_q", "seqlen_k", "right", "nheads", "group"])
def _forward_hopper(
    Q, QRest, K, KRest, V, Out,  # tensor descriptors; QRest and KRest are of the other columns of q and k, or None
    Lse, stride_lb, stride_lh,
    Work, work_length,  # contents as in block_lists and work_lists
    scale_log2, seqlen_q, seqlen_k, right, nheads, group,
    RIGHT: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, BLOCKS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    queries = new_ring(Q, QRest, GROUPS * BLOCKS, 1)  # a tile for each group
    keys = new_ring(K, KRest, STAGES, GROUPS)
    values = new_ring(V, None, STAGES, GROUPS)
    fence_async_shared()  # the barriers are written by ordinary stores, and TMA reports to them
    sizes = Sizes(seqlen_q, seqlen_k, right, nheads, group, RIGHT)
    work = Work + gl.program_id(0) * work_length
    # Tuples are written out in the call, because a tuple in a variable would turn its constants into values.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (0, sizes, work, queries, keys, values, Out, Lse, stride_lb, stride_lh, scale_log2, GROUPS)),
                (_compute, (1, sizes, work, queries, keys, values, Out, Lse, stride_lb, stride_lh, scale_log2, GROUPS)),
                (_load, (sizes, work, queries, keys, values, Q, QRest, K, KRest, V, GROUPS)),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (0, sizes, work, queries, keys, values, Out, Lse, stride_lb, stride_lh, scale_log2, GROUPS)),
                (_compute, (1, sizes, work, queries, keys, values, Out, Lse, stride_lb, stride_lh, scale_log2, GROUPS)),
                (_compute, (2, sizes, work, queries, keys, values, Out, Lse, stride_lb, stride_lh, scale_log2, GROUPS)),
                (_load, (sizes, work, queries, keys, values, Q, QRest, K, KRest, V, GROUPS)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


@gluon.jit
def _tiles_of_keys(sizes, start_m, M: gl.constexpr, N: gl.constexpr):
    """Return the number of tiles of N keys that the M queries from `start_m` on see, at least 1."""
    end = sizes.seqlen_k
    if sizes.RIGHT:
        end = gl.minimum(start_m + M + sizes.seqlen_k - sizes.seqlen_q + sizes.right, end)
    return gl.maximum(gl.cdiv(end, N), 1)


@gluon.jit
def _load(sizes, work, queries, keys, values, Q, QRest, K, KRest, V, GROUPS: gl.constexpr):
    """Load the tiles of every block of queries of this program, as far ahead as the rings allow."""
    M: gl.constexpr = ROWS * GROUPS
    used = 0  # tiles of keys loaded so far
    next_head = gl.load(work + 1)
    next_start = gl.load(work + 2)
    for turn in range(gl.load(work)):
        b, h, start_m = next_head // sizes.nheads, next_head % sizes.nheads, next_start
        next_head = gl.load(work + 2 * turn + 3)
        next_start = gl.load(work + 2 * turn + 4)
        count = _tiles_of_keys(sizes, start_m, M, keys.rows)
        h_k = h // sizes.group
        for i in gl.static_range(GROUPS):
            queries.load(turn * GROUPS + i, Q, QRest, b, start_m + i * ROWS, h)
        for i in range(count):
            start_n = (count - 1 - i) * keys.rows
            keys.load(used, K, KRest, b, start_n, h_k)
            values.load(used, V, None, b, start_n, h_k)
            used += 1


@gluon.jit
def _compute(
    index: gl.constexpr, sizes, work, queries, keys, values, Out, Lse, stride_lb, stride_lh, scale_log2,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Compute the 64 queries of group `index` of every block of queries of this program."""
    dtype: gl.constexpr = Out.dtype
    N: gl.constexpr = keys.rows
    D: gl.constexpr = values.width
    M: gl.constexpr = ROWS * GROUPS
    RIGHT: gl.constexpr = sizes.RIGHT
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    cols = gl.arange(0, N, gl.SliceLayout(0, s_layout))
    seqlen_q = sizes.seqlen_q
    seqlen_k = sizes.seqlen_k
    used = 0  # tiles of keys whose product with P is done
    next_head = gl.load(work + 1)
    next_start = gl.load(work + 2)
    for turn in range(gl.load(work)):
        b, h, start_m = next_head // sizes.nheads, next_head % sizes.nheads, next_start
        next_head = gl.load(work + 2 * turn + 3)
        next_start = gl.load(work + 2 * turn + 4)
        count = _tiles_of_keys(sizes, start_m, M, N)
        first_m = start_m + index * ROWS
        rows = first_m + gl.arange(0, ROWS, s_rows)
        last = gl.zeros([ROWS], gl.int32, s_rows) + seqlen_k - 1  # the last key that a query sees
        full_end = seqlen_k  # the end of the keys that every query sees
        if RIGHT:
            last = gl.minimum(rows + seqlen_k - seqlen_q + sizes.right, last)
            full_end = gl.minimum(first_m + seqlen_k - seqlen_q + sizes.right + 1, full_end)
        own = turn * GROUPS + index
        start_n = (count - 1) * N
        queries.barriers.wait(own)
        keys.barriers.wait(used)
        scores = _start_scores(queries, own, keys, used, s_layout)
        if queries.barriers.stages > GROUPS:  # noqa: SIM102  the one at compile time, the other not
            if turn > 0:  # the output of the previous block has left its tile by now
                tma.store_wait(0)
                queries.barriers.release(own - GROUPS)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        keys.barriers.release(used)
        scores = gl.where(start_n + cols[None, :] <= last[:, None], scores, float("-inf"))
        row_max = gl.max(scores, 1) * scale_log2
        # A row that has seen no key yet would compute -inf - -inf; with any finite maximum its p is 0, as it must be.
        p = gl.exp2(scores * scale_log2 - gl.where(row_max == float("-inf"), 0.0, row_max)[:, None])
        row_sum = gl.sum(p, 1)
        weights = gl.convert_layout(p.to(dtype), p_layout)
        acc = gl.zeros([ROWS, D], gl.float32, o_layout)
        for _ in range(1, count):
            start_n -= N
            keys.barriers.wait(used + 1)
            scores = _start_scores(queries, own, keys, used + 1, s_layout)
            values.barriers.wait(used)
            acc = warpgroup_mma(weights, values.tile(used), acc, is_async=True)
            scores = warpgroup_mma_wait(1, deps=(scores,))
            keys.barriers.release(used + 1)
            row_max, row_sum, alpha, p = _next_softmax(
                scores, row_max, row_sum, start_n + cols, last, start_n + N > full_end, scale_log2, RIGHT
            )
            following = p.to(dtype)
            # row_sum is a dependency so that the compiler cannot move the wait before the exponentials.
            acc, row_sum = warpgroup_mma_wait(0, deps=(acc, row_sum))
            values.barriers.release(used)
            used += 1
            weights = gl.convert_layout(following, p_layout)
            acc = acc * gl.convert_layout(alpha, o_rows)[:, None]
        values.barriers.wait(used)
        acc = warpgroup_mma(weights, values.tile(used), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        values.barriers.release(used)
        used += 1

        empty = row_sum == 0.0
        total = gl.where(empty, 1.0, row_sum)
        lse = Lse + b.to(gl.int64) * stride_lb + h.to(gl.int64) * stride_lh
        gl.store(lse + rows, gl.where(empty, float("inf"), row_max + gl.log2(total)), mask=rows < seqlen_q)
        out = acc / gl.convert_layout(total, o_rows)[:, None]
        queries.tile(own).store(out.to(dtype))  # the queries have been read, so the output can use their shared memory
        fence_async_shared()  # TMA reads what ordinary stores have written
        store_tile(Out, [b, first_m, h, 0], queries.tiles.index(own % queries.barriers.stages))
        if queries.barriers.stages == GROUPS:
            tma.store_wait(0)
            queries.barriers.release(own)
    tma.store_wait(0)


@gluon.jit
def _start_scores(queries, i, keys, j, layout: gl.constexpr):
    """Start S = Q K^T for two tiles, and return the matmul for which the caller must wait."""
    nothing = gl.zeros([ROWS, keys.rows], gl.float32, layout)
    scores = warpgroup_mma(queries.tile(i), keys.tile(j).permute((1, 0)), nothing, use_acc=False, is_async=True)
    if keys.rest:
        scores = warpgroup_mma(queries.rest_tile(i), keys.rest_tile(j).permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def _next_softmax(scores, row_max, row_sum, keys, last, is_edge, scale_log2, RIGHT: gl.constexpr):
    """Return (row_max, row_sum, factor of the earlier sums, p) of the online softmax with one more tile."""
    if RIGHT:  # noqa: SIM102  the outer condition is a compile-time constant
        if is_edge:
            scores = gl.where(keys[None, :] <= last[:, None], scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale_log2)
    base = new_max
    if RIGHT:
        base = gl.where(new_max == float("-inf"), 0.0, new_max)
    alpha = gl.exp2(row_max - base)
    p = gl.exp2(scores * scale_log2 - base[:, None])
    return new_max, row_sum * alpha + gl.sum(p, 1), alpha, p
