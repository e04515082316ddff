"""The backward for Hopper in Gluon: one kernel for dk, dv and dq, with 5 matmuls a block and roles of warps.

A program owns a block of keys of one key head and walks over the blocks of queries that see them. It has

    two consumers    of 4 warps each, which compute and hold dK and dV in registers
    a loader         of one warp, which loads K and V once, and Q, dO, log-sum-exp and delta in rings of tiles

dQ is a sum over all programs of a head: for each block of queries the consumers write their share of dQ to shared
memory, and the tensor memory accelerator adds it to a float32 sum in memory (dq_sum.py) while the consumers go on. The
last bits of dQ may differ from run to run.

This file has the kernel for up to 128 columns. Each consumer owns 64 of the program's 128 keys. Its scores are keys x
queries, so that P and dS enter dV and dK from registers. dQ needs the dS of both consumers, which they exchange through
shared memory; each then computes one half of dQ from all 128 keys: half of the columns, or half of the rows where a
block has 128 queries. Matmuls run in the order of their start, so "wait until n are left" waits for all older ones:

    start S, start dP             wait until one is left: S. Meanwhile P
    start dV                      wait until one is left: dP. Meanwhile dS; tell the other consumer, wait for its dS
    start dQ, start dK            wait until one is left: dQ. Write it to shared memory, start its addition
    wait for dK                   the next dS signals to the loader that the tiles of this block are free

While a consumer computes P or dS, its own dP or dV runs, and so do the matmuls of the other consumer. No matmul is left
running at the end of an iteration: if the next S starts there, ptxas (of Triton 3.6) makes every matmul synchronous
(C7514).

backward_wide.py has the kernel above 128 columns.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

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

from attnbench.backends.gluon.backward_shared import KEYS, REGISTERS, find_work, gradient_of
from attnbench.backends.gluon.backward_tiles import choose_backward_tiles, query_parts
from attnbench.backends.gluon.backward_wide import _backward_hopper_wide
from attnbench.backends.gluon.dq_sum import add_to_sum, scaled_dq, sum_descriptors, zero_sum
from attnbench.backends.gluon.pipeline import (
    Sizes,
    float_descriptor,
    new_exchange,
    new_own_tiles,
    new_row_ring,
    tile_descriptor,
)
from attnbench.backends.triton.backward import add_splits, empty_splits
from attnbench.backends.triton.block_sizes import device_index, heads_per_section, multiprocessors
from attnbench.backends.triton.problem import Problem


def attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv), contiguous, in the dtype of q: all three gradients are always computed.

    `lse` and `delta` come from `padded_lse_and_delta`. `problem` is dense, bf16 or fp16, and has no mask but a causal
    one. dout, q, k and v must fit tensor descriptors (`can_use_tma`).
    """
    (batch, seqlen_q, nheads, headdim), (_, seqlen_k, nheads_k, headdim_v) = q.shape, v.shape
    tiles = choose_backward_tiles(headdim, headdim_v)
    group, key_blocks = nheads // nheads_k, triton.cdiv(seqlen_k, tiles.keys)
    parts = query_parts(group, key_blocks * batch * nheads_k, multiprocessors(device_index(q)))
    members, sets = group // parts, batch * nheads_k * parts  # query heads of a program; number of such groups of heads
    dk, dv = torch.empty(k.shape, dtype=k.dtype, device=k.device), torch.empty(v.shape, dtype=v.dtype, device=v.device)
    dk_parts, dv_parts = (dk, dv) if parts == 1 else (empty_splits(k, parts), empty_splits(v, parts))
    dq_sum = zero_sum(q, tiles)
    # Queries and dout are read, the sums of dq read and written.
    set_bytes = members * seqlen_q * ((headdim + headdim_v) * q.element_size() + 8 * tiles.width)
    columns, columns_v = tiles.columns
    with torch.cuda.device_of(q):
        (_backward_hopper_wide if tiles.wide else _backward_hopper)[(key_blocks * sets,)](
            tile_descriptor(q, tiles.queries, columns),
            tile_descriptor(k, tiles.keys, columns),
            tile_descriptor(v, tiles.keys, columns_v),
            tile_descriptor(dout, tiles.queries, columns_v),
            *(float_descriptor(x.flatten(0, 1), 1, tiles.queries) for x in (lse, delta)),
            *sum_descriptors(dq_sum, tiles),
            *(dk_parts, dv_parts, *dk_parts.stride()[:3], *dv_parts.stride()[:3]),
            *(problem.softmax_scale, problem.scales[1], seqlen_q, seqlen_k, problem.right or 0, nheads, group),
            *(members, sets, heads_per_section(sets, set_bytes)),
            RIGHT=problem.right is not None,
            HEADDIM=headdim,
            HEADDIM_V=headdim_v,
            **tiles.constants,
            num_warps=4,
        )
    if parts > 1:
        add_splits(dk_parts, dk, parts)
        add_splits(dv_parts, dv, parts)
    return scaled_dq(dq_sum, q, problem.softmax_scale, tiles), dk, dv


@gluon.jit(
    do_not_specialize=[
        *("scale", "scale_log2", "seqlen_q", "seqlen_k", "right", "nheads", "group"),
        *("members", "sets", "section"),
    ]
)
def _backward_hopper(
    Q, K, V, DOut, Lse, Delta, DQ,  # tensor descriptors
    DK, DV, stride_dkb, stride_dkn, stride_dkh, stride_dvb, stride_dvn, stride_dvh,
    scale, scale_log2, seqlen_q, seqlen_k, right, nheads, group,
    members, sets, section,  # arguments of find_work
    RIGHT: gl.constexpr, HEADDIM: gl.constexpr, HEADDIM_V: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of 128 keys of a key head, from `members` query heads, and add to their dq."""
    M: gl.constexpr = Q.block_type.shape[1]
    N: gl.constexpr = 2 * KEYS
    sizes = Sizes(seqlen_q, seqlen_k, right, nheads, group, RIGHT)
    work = find_work(sizes, members, sets, section, N, M)
    own = new_own_tiles(K, V, 1, 1)
    queries = new_row_ring(Q, Lse, STAGES, 1, 0)
    douts = new_row_ring(DOut, Delta, STAGES, 1, 0)
    exchange = new_exchange(Q.dtype, N, M)
    buffers = gl.allocate_shared_memory(gl.float32, [2] + DQ.block_type.shape, DQ.layout)  # noqa: RUF005
    fence_async_shared()  # the barriers are written by ordinary stores, and TMA reports to them
    dk = gradient_of(DK, stride_dkb, stride_dkn, stride_dkh, work, HEADDIM)
    dv = gradient_of(DV, stride_dvb, stride_dvn, stride_dvh, work, HEADDIM_V)
    # Tuples are written out in the call, because a tuple in a variable would turn its constants into values.
    gl.warp_specialize(
        [
            (_compute, (0, work, own, queries, douts, exchange, DQ, buffers, dk, dv, scale, scale_log2)),
            (_compute, (1, work, own, queries, douts, exchange, DQ, buffers, dk, dv, scale, scale_log2)),
            (_load, (work, own, queries, douts, exchange, Q, K, V, DOut, Lse, Delta)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _load(work, own, queries, douts, exchange, Q, K, V, DOut, Lse, Delta):
    """Load K and V, then Q, log-sum-exp, dO and delta of each block of queries when its tiles are free."""
    b, h, m = work.b, work.h, work.begin
    nheads = work.sizes.nheads
    own.load(K, V, b, work.start_n, h // work.sizes.group)
    # The wait below takes the dS of block i - stages + 1 as the signal that block i - stages has been read. With 1
    # stage this is block i, which is not loaded yet. With 4 or more a consumer may already have written the dS of two
    # blocks later: a wait sees only the parity, and this wait would have no end.
    gl.static_assert(
        (queries.barriers.stages == 2) | (queries.barriers.stages == 3),
        "the exchange frees tiles of 2 or 3 stages only",
    )
    for i in range(work.count):
        # A consumer that has written its dS of a block has finished the block before.
        after = i - queries.barriers.stages + 1
        for consumer in gl.static_range(2):
            exchange.wait(consumer, after, i >= queries.barriers.stages)
        queries.load(i, Q, Lse, b, h, nheads, m)
        douts.load(i, DOut, Delta, b, h, nheads, m)
        h, m = work.after(h, m)


@gluon.jit
def _compute(index: gl.constexpr, work, own, queries, douts, exchange, DQ, buffers, dk, dv, scale, scale_log2):
    """Compute dk and dv of 64 of the keys, and half of each block's dq."""
    dtype: gl.constexpr = own.k_tiles.dtype
    M: gl.constexpr = queries.rows
    D: gl.constexpr = queries.width
    DIM_V: gl.constexpr = douts.width
    by_rows: gl.constexpr = M == 2 * KEYS  # whether the consumers share dq by rows, not by columns
    width: gl.constexpr = D if by_rows else D // 2  # columns of this consumer's dq, which has 64 rows
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    k_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    v_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM_V, 16])
    q_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    cols: gl.constexpr = gl.SliceLayout(0, s_layout)
    first_n = work.start_n + index * KEYS
    keys = first_n + gl.arange(0, KEYS, gl.SliceLayout(1, s_layout))
    rows = gl.arange(0, M, cols)
    first_unmasked = work.first_unmasked(first_n)
    number = work.first_number()
    m = work.begin
    nothing = gl.zeros([KEYS, M], gl.float32, s_layout)
    nothing_dq = gl.zeros([KEYS, width], gl.float32, q_layout)
    dk_sum = gl.zeros([KEYS, D], gl.float32, k_layout)
    dv_sum = gl.zeros([KEYS, DIM_V], gl.float32, v_layout)
    own.wait()
    for i in range(work.count):
        zero = m >> 30  # 0: m < 2**30 always, which the compiler does not know (see backward_wide.py)
        q = queries.tile(i, 0)
        dout = douts.tile(i, 0)
        ds_tile = exchange.tile(i)
        all_k = own.k(zero)
        k = all_k.slice(index * KEYS, KEYS, 0)
        v = own.v(zero).slice(index * KEYS, KEYS, 0)
        queries.barriers.wait(i)
        scores = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
        douts.barriers.wait(i)
        dp = warpgroup_mma(v, dout.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if M == 64:  # with larger blocks the registers do not suffice to load these early
            lse = queries.row_values_of(i).load(cols)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        if M != 64:
            lse = queries.row_values_of(i).load(cols)
        if m < first_unmasked:
            scores = work.mask(scores, keys, m, rows)
        p = gl.exp2(scores * scale_log2 - lse[None, :])
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, v_layout, 2))
        dv_sum = warpgroup_mma(weights, dout, dv_sum, is_async=True)
        dp = warpgroup_mma_wait(1, deps=(dp,))
        delta = douts.row_values_of(i).load(cols)
        ds = (p * (dp - delta[None, :])).to(dtype)
        ds_tile.slice(index * KEYS, KEYS, 0).store(ds)
        exchange.arrive(index, i)
        left = gl.convert_layout(ds, gl.DotOperandLayout(0, k_layout, 2))
        if by_rows:
            ds_part = ds_tile.slice(index * KEYS, KEYS, 1)
            k_part = all_k
        else:
            ds_part = ds_tile
            k_part = all_k.slice(index * width, width, 1)
        exchange.wait(1 - index, i)
        dq = warpgroup_mma(ds_part.permute((1, 0)), k_part, nothing_dq, use_acc=False, is_async=True)
        dk_sum = warpgroup_mma(left, q, dk_sum, is_async=True)
        dq, dv_sum = warpgroup_mma_wait(1, deps=(dq, dv_sum))
        add_to_sum(DQ, (number * 2 + index) * (width // 4), dq, buffers.index(index), 0)
        dk_sum = warpgroup_mma_wait(0, deps=(dk_sum,))
        number, m = work.number_after(number, m)
    dk.store(dk_sum * scale, first_n, 0)
    dv.store(dv_sum, first_n, 0)
    tma.store_wait(0)
