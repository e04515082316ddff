"""The float32 sum of dq in memory, to which all programs of a head add, and the kernel that scales it to dq.

The sum consists of tiles, two for each block of queries, one from each consumer of a program. `BackwardTiles.queries`
and `BackwardTiles.width` decide which part of the block's dq a tile is:

    128 queries              64 rows
    up to 128 columns        half of the columns
    192 and 256 columns      64 columns, and behind them the other 64, or half of the middle 64

Within a tile the values have the layout of `_fragments`: four by four for each thread, as a matmul leaves them in its
registers. Stores by rows to shared memory would have bank conflicts every second time.

The order of the additions differs from run to run, and so do the last bits of dq.
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
    """Return a sum of zeros for q (batch, seqlen_q, nheads, headdim), in rows of 256 float32 values."""
    batch, seqlen_q, nheads, _ = q.shape
    values = tiles.values_of_dq_sum(batch * nheads, seqlen_q)
    return torch.zeros((values // 256, 256), dtype=torch.float32, device=q.device)


def added_rows(tiles: BackwardTiles) -> tuple[int, ...]:
    """Return the rows of the sum that one addition covers: a tile, or above 128 columns one of the tile's two parts."""
    if tiles.wide:
        return 16, 16 if tiles.width == 256 else 8
    return (tiles.queries * tiles.width // 512,)


def sum_descriptors(dq_sum: Tensor, tiles: BackwardTiles) -> tuple[TensorDescriptor, ...]:
    """Return the descriptors by which consumers add to the sum."""
    return tuple(float_descriptor(dq_sum, rows, 256) for rows in added_rows(tiles))


def scaled_dq(dq_sum: Tensor, q: Tensor, scale: float, tiles: BackwardTiles) -> Tensor:
    """Return dq, contiguous and in the dtype of q: the complete sum times the scale."""
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
    """Return the layout of a 64 x width tile of a matmul's result, with the values of each thread four by four."""
    bases = [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0]]
    i = 8
    while i < width:
        bases.append([0, i])
        i = i * 2
    return gl.SharedLinearLayout(bases)


@gluon.jit
def add_to_sum(Sum, row, values, buffer, pending: gl.constexpr):
    """Start to add 64 rows of dq to the sum, from the sum's row `row` on, without waiting for the end.

    `buffer` is shared memory with the shape of a block of `Sum`. It is written once at most `pending` earlier additions
    have yet to be read from shared memory.
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
    """Write scale times one tile of the sum to the tile's rows and columns of dq.

    Sum comes from `zero_sum`, DQ is (batch, seqlen_q, nheads, HEADDIM). Tiles are ordered by (batch, head, block of
    BLOCK_M queries, consumer), with `blocks` blocks for each head; each program writes one. The docstring of this file
    says which part of a block's WIDTH columns or BLOCK_M rows a tile holds.
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
    """Write 64 x WIDTH values of dq from a part of the sum that has the layout of `_fragments`."""
    values = tl.load(Sum + tl.arange(0, 64 * WIDTH)) * scale
    values = values.reshape(WIDTH // 8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(64, WIDTH)
    rows = first_row + tl.arange(0, 64)
    cols = first_col + tl.arange(0, WIDTH)
    at = rows.to(tl.int64)[:, None] * stride_m + cols[None, :]
    tl.store(DQ + at, values.to(DQ.dtype.element_ty), mask=(rows < seqlen_q)[:, None] & (cols < HEADDIM)[None, :])
