"""dK, dV and dQ of exact attention in one loop, for Hopper, in Gluon: 5 matmuls a block where two kernels need 7.

A program owns a block of keys and walks over the queries, as in attention_dkdv.py, and adds each block's dQ to a
float32 sum in memory that all programs of a head share. The tensor memory accelerator does these additions on its own
while the program computes on. Their order changes from run to run, and with it the last bits of dQ: so this is not used
where torch wants deterministic algorithms.

What limits such a loop is that scores must be computed before P, P before dV, and so on: in Triton each matmul whose
result is needed in the same block is waited for at once, and the tensor cores stand still while P and dS are computed.
Gluon (the language below Triton, of the same compiler) leaves the waiting to us. Matmuls run in the order of their
start, so waiting until n are left waits for all before:

    wait for all of the block before        its dQ is in registers
    start S                                 meanwhile: dQ to shared memory and from there on its way; fetch a block
    start dP                                wait until one is left: S. Meanwhile: P
    start dV                                wait until one is left: dP. Meanwhile: dS, also to shared memory
    start dK and dQ                         go on to the next block

As in attention_dkdv.py scores are keys x queries, so that P and dS enter dV and dK from registers. dQ takes dS from
shared memory, transposed on the way.
"""

# ruff: noqa: RUF005  Gluon knows no unpacking
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnbench.kernels.attention_config import Blocks, heads_per_section
from attnbench.kernels.attention_problem import Problem


@builtin
def _reduce_add(desc, coord, src, _semantic=None):
    """Add shared memory to memory; Triton 3.6 has the operation but no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


# Names of Triton 3.9, and what they were before.
reduce_add = getattr(tma, "async_atomic_add", _reduce_add)
fetch = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


def fused_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, problem: Problem, blocks: Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); lse and delta are (batch, nheads, padded), see attention_bwd.py."""
    (batch, _, nheads, headdim), nheads_k = q.shape, k.shape[2]
    padded = lse.shape[2]
    m, n = blocks.BLOCK_M, blocks.BLOCK_N
    total = torch.zeros(batch, padded, nheads, headdim, dtype=torch.float32, device=q.device)
    dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (k, v))
    queries, keys = ([_tile(x, rows) for x in pair] for pair, rows in (((q, dout), m), ((k, v), n)))
    number = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    rows = [TensorDescriptor(x, [batch * nheads, padded], [padded, 1], [1, m], number) for x in (lse, delta)]
    flat = total.view(batch * padded, nheads * headdim)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    total_map = TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [m, headdim], layout)
    heads_k, group = batch * nheads_k, nheads // nheads_k
    # Queries and dO are read, the sums of dQ read and written.
    section = heads_per_section(heads_k, group * padded * headdim * (2 * q.element_size() + 4))
    options = {} if blocks.max_registers is None else {"maxnreg": blocks.max_registers}
    with torch.cuda.device_of(q):
        _dk_dv_dq[(triton.cdiv(problem.seqlen_k, n) * heads_k,)](
            *(queries[0], *keys, queries[1], *rows, total_map, dk, dv, *dk.stride()[:3]),
            *(problem.softmax_scale, problem.scales[1], problem.seqlen_q, problem.seqlen_k, problem.right or 0),
            *(padded, nheads, group, heads_k, section),
            *(problem.right is not None, headdim, m, n, blocks.num_stages, blocks.num_warps),
            num_warps=blocks.num_warps,
            **options,
        )
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return torch.mul(total[:, : q.shape[1]], problem.softmax_scale, out=dq), dk, dv


def _tile(x: Tensor, rows: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows, 1, x.shape[3]], layout)


@gluon.jit(
    do_not_specialize=[
        *("scale", "scale_log2", "seqlen_q", "seqlen_k", "right", "padded_q"),
        *("nheads", "group", "heads_k", "section"),
    ]
)
def _dk_dv_dq(
    Q, K, V, DOut, Lse, Delta, DQ,  # tensor maps
    DK, DV, stride_b, stride_n, stride_h,
    scale, scale_log2, seqlen_q, seqlen_k, right, padded_q, nheads, group,
    heads_k,  # batch * nheads_k
    section,
    RIGHT: gl.constexpr, D: gl.constexpr, M: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = Q.dtype
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, M, 16])
    keys_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, D, 16])  # of dk and dv
    across: gl.constexpr = 16 * WARPS // M if 16 * WARPS > M else 1  # warps that share rows of dq
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS // across, across], [16, D // across, 16])
    left_layout: gl.constexpr = gl.DotOperandLayout(0, keys_layout, 2)

    blocks = gl.cdiv(seqlen_k, N)  # the order of programs is that of attention_blocks.place
    pid = gl.program_id(0)
    first = pid // (section * blocks) * section
    width = gl.minimum(section, heads_k - first)
    rest = pid - first * blocks
    start_n = rest // width * N
    bh = first + rest % width
    nheads_k = nheads // group
    b, h_k = bh // nheads_k, bh % nheads_k
    shift = seqlen_k - seqlen_q
    begin = 0
    full_begin = 0
    if RIGHT:  # as queries_seeing in attention_dkdv.py
        begin = gl.maximum(start_n - shift - right, 0) // M * M
        last = gl.minimum(start_n + N, seqlen_k) - 1
        full_begin = gl.cdiv(gl.maximum(last - shift - right, 0), M) * M
    count = gl.maximum(gl.cdiv(seqlen_q - begin, M), 0) * group

    k_tile = gl.allocate_shared_memory(dtype, K.block_type.shape, K.layout)
    v_tile = gl.allocate_shared_memory(dtype, V.block_type.shape, V.layout)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES] + Q.block_type.shape, Q.layout)
    dout_tiles = gl.allocate_shared_memory(dtype, [STAGES] + DOut.block_type.shape, DOut.layout)
    lses = gl.allocate_shared_memory(gl.float32, [STAGES] + Lse.block_type.shape, Lse.layout)
    deltas = gl.allocate_shared_memory(gl.float32, [STAGES] + Delta.block_type.shape, Delta.layout)
    ds_tile = gl.allocate_shared_memory(dtype, [N, M], gl.NVMMASharedLayout.get_default_for([N, M], dtype))
    dq_tile = gl.allocate_shared_memory(gl.float32, DQ.block_type.shape, DQ.layout)
    own_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    dout_bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(own_bar, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_bars.index(i), count=1)
        mbarrier.init(dout_bars.index(i), count=1)
    fence_async_shared()

    mbarrier.expect(own_bar, 4 * N * D)
    fetch(K, [b, start_n, h_k, 0], own_bar, k_tile)
    fetch(V, [b, start_n, h_k, 0], own_bar, v_tile)
    h_ahead = h_k * group  # of the block to be fetched next
    m_ahead = begin
    for i in gl.static_range(STAGES - 1):
        _fetch_queries(
            Q, DOut, Lse, Delta, q_tiles, dout_tiles, lses, deltas, q_bars, dout_bars, i, b, h_ahead, m_ahead, nheads,
            M, D, STAGES, i < count,
        )  # fmt: skip
        h_ahead, m_ahead = _next(h_ahead, m_ahead, begin, seqlen_q, M)
    k = k_tile.reshape([N, D])
    v = v_tile.reshape([N, D])
    mbarrier.wait(own_bar, 0)

    nothing = gl.zeros([N, M], gl.float32, scores_layout)
    nothing_dq = gl.zeros([M, D], gl.float32, dq_layout)
    dk = hopper.warpgroup_mma_init(gl.zeros([N, D], gl.float32, keys_layout))
    dv = hopper.warpgroup_mma_init(gl.zeros([N, D], gl.float32, keys_layout))
    dq = hopper.warpgroup_mma_init(nothing_dq)
    keys = start_n - shift + gl.arange(0, N, gl.SliceLayout(1, scores_layout))  # counted as in attention_dkdv.py
    rows = gl.arange(0, M, gl.SliceLayout(0, scores_layout))
    unscaled = 1.0 / scale_log2
    h = h_k * group
    m = begin
    # Where the dq under way belongs. Not a plain copy of h and m: what starts a loop as the same value as another
    # variable, and is set to that in it, Gluon takes for a constant.
    row_before = b * padded_q + m
    col_before = h * D
    for i in range(count):
        stage = i % STAGES
        phase = i // STAGES & 1
        q = q_tiles.index(stage).reshape([M, D])
        dout = dout_tiles.index(stage).reshape([M, D])
        mbarrier.wait(q_bars.index(stage), phase)
        # What is subtracted from a matmul's result is what it starts from: less to do, and to keep, when it is done.
        shifted = nothing - lses.index(stage).load(scores_layout) * unscaled
        # With S started before this wait, which need only be for what came before it, ptxas (of Triton 3.6) gives up
        # asynchronous matmuls: C7514.
        dq_done = warpgroup_mma_wait(0, deps=(dq,))
        scores = warpgroup_mma(k, q.permute((1, 0)), shifted, is_async=True)
        if i > 0:
            tma.store_wait(0)  # until dq_tile has been read
            dq_tile.store(dq_done)
            fence_async_shared()
            reduce_add(DQ, [row_before, col_before], dq_tile)
        _fetch_queries(
            Q, DOut, Lse, Delta, q_tiles, dout_tiles, lses, deltas, q_bars, dout_bars, i + STAGES - 1, b, h_ahead,
            m_ahead, nheads, M, D, STAGES, i + STAGES - 1 < count,
        )  # fmt: skip
        h_ahead, m_ahead = _next(h_ahead, m_ahead, begin, seqlen_q, M)
        mbarrier.wait(dout_bars.index(stage), phase)
        dp = nothing - deltas.index(stage).load(scores_layout)
        dp = warpgroup_mma(v, dout.permute((1, 0)), dp, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        if RIGHT:  # noqa: SIM102  the one at compile time, the other not
            if m < full_begin:
                scores = gl.where(keys[:, None] <= (m + rows + right)[None, :], scores, float("-inf"))
        if start_n + N > seqlen_k:  # keys that are not there: zero in dq only if their p is finite, so make it zero
            scores = gl.where((keys < seqlen_q)[:, None], scores, float("-inf"))
        p = gl.exp2(scores * scale_log2)
        dv = warpgroup_mma(gl.convert_layout(p.to(dtype), left_layout), dout, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=(dp,))
        ds = (p * dp).to(dtype)
        ds_tile.store(ds)
        fence_async_shared()
        dk = warpgroup_mma(gl.convert_layout(ds, left_layout), q, dk, is_async=True)
        dq = warpgroup_mma(ds_tile.permute((1, 0)), k, nothing_dq, use_acc=False, is_async=True)
        row_before = b * padded_q + m
        col_before = h * D
        h, m = _next(h, m, begin, seqlen_q, M)

    dk, dv, dq_done = warpgroup_mma_wait(0, deps=(dk, dv, dq))
    if count > 0:
        tma.store_wait(0)
        dq_tile.store(dq_done)
        fence_async_shared()
        reduce_add(DQ, [row_before, col_before], dq_tile)
    n = start_n + gl.arange(0, N, gl.SliceLayout(1, keys_layout))
    cols = gl.arange(0, D, gl.SliceLayout(0, keys_layout))
    at = b.to(gl.int64) * stride_b + h_k * stride_h + n.to(gl.int64)[:, None] * stride_n + cols[None, :]
    there = (n < seqlen_k)[:, None] & (cols >= 0)[None, :]
    gl.store(DK + at, (dk * scale).to(dtype), mask=there)
    gl.store(DV + at, dv.to(dtype), mask=there)
    tma.store_wait(0)


@gluon.jit
def _next(h, m, begin, seqlen_q, M: gl.constexpr):
    """The block of queries after (h, m): of the same head, or the first of the next."""
    m += M
    over = m >= seqlen_q
    return gl.where(over, h + 1, h), gl.where(over, begin, m)


@gluon.jit
def _fetch_queries(
    Q, DOut, Lse, Delta, q_tiles, dout_tiles, lses, deltas, q_bars, dout_bars, i, b, h, m, nheads,
    M: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, wanted,
):  # fmt: skip
    """The i-th block of queries on its way to shared memory, if `wanted`."""
    stage = i % STAGES
    q_bar, dout_bar = q_bars.index(stage), dout_bars.index(stage)
    mbarrier.expect(q_bar, 2 * M * D + 4 * M, pred=wanted)
    fetch(Q, [b, m, h, 0], q_bar, q_tiles.index(stage), pred=wanted)
    fetch(Lse, [b * nheads + h, m], q_bar, lses.index(stage), pred=wanted)
    mbarrier.expect(dout_bar, 2 * M * D + 4 * M, pred=wanted)
    fetch(DOut, [b, m, h, 0], dout_bar, dout_tiles.index(stage), pred=wanted)
    fetch(Delta, [b * nheads + h, m], dout_bar, deltas.index(stage), pred=wanted)
