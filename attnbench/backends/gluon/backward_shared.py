"""Code of both kernels of the backward: the keys and queries of a program, the mask, and the output.

A program has some keys of one key head. A loader warp loads them once, and then each block of the queries that see
them, with its rows of dout, log-sum-exp and delta. Two groups of four warps, the consumers, compute.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"
# No `from __future__ import annotations`: an aggregate checks its members by the annotations.

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.backends.gluon.pipeline import Sizes, aggregate
from attnbench.backends.triton import device_functions

KEYS = gl.constexpr(64)  # keys of a consumer: the rows of one wgmma
REGISTERS = gl.constexpr(240)  # registers of a thread of a consumer: the most that two consumers can have

_block_and_head = gluon.jit(device_functions.block_and_head.fn)  # Gluon cannot call functions of Triton


@aggregate
class Work:
    """The keys of a program, and the blocks of queries that see them.

    It visits `count` blocks of `rows` queries: from `begin` on, first in query head h, then in the heads after it.
    """

    sizes: Sizes
    b: gl.tensor
    h: gl.tensor
    bh: gl.tensor  # b * nheads + h
    head: gl.tensor  # head of dk and dv: key head * parts + part, where the query heads of a key head are in parts
    start_n: gl.tensor  # first key of the program
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
        """Return (query head, first query) of the block that follows the one of head h whose first query is m."""
        m += self.rows
        over = m >= self.sizes.seqlen_q
        return gl.where(over, h + 1, h), gl.where(over, self.begin, m)

    @gluon.jit
    def first_number(self):
        """Return the number of the first block, counted over all blocks of queries of the batch, head by head."""
        return self.bh * gl.cdiv(self.sizes.seqlen_q, self.rows) + self.begin // self.rows

    @gluon.jit
    def number_after(self, number, m):
        """Return (number, first query) of the block that follows block `number`, whose first query is m."""
        m += self.rows
        number += 1
        if m >= self.sizes.seqlen_q:
            m = self.begin
            number += self.begin // self.rows
        return number, m

    @gluon.jit
    def first_unmasked(self, first_n):
        """Return the first query from which on all queries see the KEYS keys from `first_n` on.

        If some of these keys lie beyond seqlen_k, no block is free of the mask: the score of such a key is 0, exp2 may
        make it infinite, and infinity times the zeros of the key would make dq NaN.
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
def find_work(sizes, members, sets, section, N: gl.constexpr, M: gl.constexpr):
    """Return the work of this program: N keys, and a set of `members` query heads, in blocks of M queries.

    `sets` is the number of such sets in the batch. Programs compute the same keys of `section` sets, whose queries fit
    in L2, before the next keys. The first keys come first, because under a causal mask most queries see them.
    """
    block, set_index = _block_and_head(gl.cdiv(sizes.seqlen_k, N), sets, section)
    start_n = block * N
    set_index = set_index.to(gl.int32)
    per_batch = sizes.nheads // members
    head = set_index % per_batch
    begin = 0
    if sizes.RIGHT:
        begin = gl.maximum(start_n - (sizes.seqlen_k - sizes.seqlen_q) - sizes.right, 0) // M * M
    count = gl.maximum(gl.cdiv(sizes.seqlen_q - begin, M), 0) * members
    return Work(sizes, set_index // per_batch, head * members, set_index * members, head, start_n, begin, count, M)


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
        """Store KEYS rows from `first` on, columns from `first_col` on. Values outside of the tensor are dropped."""
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
    """Return the head that a program computes of dk or dv, which is (batch, seqlen_k, nheads, headdim)."""
    base += work.b.to(gl.int64) * stride_b + work.head.to(gl.int64) * stride_h
    return Gradient(base, stride_n, work.sizes.seqlen_k, headdim)
