"""The float32 sum of dq in memory, to which all programs of a head add their parts, and the kernel that makes dq of it.

The sum consists of tiles, two for each block of queries, one from each consumer of a program. `BackwardTiles.queries`
and `BackwardTiles.width` decide which part of the block's dq a tile is:

    128 queries              64 rows
    up to 128 columns        half of the columns
    192 and 256 columns      64 columns, and behind them the other 64, or half of the middle 64

Within a tile the values lie as `_fragments` has them: those of each thread 4 by 4, as a matmul leaves them in its
registers. Written to shared memory by rows, every second store would meet a bank conflict.

The order in which programs add changes from run to run, and with it the last bits of dq.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnbench.backends.gluon.backward_tiles import BackwardTiles
from attnbench.backends.gluon.pipeline import add_tile, float_descriptor, reinterpret


def zero_sum(q: Tensor, tiles: BackwardTiles) -> Tensor:
    """Return the sum for q, (batch, seqlen_q, nheads, headdim), before anything is added: rows of 256 values."""
    batch, seqlen_q, nheads, _ = q.shape
    values = tiles.values_of_dq_sum(batch * nheads, seqlen_q)
    return torch.zeros((values // 256, 256), dtype=torch.float32, device=q.device)


def added_rows(tiles: BackwardTiles) -> tuple[int, ...]:
    """Return how many rows of the sum are added at once: those of a tile, or above 128 columns of its two parts."""
    if tiles.wide:
        return 16, 16 if tiles.width == 256 else 8
    return (tiles.queries * tiles.width // 512,)


def sum_descriptors(dq_sum: Tensor, tiles: BackwardTiles) -> tuple[TensorDescriptor, ...]:
    """Return the descriptors by which consumers add to the sum."""
    return tuple(float_descriptor(dq_sum, rows, 256) for rows in added_rows(tiles))


def scaled_dq(dq_sum: Tensor, q: Tensor, scale: float, tiles: BackwardTiles) -> Tensor:
    """Return dq, contiguous and in the dtype of q: the sum, when all is added, times the scale."""
    batch, seqlen_q, nheads, headdim = q.shape
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    blocks = tiles.blocks(seqlen_q)
    with torch.cuda.device_of(q):
        _scale_dq[(batch * nheads * blocks * 2,)](
            *(dq_sum, dq, *dq.stride()[:3], scale, seqlen_q, blocks, nheads),
            *(headdim, tiles.queries, tiles.width),
            num_warps=4,
        )
    return dq


@gluon.constexpr_function
def _fragments(width):
    """Return the layout of a 64 x width tile of a matmul's results in which each thread's values lie 4 by 4."""
    bases = [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0]]
    i = 8
    while i < width:
        bases.append([0, i])
        i = i * 2
    return gl.SharedLinearLayout(bases)


@gluon.jit
def add_to_sum(Sum, row, values, buffer, pending: gl.constexpr):
    """Add 64 rows of dq to the sum, from its row `row` on, and do not wait for it.

    `buffer` is shared memory of the block of `Sum`. It is written when at most `pending` earlier additions have yet to
    be read from shared memory.
    """
    width: gl.constexpr = values.shape[1]
    tma.store_wait(pending)
    reinterpret(buffer, gl.float32, [64, width], _fragments(width)).store(values)
    fence_async_shared()  # TMA reads what ordinary stores have written
    add_tile(Sum, [row, 0], reinterpret(buffer, gl.float32, [width // 4, 256], Sum.layout))


@triton.jit(do_not_specialize=["scale", "seqlen_q", "blocks", "nheads"])
def _scale_dq(
    Sum, DQ, stride_b, stride_m, stride_h, scale, seqlen_q, blocks, nheads,
    HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write scale times one tile of the sum to the rows and columns of dq that it stands for.

    Sum is zero_sum's, DQ (batch, seqlen_q, nheads, HEADDIM). Tiles lie in the order of (batch, head, block of BLOCK_M
    queries, consumer), `blocks` blocks for each head, and each program writes one. Which part of a block's WIDTH
    columns or BLOCK_M rows a tile has is the table at the head of this file.
    """
    pid = tl.program_id(0).to(tl.int64)
    part = (pid % 2).to(tl.int32)
    block = pid // 2 % blocks
    bh = pid // 2 // blocks
    DQ += bh // nheads * stride_b + bh % nheads * stride_h
    Sum += pid * (BLOCK_M * WIDTH // 2)
    rows = (block * BLOCK_M).to(tl.int32)
    if BLOCK_M == 128:
        _write_part(Sum, DQ, stride_m, scale, seqlen_q, rows + part * 64, 0, HEADDIM, WIDTH)
    elif WIDTH <= 128:
        _write_part(Sum, DQ, stride_m, scale, seqlen_q, rows, part * (WIDTH // 2), HEADDIM, WIDTH // 2)
    else:
        _write_part(Sum, DQ, stride_m, scale, seqlen_q, rows, part * 128, HEADDIM, 64)
        if WIDTH == 256:
            _write_part(Sum + 64 * 64, DQ, stride_m, scale, seqlen_q, rows, part * 128 + 64, HEADDIM, 64)
        else:
            _write_part(Sum + 64 * 64, DQ, stride_m, scale, seqlen_q, rows, part * 32 + 64, HEADDIM, 32)


@triton.jit
def _write_part(Sum, DQ, stride_m, scale, seqlen_q, first_row, first_col, HEADDIM: tl.constexpr, WIDTH: tl.constexpr):
    """Write 64 x WIDTH values of dq from a part of the sum, which lie as `_fragments` has them."""
    values = tl.load(Sum + tl.arange(0, 64 * WIDTH)) * scale
    values = values.reshape(WIDTH // 8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(64, WIDTH)
    rows = first_row + tl.arange(0, 64)
    cols = first_col + tl.arange(0, WIDTH)
    at = rows.to(tl.int64)[:, None] * stride_m + cols[None, :]
    tl.store(DQ + at, values.to(DQ.dtype.element_ty), mask=(rows < seqlen_q)[:, None] & (cols < HEADDIM)[None, :])
