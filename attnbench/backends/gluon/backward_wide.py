"""The kernel of the backward above 128 columns, with the roles of warps that backward.py explains.

Registers cannot hold dK and dV of 64 keys of so many columns, so the two consumers share 64 keys: each computes S, P
and dS of 32 of a block's 64 queries, writes P and dS to shared memory, and then computes half of the columns of dV, dQ
and dK.

Every tile has 64 columns, so a headdim of 192 has three tiles. A consumer has two parts of dQ and dK: the first is a
tile, the second is another tile, or half of the middle tile of three. It has one or two tiles of dV.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.backends.gluon.backward_shared import KEYS, REGISTERS, find_work, gradient_of
from attnbench.backends.gluon.dq_sum import add_to_sum
from attnbench.backends.gluon.pipeline import Sizes, new_exchange, new_own_tiles, new_row_ring

HALF = gl.constexpr(32)  # queries of a block whose scores a consumer computes


@gluon.jit(
    do_not_specialize=[
        *("scale", "scale_log2", "seqlen_q", "seqlen_k", "right", "nheads", "group"),
        *("members", "sets", "section"),
    ]
)
def _backward_hopper_wide(
    Q, K, V, DOut, Lse, Delta, DQ, DQRest,  # tensor descriptors
    DK, DV, stride_dkb, stride_dkn, stride_dkh, stride_dvb, stride_dvn, stride_dvh,
    scale, scale_log2, seqlen_q, seqlen_k, right, nheads, group,
    members, sets, section,  # arguments of find_work
    RIGHT: gl.constexpr, HEADDIM: gl.constexpr, HEADDIM_V: gl.constexpr, TILES: gl.constexpr, TILES_V: gl.constexpr,
    STAGES: gl.constexpr, STAGES_V: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of 64 keys of a key head, from `members` query heads, and add to their dq.

    A row of q or k has TILES tiles of 64 columns, a row of v or dout has TILES_V.
    """
    sizes = Sizes(seqlen_q, seqlen_k, right, nheads, group, RIGHT)
    work = find_work(sizes, members, sets, section, KEYS, 2 * HALF)
    own = new_own_tiles(K, V, TILES, TILES_V)
    queries = new_row_ring(Q, Lse, STAGES, TILES, 2)
    douts = new_row_ring(DOut, Delta, STAGES_V, TILES_V, 2)
    exchange = new_exchange(Q.dtype, KEYS, 2 * HALF)
    p_tiles = gl.allocate_shared_memory(Q.dtype, [2, KEYS, 2 * HALF], gl.NVMMASharedLayout(128, 16, 2))
    buffers = gl.allocate_shared_memory(gl.float32, [2 * BUFFERS] + DQ.block_type.shape, DQ.layout)  # noqa: RUF005
    fence_async_shared()  # the barriers are written by ordinary stores, and TMA reports to them
    dk = gradient_of(DK, stride_dkb, stride_dkn, stride_dkh, work, HEADDIM)
    dv = gradient_of(DV, stride_dvb, stride_dvn, stride_dvh, work, HEADDIM_V)
    # Tuples are written out in the call, because a tuple in a variable would turn its constants into values.
    gl.warp_specialize(
        [
            (
                _compute,
                (0, work, own, queries, douts, exchange, p_tiles, DQ, DQRest, buffers, dk, dv, scale, scale_log2),
            ),
            (
                _compute,
                (1, work, own, queries, douts, exchange, p_tiles, DQ, DQRest, buffers, dk, dv, scale, scale_log2),
            ),
            (_load, (work, own, queries, douts, Q, K, V, DOut, Lse, Delta)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _load(work, own, queries, douts, Q, K, V, DOut, Lse, Delta):
    """Load K and V, then Q, log-sum-exp, dO and delta of each block of queries, each when its tile is free again."""
    b, h, m = work.b, work.h, work.begin
    nheads = work.sizes.nheads
    own.load(K, V, b, work.start_n, h // work.sizes.group)
    for i in range(work.count):
        queries.barriers.wait_free(i)
        queries.load(i, Q, Lse, b, h, nheads, m)
        douts.barriers.wait_free(i)
        douts.load(i, DOut, Delta, b, h, nheads, m)
        h, m = work.after(h, m)


@gluon.jit
def _compute(
    index: gl.constexpr, work, own, queries, douts, exchange, p_tiles, DQ, DQRest, buffers, dk, dv, scale, scale_log2
):  # fmt: skip
    """Compute half of the columns of dk, dv and each block's dq, and S, P and dS of half of the block's queries."""
    dtype: gl.constexpr = own.k_tiles.dtype
    BUFFERS: gl.constexpr = buffers.shape[0] // 2
    first: gl.constexpr = 2 * index  # the tile of q and k that is the first part of dq and dk
    is_whole: gl.constexpr = own.tiles == 4  # whether the second part is a tile, or half of one
    second: gl.constexpr = 2 * index + 1 if is_whole else 1
    second_col: gl.constexpr = 0 if is_whole else index * 32
    width: gl.constexpr = 64 if is_whole else 32  # columns of the second part
    two_v: gl.constexpr = own.tiles_v == 4  # whether dv has two tiles
    first_v: gl.constexpr = 2 * index if two_v else index
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    second_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    cols: gl.constexpr = gl.SliceLayout(0, s_layout)
    keys = work.start_n + gl.arange(0, KEYS, gl.SliceLayout(1, s_layout))
    rows = index * HALF + gl.arange(0, HALF, cols)
    first_unmasked = work.first_unmasked(work.start_n)
    number = work.first_number()
    m = work.begin
    nothing = gl.zeros([64, 64], gl.float32, layout)
    nothing_second = gl.zeros([64, width], gl.float32, second_layout)
    dk_first = gl.zeros([KEYS, 64], gl.float32, layout)
    dk_second = gl.zeros([KEYS, width], gl.float32, second_layout)
    dv_first = gl.zeros([KEYS, 64], gl.float32, layout)
    dv_second = gl.zeros([KEYS, 64], gl.float32, layout)
    own.wait()
    for i in range(work.count):
        # Always 0, because m < 2**30, but unknown to the compiler, which would otherwise compute wgmma's descriptors of
        # 64 bits before the loop and spill them.
        zero = m >> 30
        p_tile = p_tiles.index(i & 1)
        ds_tile = exchange.tile(i)
        queries.barriers.wait(i)
        scores = gl.zeros([KEYS, HALF], gl.float32, s_layout)
        for j in gl.static_range(own.tiles):
            across = queries.tile(i, j).slice(index * HALF, HALF, 0).permute((1, 0))
            scores = warpgroup_mma(own.k(zero + j), across, scores, use_acc=j > 0, is_async=True)
        douts.barriers.wait(i)
        dp = gl.zeros([KEYS, HALF], gl.float32, s_layout)
        for j in gl.static_range(own.tiles_v):
            across = douts.tile(i, j).slice(index * HALF, HALF, 0).permute((1, 0))
            dp = warpgroup_mma(own.v(zero + j), across, dp, use_acc=j > 0, is_async=True)
        scores = warpgroup_mma_wait(own.tiles_v, deps=(scores,))
        lse = queries.row_values_of(i).slice(index * HALF, HALF, 0).load(cols)
        if m < first_unmasked:
            scores = work.mask(scores, keys, m, rows)
        p = gl.exp2(scores * scale_log2 - lse[None, :])
        p_tile.slice(index * HALF, HALF, 1).store(p.to(dtype))
        dp = warpgroup_mma_wait(0, deps=(dp,))
        delta = douts.row_values_of(i).slice(index * HALF, HALF, 0).load(cols)
        ds = (p * (dp - delta[None, :])).to(dtype)
        ds_tile.slice(index * HALF, HALF, 1).store(ds)
        exchange.arrive(index, i)
        exchange.wait(1 - index, i)
        dv_first = warpgroup_mma(p_tile, douts.tile(i, first_v), dv_first, is_async=True)
        if two_v:
            dv_second = warpgroup_mma(p_tile, douts.tile(i, first_v + 1), dv_second, is_async=True)
        across = ds_tile.permute((1, 0))
        dq_first = warpgroup_mma(across, own.k(zero + first), nothing, use_acc=False, is_async=True)
        k_second = own.k(zero + second).slice(second_col, width, 1)
        dq_second = warpgroup_mma(across, k_second, nothing_second, use_acc=False, is_async=True)
        dk_first = warpgroup_mma(ds_tile, queries.tile(i, first), dk_first, is_async=True)
        q_second = queries.tile(i, second).slice(second_col, width, 1)
        dk_second = warpgroup_mma(ds_tile, q_second, dk_second, is_async=True)
        if two_v:
            dv_first, dv_second = warpgroup_mma_wait(4, deps=(dv_first, dv_second))
        else:
            dv_first = warpgroup_mma_wait(4, deps=(dv_first,))
        douts.barriers.release(i)
        row = (number * 2 + index) * (16 + width // 4)
        dq_first = warpgroup_mma_wait(3, deps=(dq_first,))
        add_to_sum(DQ, row, dq_first, buffers.index(index), BUFFERS - 1)
        dq_second = warpgroup_mma_wait(2, deps=(dq_second,))
        add_to_sum(DQRest, row + 16, dq_second, buffers.index(index + 2 * (BUFFERS - 1)), BUFFERS - 1)
        dk_first, dk_second = warpgroup_mma_wait(0, deps=(dk_first, dk_second))
        queries.barriers.release(i)
        number, m = work.number_after(number, m)
    dk.store(dk_first * scale, work.start_n, first * 64)
    dk.store(dk_second * scale, work.start_n, second * 64 + second_col)
    dv.store(dv_first, work.start_n, first_v * 64)
    if two_v:
        dv.store(dv_second, work.start_n, first_v * 64 + 64)
    tma.store_wait(0)
