"""What both kernels of the backward share: which keys and queries a program has, its shared memory, and the mask.

A program has some keys of one key head. A warp that loads brings them once, and then block after block of the queries
that see them, each with its rows of dout, log-sum-exp and delta. Two groups of four warps, the consumers, compute.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"
# ruff: noqa: RUF005  Gluon knows no unpacking
# Without `from __future__ import annotations`: an aggregate checks its members by the annotations.

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attnbench.backends.gluon.pipeline import Sizes, aggregate, load_tile

KEYS = gl.constexpr(64)  # whose scores a consumer computes: the rows of one wgmma
REGISTERS = gl.constexpr(240)  # of a thread of a consumer, the most with two of them


@aggregate
class Work:
    """The keys of a program, and the blocks of queries that see them.

    It visits blocks of `rows` queries from `begin` on, in query head h and the ones after it: `count` blocks in all.
    """

    sizes: Sizes
    b: gl.tensor
    h: gl.tensor
    bh: gl.tensor  # b * nheads + h
    head: gl.tensor  # of its dk and dv: one for each part of the query heads of a key head
    start_n: gl.tensor  # its first key
    begin: gl.tensor
    count: gl.tensor
    rows: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, sizes, b, h, bh, head, start_n, begin, count, rows):
        self.sizes = sizes
        self.b = b
        self.h = h
        self.bh = bh
        self.head = head
        self.start_n = start_n
        self.begin = begin
        self.count = count
        self.rows = gl.constexpr(rows)

    @gluon.jit
    def after(self, h, m):
        """Return (head, first query) of the block after that of these."""
        m += self.rows
        over = m >= self.sizes.seqlen_q
        return gl.where(over, h + 1, h), gl.where(over, self.begin, m)

    @gluon.jit
    def first_number(self):
        """Return the number of the first block among all blocks of queries of the batch, head by head."""
        return self.bh * gl.cdiv(self.sizes.seqlen_q, self.rows) + self.begin // self.rows

    @gluon.jit
    def number_after(self, number, m):
        """Return (number, first query) of the block after that of these."""
        m += self.rows
        number += 1
        if m >= self.sizes.seqlen_q:
            m = self.begin
            number += self.begin // self.rows
        return number, m

    @gluon.jit
    def first_unmasked(self, first_n):
        """Return the first query from which on all see the KEYS keys from `first_n` on.

        If some of these lie beyond seqlen_k there is none: their score is 0, which exp2 may make infinite, and infinity
        times the zeros of such a key would spoil dq.
        """
        sizes = self.sizes
        first = 0
        if sizes.RIGHT:
            first = first_n + KEYS - 1 - (sizes.seqlen_k - sizes.seqlen_q) - sizes.right
        return gl.where(first_n + KEYS > sizes.seqlen_k, 2147483647, first)

    @gluon.jit
    def mask(self, scores, keys, m, rows):
        """Return the scores, keys x queries, with -inf where the query m + row does not see the key."""
        sizes = self.sizes
        last = gl.zeros_like(rows) + sizes.seqlen_k - 1  # the last key that a query sees
        if sizes.RIGHT:
            last = gl.minimum(m + (sizes.seqlen_k - sizes.seqlen_q) + sizes.right + rows, last)
        return gl.where(keys[:, None] <= last[None, :], scores, float("-inf"))


@gluon.jit
def find_work(sizes, members, parts, section, N: gl.constexpr, M: gl.constexpr):
    """Return the work of this program: N keys, and `members` query heads in blocks of M queries.

    `parts` is how many such sets of query heads there are in the batch. Programs compute the same keys of `section` of
    them, whose queries fit L2, before the next keys.
    """
    blocks = gl.cdiv(sizes.seqlen_k, N)
    pid = gl.program_id(0)
    first = pid // (section * blocks) * section
    width = gl.minimum(section, parts - first)
    rest = pid - first * blocks
    start_n = rest // width * N
    part = first + rest % width
    per_batch = sizes.nheads // members
    head = part % per_batch
    begin = 0
    if sizes.RIGHT:
        begin = gl.maximum(start_n - (sizes.seqlen_k - sizes.seqlen_q) - sizes.right, 0) // M * M
    count = gl.maximum(gl.cdiv(sizes.seqlen_q - begin, M), 0) * members
    return Work(sizes, part // per_batch, head * members, part * members, head, start_n, begin, count, M)


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
    """Return the memory of a program's keys and values, given the descriptors of their tiles and their numbers."""
    k_tiles = gl.allocate_shared_memory(K.dtype, [tiles] + K.block_type.shape, K.layout)
    v_tiles = gl.allocate_shared_memory(V.dtype, [tiles_v] + V.block_type.shape, V.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    rows: gl.constexpr = K.block_type.shape[1]
    return OwnTiles(k_tiles, v_tiles, full, rows, tiles, K.block_type.shape[3], tiles_v, V.block_type.shape[3])


@aggregate
class RowRing:
    """Blocks of queries of one tensor in shared memory, filled and read in turn, as those of a `Ring`.

    A block has `rows` rows in `tiles` tiles of `width` columns, and one float32 for each row: with q its log-sum-exp,
    with dout its delta. Without readers, when it was made, it has no barriers `free`.
    """

    blocks: gl.shared_memory_descriptor
    numbers: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    stages: gl.constexpr
    rows: gl.constexpr
    tiles: gl.constexpr
    width: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, blocks, numbers, full, free, stages, rows, tiles, width):
        self.blocks = blocks
        self.numbers = numbers
        self.full = full
        self.free = free
        self.stages = gl.constexpr(stages)
        self.rows = gl.constexpr(rows)
        self.tiles = gl.constexpr(tiles)
        self.width = gl.constexpr(width)

    @gluon.jit
    def wait_free(self, i):
        """Wait until the readers have released the block whose place block i takes."""
        mbarrier.wait(self.free.index(i % self.stages), (i // self.stages & 1) ^ 1)

    @gluon.jit
    def load(self, i, X, Numbers, b, h, nheads, m):
        """Start to load block i, the rows from m on of (batch, seqlen, nheads, headdim); its place must be free."""
        at = i % self.stages
        full = self.full.index(at)
        mbarrier.expect(full, self.rows * (self.tiles * self.width * 2 + 4))
        for j in gl.static_range(self.tiles):
            load_tile(X, [b, m, h, j * self.width], full, self.blocks.index(at * self.tiles + j))
        load_tile(Numbers, [b * nheads + h, m], full, self.numbers.index(at))

    @gluon.jit
    def wait(self, i):
        """Wait until block i is full."""
        mbarrier.wait(self.full.index(i % self.stages), i // self.stages & 1)

    @gluon.jit
    def release(self, i):
        """Report that block i has been read."""
        mbarrier.arrive(self.free.index(i % self.stages))

    @gluon.jit
    def tile(self, i, j):
        """Return tile j of block i, (rows, width)."""
        return self.blocks.index(i % self.stages * self.tiles + j).reshape([self.rows, self.width])

    @gluon.jit
    def numbers_of(self, i):
        """Return the numbers of block i, (rows,)."""
        return self.numbers.index(i % self.stages).reshape([self.rows])


@gluon.jit
def new_row_ring(X, Numbers, stages: gl.constexpr, tiles: gl.constexpr, readers: gl.constexpr):
    """Return a ring for a tensor, given the descriptors of its tiles and of the numbers of its rows."""
    blocks = gl.allocate_shared_memory(X.dtype, [stages * tiles] + X.block_type.shape, X.layout)
    numbers = gl.allocate_shared_memory(gl.float32, [stages] + Numbers.block_type.shape, Numbers.layout)
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(stages):
        mbarrier.init(full.index(i), count=1)
    free = full
    if readers:
        free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(stages):
            mbarrier.init(free.index(i), count=readers)
    return RowRing(blocks, numbers, full, free, stages, X.block_type.shape[1], tiles, X.block_type.shape[3])


@aggregate
class Exchange:
    """Where the consumers give each other their dS: two tiles of keys x queries in turn, and barriers of both.

    Two are enough: when a consumer has written its dS of a block, it has read that of the block before.
    """

    tiles: gl.shared_memory_descriptor
    written_0: gl.shared_memory_descriptor  # by consumer 0
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
    def tell(self, index: gl.constexpr, i):
        """Report that consumer `index` has written its part of block i."""
        fence_async_shared()
        written = self.written_1 if index else self.written_0
        mbarrier.arrive(written.index(i & 1))

    @gluon.jit
    def wait(self, index: gl.constexpr, i, condition=True):
        """Wait until consumer `index` has written its part of block i, on a condition."""
        written = self.written_1 if index else self.written_0
        mbarrier.wait(written.index(i & 1), i // 2 & 1, pred=condition)


@gluon.jit
def new_exchange(dtype: gl.constexpr, keys: gl.constexpr, queries: gl.constexpr):
    """Return the memory in which two consumers exchange dS of so many keys and queries."""
    tiles = gl.allocate_shared_memory(dtype, [2, keys, queries], gl.NVMMASharedLayout(128, 16, 2))
    written_0 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    written_1 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(written_0.index(i), count=1)
        mbarrier.init(written_1.index(i), count=1)
    return Exchange(tiles, written_0, written_1)


@aggregate
class Gradient:
    """dk or dv of one head in memory, (seqlen_k, headdim)."""

    base: gl.tensor
    stride: gl.tensor
    seqlen: gl.tensor
    headdim: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, base, stride, seqlen, headdim):
        self.base = base
        self.stride = stride
        self.seqlen = seqlen
        self.headdim = gl.constexpr(headdim)

    @gluon.jit
    def store(self, values, first, first_col: gl.constexpr):
        """Store KEYS rows from `first` on and some columns from `first_col` on; what lies outside is not written."""
        D: gl.constexpr = values.shape[1]
        layout: gl.constexpr = values.type.layout
        rows = first + gl.arange(0, KEYS, gl.SliceLayout(1, layout))
        cols = first_col + gl.arange(0, D, gl.SliceLayout(0, layout))
        at = rows.to(gl.int64)[:, None] * self.stride + cols[None, :]
        there = (rows < self.seqlen)[:, None] & (gl.zeros([1, D], gl.int32, layout) == 0)
        if first_col + D > self.headdim:
            there = there & (cols < self.headdim)[None, :]
        gl.store(self.base + at, values.to(self.base.dtype.element_ty), mask=there)


@gluon.jit
def gradient_of(base, stride_b, stride_n, stride_h, work, headdim: gl.constexpr):
    """Return what a program computes of dk or dv, which is (batch, seqlen_k, nheads, headdim)."""
    base += work.b.to(gl.int64) * stride_b + work.head.to(gl.int64) * stride_h
    return Gradient(base, stride_n, work.sizes.seqlen_k, headdim)
