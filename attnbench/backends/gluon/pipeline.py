"""Code of all Gluon kernels for Hopper: rings of tiles, the barriers on which warps wait, tensor descriptors.

In these kernels the warps of a program have roles. One warp, the loader, copies tiles to shared memory by the tensor
memory accelerator (TMA), and groups of four warps, the consumers, compute with them. Between them are rings of tiles:
`Ring` in the forward, `RowRing` in the backward. In a ring of n tiles use i takes tile i % n, for the (i // n)-th time.
Each tile has two barriers in shared memory (`Barriers`):

    loader                                        consumer
    wait(free[i % n])                             wait(full[i % n])
    expect(full[i % n], bytes)                    start the wgmma that read the tile
    start the copies, which report to full        wait for them
                                                  arrive(free[i % n])

**Barriers.** An mbarrier counts arrivals and, after `expect`, bytes; when all have come its phase ends, and the next
one begins. A wait names only the parity of a phase, 0 or 1, and returns when the phase of that parity has ended. For
use i the consumer waits with parity i // n & 1, and the loader, for the use before, with the other one. The phase
before the first counts as ended and has parity 1, so the loader's first n waits return at once.

**Not two phases late.** A wait that is two phases behind has no end, because the parity is the other one again. In a
ring this cannot happen, because neither side runs a whole round ahead of the other. `Exchange` explains why it cannot
happen there.

**Arrivals.** One thread executes `arrive`. Triton puts a barrier of the role's warps before it, so that all earlier
reads and writes of these warps are done.

**Two paths to shared memory.** TMA and wgmma reach shared memory by the async proxy, ordinary loads and stores by
another path. After an ordinary store that TMA or wgmma shall read, `fence_async_shared()` comes before the arrival or
the copy. The same holds for a new barrier: it is written by an ordinary store, and TMA reports to it.

Two more classes are for the backward: `OwnTiles` has the keys and values that a program loads once, and by `Exchange`
its consumers exchange dS.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"
# ruff: noqa: RUF005  Gluon knows no unpacking
# No `from __future__ import annotations`: an aggregate checks its members by the annotations.

from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import core

# Names in Triton 3.7 or newer, else in 3.6.
aggregate = getattr(gluon, "aggregate", None) or core._aggregate
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
_memory = gl.shared_memory_descriptor
reinterpret = getattr(_memory, "reinterpret", None) or _memory._reinterpret


@builtin
def _reduce_add(desc, coord, src, _semantic=None):
    """Add a tile in shared memory to memory. Triton 3.6 has the operation, but no public name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


add_tile = getattr(tma, "async_atomic_add", _reduce_add)


@aggregate
class Barriers:
    """The barriers of a ring of `stages` tiles; `i` counts the uses of the ring from 0.

    With no readers there are no `free` barriers: the loader then learns by another signal that a tile is free
    (backward.py, `_load`).
    """

    full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    stages: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, full, free, stages):
        self.full = full
        self.free = free
        self.stages = gl.constexpr(stages)

    @gluon.jit
    def wait_free(self, i):
        """Wait until all readers have released the tile of use `i`."""
        mbarrier.wait(self.free.index(i % self.stages), (i // self.stages & 1) ^ 1)

    @gluon.jit
    def expect(self, i, nbytes):
        """Return the barrier to which the copies of use `i`, `nbytes` in all, are to report."""
        full = self.full.index(i % self.stages)
        mbarrier.expect(full, nbytes)
        return full

    @gluon.jit
    def wait(self, i):
        """Wait until the tile of use `i` is full."""
        mbarrier.wait(self.full.index(i % self.stages), i // self.stages & 1)

    @gluon.jit
    def release(self, i):
        """Report that one reader has read the tile of use `i`."""
        mbarrier.arrive(self.free.index(i % self.stages))


@gluon.jit
def new_barriers(stages: gl.constexpr, readers: gl.constexpr):
    """Return the barriers of a ring of `stages` tiles, each of which `readers` roles read."""
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    free = full
    if readers:
        free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(stages):
        mbarrier.init(full.index(i), count=1)
        if readers:
            mbarrier.init(free.index(i), count=readers)
    return Barriers(full, free, stages)


@aggregate
class Ring:
    """A ring of tiles of one tensor in shared memory, for the forward.

    A tile has `rows` rows of `width` columns, and `rest` more columns, if any, in a second tile: sizes are powers of
    two, and a headdim of 192 is 128 and 64.
    """

    tiles: gl.shared_memory_descriptor
    rest_tiles: gl.shared_memory_descriptor
    barriers: Barriers
    rows: gl.constexpr
    width: gl.constexpr
    rest: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, rest_tiles, barriers, rows, width, rest):
        self.tiles = tiles
        self.rest_tiles = rest_tiles
        self.barriers = barriers
        self.rows = gl.constexpr(rows)
        self.width = gl.constexpr(width)
        self.rest = gl.constexpr(rest)

    @gluon.jit
    def load(self, i, X, XRest, b, row, h):
        """Wait until the tile is free, and start to load the rows from `row` on of (batch, seqlen, nheads, headdim)."""
        at = i % self.barriers.stages
        self.barriers.wait_free(i)
        full = self.barriers.expect(i, self.rows * (self.width + self.rest) * 2)
        load_tile(X, [b, row, h, 0], full, self.tiles.index(at))
        if self.rest:
            load_tile(XRest, [b, row, h, 0], full, self.rest_tiles.index(at))

    @gluon.jit
    def tile(self, i):
        """Return the tile of use `i`, (rows, width)."""
        return self.tiles.index(i % self.barriers.stages).reshape([self.rows, self.width])

    @gluon.jit
    def rest_tile(self, i):
        """Return the other columns of the tile of use `i`, (rows, rest)."""
        return self.rest_tiles.index(i % self.barriers.stages).reshape([self.rows, self.rest])


@gluon.jit
def new_ring(X, XRest, stages: gl.constexpr, readers: gl.constexpr):
    """Return a ring for a tensor, from the descriptors of its tiles; `readers` roles read each tile."""
    tiles = gl.allocate_shared_memory(X.dtype, [stages] + X.block_type.shape, X.layout)
    rest_tiles = tiles
    rest: gl.constexpr = 0 if XRest is None else XRest.block_type.shape[3]
    if rest:
        rest_tiles = gl.allocate_shared_memory(X.dtype, [stages] + XRest.block_type.shape, XRest.layout)
    barriers = new_barriers(stages, readers)
    return Ring(tiles, rest_tiles, barriers, X.block_type.shape[1], X.block_type.shape[3], rest)


@aggregate
class RowRing:
    """A ring of blocks of queries of one tensor in shared memory, for the backward.

    A block has `rows` rows in `tiles` tiles of `width` columns, and one float32 for each row: the log-sum-exp beside
    q, delta beside dout.
    """

    blocks: gl.shared_memory_descriptor
    row_values: gl.shared_memory_descriptor
    barriers: Barriers
    rows: gl.constexpr
    tiles: gl.constexpr
    width: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, blocks, row_values, barriers, rows, tiles, width):
        self.blocks = blocks
        self.row_values = row_values
        self.barriers = barriers
        self.rows = gl.constexpr(rows)
        self.tiles = gl.constexpr(tiles)
        self.width = gl.constexpr(width)

    @gluon.jit
    def load(self, i, X, RowValues, b, h, nheads, m):
        """Start to load block i, the rows from m on of (batch, seqlen, nheads, headdim); its tiles must be free."""
        at = i % self.barriers.stages
        full = self.barriers.expect(i, self.rows * (self.tiles * self.width * 2 + 4))
        for j in gl.static_range(self.tiles):
            load_tile(X, [b, m, h, j * self.width], full, self.blocks.index(at * self.tiles + j))
        load_tile(RowValues, [b * nheads + h, m], full, self.row_values.index(at))

    @gluon.jit
    def tile(self, i, j):
        """Return tile j of block i, (rows, width)."""
        return self.blocks.index(i % self.barriers.stages * self.tiles + j).reshape([self.rows, self.width])

    @gluon.jit
    def row_values_of(self, i):
        """Return the values of the rows of block i, (rows,)."""
        return self.row_values.index(i % self.barriers.stages).reshape([self.rows])


@gluon.jit
def new_row_ring(X, RowValues, stages: gl.constexpr, tiles: gl.constexpr, readers: gl.constexpr):
    """Return a ring for a tensor, from the descriptors of its tiles and of the float32 values of its rows."""
    blocks = gl.allocate_shared_memory(X.dtype, [stages * tiles] + X.block_type.shape, X.layout)
    row_values = gl.allocate_shared_memory(gl.float32, [stages] + RowValues.block_type.shape, RowValues.layout)
    barriers = new_barriers(stages, readers)
    return RowRing(blocks, row_values, barriers, X.block_type.shape[1], tiles, X.block_type.shape[3])


@aggregate
class OwnTiles:
    """The keys and values of a program in shared memory: `rows` of each, in tiles of some columns."""

    k_tiles: gl.shared_memory_descriptor
    v_tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    rows: gl.constexpr
    tiles: gl.constexpr
    width: gl.constexpr
    tiles_v: gl.constexpr
    width_v: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, k_tiles, v_tiles, full, rows, tiles, width, tiles_v, width_v):
        self.k_tiles = k_tiles
        self.v_tiles = v_tiles
        self.full = full
        self.rows = gl.constexpr(rows)
        self.tiles = gl.constexpr(tiles)
        self.width = gl.constexpr(width)
        self.tiles_v = gl.constexpr(tiles_v)
        self.width_v = gl.constexpr(width_v)

    @gluon.jit
    def load(self, K, V, b, row, h):
        """Start to load the rows from `row` on of (batch, seqlen, nheads, headdim)."""
        mbarrier.expect(self.full, self.rows * (self.tiles * self.width + self.tiles_v * self.width_v) * 2)
        for j in gl.static_range(self.tiles):
            load_tile(K, [b, row, h, j * self.width], self.full, self.k_tiles.index(j))
        for j in gl.static_range(self.tiles_v):
            load_tile(V, [b, row, h, j * self.width_v], self.full, self.v_tiles.index(j))

    @gluon.jit
    def wait(self):
        """Wait until all tiles are full."""
        mbarrier.wait(self.full, 0)

    @gluon.jit
    def k(self, j):
        """Return tile j of the keys, (rows, width)."""
        return self.k_tiles.index(j).reshape([self.rows, self.width])

    @gluon.jit
    def v(self, j):
        """Return tile j of the values, (rows, width_v)."""
        return self.v_tiles.index(j).reshape([self.rows, self.width_v])


@gluon.jit
def new_own_tiles(K, V, tiles: gl.constexpr, tiles_v: gl.constexpr):
    """Return the memory of a program's keys and values, from the descriptors and the numbers of their tiles."""
    k_tiles = gl.allocate_shared_memory(K.dtype, [tiles] + K.block_type.shape, K.layout)
    v_tiles = gl.allocate_shared_memory(V.dtype, [tiles_v] + V.block_type.shape, V.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    rows: gl.constexpr = K.block_type.shape[1]
    return OwnTiles(k_tiles, v_tiles, full, rows, tiles, K.block_type.shape[3], tiles_v, V.block_type.shape[3])


@aggregate
class Exchange:
    """The memory by which two consumers exchange dS: two tiles of keys x queries, used in turn, and their barriers.

    Two tiles suffice: a consumer that has written the dS of a block has read the dS of the block before. So neither
    writes the dS of block i + 2 before the other has waited for the dS of block i.
    """

    tiles: gl.shared_memory_descriptor
    written_0: gl.shared_memory_descriptor  # barriers of consumer 0
    written_1: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, tiles, written_0, written_1):
        self.tiles = tiles
        self.written_0 = written_0
        self.written_1 = written_1

    @gluon.jit
    def tile(self, i):
        """Return the tile of block i."""
        return self.tiles.index(i & 1)

    @gluon.jit
    def arrive(self, index: gl.constexpr, i):
        """Report that consumer `index` has written its part of block i."""
        fence_async_shared()  # wgmma reads what ordinary stores have written
        written = self.written_1 if index else self.written_0
        mbarrier.arrive(written.index(i & 1))

    @gluon.jit
    def wait(self, index: gl.constexpr, i, condition=True):
        """Wait until consumer `index` has written its part of block i, if `condition` is true.

        Call it before the consumer can have written block i + 2, whose phase has the other parity: the wait would have
        no end.
        """
        written = self.written_1 if index else self.written_0
        mbarrier.wait(written.index(i & 1), i // 2 & 1, pred=condition)


@gluon.jit
def new_exchange(dtype: gl.constexpr, keys: gl.constexpr, queries: gl.constexpr):
    """Return the memory in which two consumers exchange dS of `keys` x `queries`."""
    tiles = gl.allocate_shared_memory(dtype, [2, keys, queries], gl.NVMMASharedLayout(128, 16, 2))
    written_0 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    written_1 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(written_0.index(i), count=1)
        mbarrier.init(written_1.index(i), count=1)
    return Exchange(tiles, written_0, written_1)


@aggregate
class Sizes:
    """The sizes of the problem and the mask, passed to every role."""

    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    right: gl.tensor  # with RIGHT query i sees the keys up to i + seqlen_k - seqlen_q + right; 0 is a causal mask
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


def tile_descriptor(x: Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return the descriptor of a 16-bit (batch, seqlen, nheads, headdim) tensor in tiles of `rows` x `width`.

    Values outside of the tensor are read as zeros and never written.
    """
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows, 1, width], layout)


def float_descriptor(x: Tensor, rows: int, width: int) -> TensorDescriptor:
    """Return the descriptor of a 2-dimensional float32 tensor in tiles of `rows` x `width`."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, width], layout)
