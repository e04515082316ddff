"""What the Gluon kernels for Hopper share: rings of tiles, tensor descriptors, and names that Triton has changed.

In these kernels the warps of a program have roles. One warp loads tiles into shared memory by the tensor memory
accelerator, and groups of four warps compute with them. A `Ring` is the queue between them. Every tile of it has two
barriers: `full`, at which the accelerator reports that the bytes have come, and `free`, at which every reader reports
that it has no more use for the tile. A barrier has a phase, 0 or 1, that flips each time all have reported; waiting for
phase 1 of a new barrier returns at once, which is how a writer finds the ring free at first.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"
# Without `from __future__ import annotations`: an aggregate checks its members by the annotations.

import triton
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import core

# Names of Triton 3.7 or newer, and what they were in 3.6.
aggregate = getattr(gluon, "aggregate", None) or core._aggregate
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
_memory = gl.shared_memory_descriptor
reinterpret = getattr(_memory, "reinterpret", None) or _memory._reinterpret


@builtin
def _reduce_add(desc, coord, src, _semantic=None):
    """Add shared memory to memory; Triton 3.6 has the operation but no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


add_tile = getattr(tma, "async_atomic_add", _reduce_add)


@aggregate
class Ring:
    """Tiles of one tensor in shared memory, filled and read in turn; `i` counts the uses of the ring from 0.

    A tile has `rows` of `width` columns, and beside them `rest` more columns, if any, as a second tile: sizes are
    powers of two, and a headdim of 192 is 128 and 64.
    """

    tiles: gl.shared_memory_descriptor
    rest_tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    stages: gl.constexpr
    rows: gl.constexpr
    width: gl.constexpr
    rest: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, rest_tiles, full, free, stages, rows, width, rest):
        self.tiles = tiles
        self.rest_tiles = rest_tiles
        self.full = full
        self.free = free
        self.stages = gl.constexpr(stages)
        self.rows = gl.constexpr(rows)
        self.width = gl.constexpr(width)
        self.rest = gl.constexpr(rest)

    @gluon.jit
    def load(self, i, X, XRest, b, row, h):
        """Start to load the rows from `row` on of (batch, seqlen, nheads, headdim), once the tile is free."""
        at = i % self.stages
        mbarrier.wait(self.free.index(at), (i // self.stages & 1) ^ 1)
        full = self.full.index(at)
        mbarrier.expect(full, self.rows * (self.width + self.rest) * 2)
        load_tile(X, [b, row, h, 0], full, self.tiles.index(at))
        if self.rest:
            load_tile(XRest, [b, row, h, 0], full, self.rest_tiles.index(at))

    @gluon.jit
    def wait(self, i, condition=True):
        """Wait until the tile of use `i` is full, on a condition."""
        mbarrier.wait(self.full.index(i % self.stages), i // self.stages & 1, pred=condition)

    @gluon.jit
    def release(self, i):
        """Report that the tile of use `i` has been read."""
        mbarrier.arrive(self.free.index(i % self.stages))

    @gluon.jit
    def tile(self, i):
        """Return the tile of use `i`, (rows, width)."""
        return self.tiles.index(i % self.stages).reshape([self.rows, self.width])

    @gluon.jit
    def rest_tile(self, i):
        """Return the other columns of the tile of use `i`, (rows, rest)."""
        return self.rest_tiles.index(i % self.stages).reshape([self.rows, self.rest])


@aggregate
class Sizes:
    """What all roles of a program know of the problem."""

    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    right: gl.tensor
    nheads: gl.tensor
    group: gl.tensor  # query heads of a key head
    RIGHT: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, seqlen_q, seqlen_k, right, nheads, group, RIGHT):
        self.seqlen_q = seqlen_q
        self.seqlen_k = seqlen_k
        self.right = right
        self.nheads = nheads
        self.group = group
        self.RIGHT = gl.constexpr(RIGHT)

    @gluon.jit
    def tiles_of_keys(self, start_m, M: gl.constexpr, N: gl.constexpr):
        """Return how many tiles of N keys the M queries from `start_m` on see, at least 1."""
        end = self.seqlen_k
        if self.RIGHT:
            end = gl.minimum(start_m + M + self.seqlen_k - self.seqlen_q + self.right, end)
        return gl.maximum(gl.cdiv(end, N), 1)


@gluon.jit
def new_ring(X, XRest, stages: gl.constexpr, readers: gl.constexpr):
    """Return a ring for a tensor, given by the descriptors of its tiles; each tile is read by `readers` roles."""
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(stages):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=readers)
    tiles = gl.allocate_shared_memory(X.dtype, [stages] + X.block_type.shape, X.layout)  # noqa: RUF005
    rest_tiles = tiles
    rest: gl.constexpr = 0 if XRest is None else XRest.block_type.shape[3]
    if rest:
        rest_tiles = gl.allocate_shared_memory(X.dtype, [stages] + XRest.block_type.shape, XRest.layout)  # noqa: RUF005
    return Ring(tiles, rest_tiles, full, free, stages, X.block_type.shape[1], X.block_type.shape[3], rest)


def tile_descriptor(x: Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return the descriptor of a 16-bit (batch, seqlen, nheads, headdim) tensor in tiles of `rows` x `width`.

    What lies outside the tensor reads as zeros and is not written.
    """
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows, 1, width], layout)


def float_descriptor(x: Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return the descriptor of a 2-dimensional float32 tensor in tiles of `rows` x `width`."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, width], layout)


def head_widths(headdim: int, headdim_v: int) -> tuple[int, int]:
    """Return (width, rest): q and k are read in tiles of `width` and `rest` columns, v and out in those of `width`.

    Both are powers of two, and rest may be 0. A headdim of 192 is 128 and 64, not 256; other ones are padded.
    """
    if 128 < headdim <= 192 and headdim_v <= 128:
        return 128, 64
    return max(64, triton.next_power_of_2(max(headdim, headdim_v))), 0
