"""Device functions that attention kernels share: the order of programs, loads and stores, masks, tanh."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# mypy: disable-error-code="untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def block_and_head(blocks, heads, section):
    """Return (rank of the block, head) that this program computes.

    Programs start in the order of their ids. Within a section of heads all blocks of rank 0 come first, then all blocks
    of rank 1, and so on. Under a causal mask the caller gives rank 0 to the block with the most work, so that short
    programs fill the multiprocessors at the end.
    """
    pid = tl.program_id(0)
    first = pid // (section * blocks) * section
    width = tl.minimum(section, heads - first)
    rest = pid - first * blocks
    return rest // width, (first + rest % width).to(tl.int64)


@triton.jit
def block_of_program(
    Cu, blocks, nheads, heads, section, LAST_FIRST: tl.constexpr, VARLEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Return (sequence, head, first row) of the block of BLOCK rows that this program computes.

    `heads` is batch * nheads. `blocks` is the number of blocks of a sequence, or with VARLEN of all sequences, as
    Problem.blocks_of_queries or blocks_of_keys counts them. With LAST_FIRST the last block of a sequence is computed
    first. A program without a block gets a row beyond the end of its sequence.
    """
    if VARLEN:
        rank, h = block_and_head(blocks, nheads, section)
        b = sequence_of_block(Cu, rank, heads // nheads, BLOCK)
        begin = tl.load(Cu + b)
        count = tl.cdiv(tl.load(Cu + b + 1) - begin, BLOCK)
        rank -= begin // BLOCK + b
        if LAST_FIRST:
            rank = tl.where(rank < count, count - 1 - rank, rank)
        b = b.to(tl.int64)
    else:
        rank, bh = block_and_head(blocks, heads, section)
        b, h = bh // nheads, bh % nheads
        if LAST_FIRST:
            rank = blocks - 1 - rank
    return b, h, rank * BLOCK


@triton.jit
def sequence_of_block(Cu, rank, batch, BLOCK: tl.constexpr):
    """Return the sequence of block `rank`: the last b whose first block, Cu[b] // BLOCK + b, is not after `rank`.

    This numbering has room for every block of a sequence that does not begin at a multiple of BLOCK, and needs no table
    that would have to be computed from cu_seqlens first.
    """
    low, high = 0, batch
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(Cu + middle) // BLOCK + middle <= rank:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def sequence_bounds(b, Cu_q, Cu_k, seqlen_q, seqlen_k, VARLEN: tl.constexpr):
    """Return (row of the first query, row of the first key, seqlen_q, seqlen_k) of sequence b."""
    first_q = 0
    first_k = 0
    if VARLEN:
        begin_q, begin_k = tl.load(Cu_q + b), tl.load(Cu_k + b)
        seqlen_q, seqlen_k = tl.load(Cu_q + b + 1) - begin_q, tl.load(Cu_k + b + 1) - begin_k
        first_q, first_k = begin_q.to(tl.int64), begin_k.to(tl.int64)  # 64 bits: rows times strides overflow 32
    return first_q, first_k, seqlen_q, seqlen_k


@triton.jit
def key_row(first_key, start_n):
    """Return the row at which a block of keys begins in the tensors of the descriptors.

    `first_key` is the row of a packed sequence's first key, None where each sequence is a batch entry.
    """
    return start_n if first_key is None else first_key + start_n


@triton.jit
def zero_beyond(tiles, limit, ROWS: tl.constexpr):
    """Return tiles, a tuple of (ROWS, columns), with zeros from row `limit` on.

    There a descriptor of packed sequences loads rows of the next sequence. Their weight is 0, but 0 times infinity or
    NaN is NaN.
    """
    there = tl.arange(0, ROWS)[:, None] < limit
    zeroed = ()
    for i in tl.static_range(len(tiles)):
        zeroed += (tl.where(there, tiles[i], 0.0).to(tiles[i].dtype),)
    return zeroed


@triton.jit
def keys_seen(
    begin_m, end_m, seqlen_q, seqlen_k, left, right, whole,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, VARLEN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return (begin, full_begin, full_end, end) of the keys that queries [begin_m, end_m) see, in blocks of BLOCK_N.

    Every query sees all keys of [full_begin, full_end). Some queries see some keys of [begin, full_begin) and of
    [full_end, end). No query sees a key outside of [begin, end). All but `end` are multiples of BLOCK_N. `whole` is
    seqlen_k rounded down to a multiple of BLOCK_N, or with VARLEN the longest seqlen_k.
    """
    shift = seqlen_k - seqlen_q
    begin = 0
    full_begin = 0
    # The form of these expressions decides whether ptxas keeps the matmuls asynchronous or serialises all of the kernel
    # (its warning C7515; tests/backends/test_triton_compile.py). If LLVM can see that the loop from `full_end` to `end`
    # runs at most once, it unrolls that loop, so `full_end` must be an argument or bounded by one. And a minimum must
    # be inside of a maximum, not the other way round. docs/dev/triton-kernel.md has the table.
    if RIGHT:
        end = tl.maximum(tl.minimum(end_m + shift + right, seqlen_k), 0)
        full_end = tl.maximum(tl.minimum(begin_m + shift + right + 1, seqlen_k), 0) // BLOCK_N * BLOCK_N
    else:
        end = seqlen_k
        full_end = tl.maximum(tl.minimum(seqlen_k // BLOCK_N * BLOCK_N, whole), 0) if VARLEN else whole
    if LEFT:
        begin = tl.maximum(begin_m + shift - left, 0) // BLOCK_N * BLOCK_N
        full_begin = tl.minimum(tl.cdiv(tl.maximum(end_m - 1 + shift - left, 0), BLOCK_N) * BLOCK_N, full_end)
    if VARLEN:
        some = begin_m < end_m  # false where the block is beyond the end of a short sequence
        full_end = tl.where(some, full_end, 0)
        end = tl.where(some, end, 0)
    return begin, full_begin, full_end, end


@triton.jit
def mask_scores(scores, keys, first, last, LEFT: tl.constexpr):
    """Return the scores with -inf for keys outside of [first, last], the keys that the query sees."""
    seen = keys <= last
    if LEFT:
        seen = seen & (keys >= first)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def listed_blocks(Listed, number, others, BLOCK: tl.constexpr):
    """Return (list, full_end, end): the list of one block, the end of its blocks seen whole, and the end of all.

    `others` is the number of blocks that can be listed (named_mask.py). The ends count BLOCK for each block in the
    list.
    """
    Listed += number * (2 + others)
    full_end = tl.load(Listed) * BLOCK
    return Listed + 2, full_end, full_end + tl.load(Listed + 1) * BLOCK


@triton.jit
def mask_by_name(
    scores, places, keys, first, last, seqlen_k, Kept,
    KIND: tl.constexpr, NUMBER: tl.constexpr, LEFT: tl.constexpr,
):  # fmt: skip
    """Return the scores with -inf where a query does not see a key, as core/masks.py defines it.

    `places` and `keys` are positions in the sequence. `first` and `last` are the first and last key that causal and
    window leave visible. `Kept` is random:P's table of kept 128 x 128 blocks. KIND is a value of KINDS in
    named_mask.py.
    """
    seen = keys <= last
    if LEFT:
        seen = seen & (keys >= first)
    if KIND == 1:  # prefix
        seen = seen | (keys < NUMBER)
    elif KIND == 2:  # sink_tokens
        seen = seen | ((keys < NUMBER) & (keys <= places))
    elif KIND == 3:  # strided
        seen = seen & ((tl.abs(places - keys) < NUMBER) | ((places - keys) % NUMBER == 0))
    elif KIND == 4:  # dilated
        seen = seen & ((places - keys) % NUMBER == 0)
    elif KIND == 5:  # random
        row, column = tl.minimum(places, seqlen_k - 1) // 128, tl.minimum(keys, seqlen_k - 1) // 128
        seen = seen & (tl.load(Kept + row * tl.cdiv(seqlen_k, 128) + column) != 0)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def add_alibi(scores, slope, distance):
    """Return unscaled scores with ALiBi's bias, from a slope of `alibi_slope` and the distance in keys."""
    return scores - slope * tl.abs(distance).to(tl.float32)


@triton.jit
def alibi_slope(slopes, scale_log2):
    """Return ALiBi's slopes divided by `scale_log2`, the factor that scores get before exp2, for unscaled scores."""
    return slopes * (1.4426950408889634 / scale_log2)  # log2(e)


@triton.jit
def tanh(x, EXACT: tl.constexpr):
    """Return tanh(x) as 1 - 2 / (1 + e^2x), in two instructions of the special function unit.

    The absolute error is one rounding of fp32. With EXACT the relative error is small too: |x| < 1/4, where the
    difference cancels, has the Taylor series up to x^9.
    """
    t = 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))  # 2 log2(e)
    if EXACT:
        y = x * x
        series = -0.3333333333333333 + y * (0.1333333333333333 + y * (-0.05396825396825397 + y * 0.02186948853615520))
        t = tl.where(tl.abs(x) < 0.25, x + x * (y * series), t)
    return t


@triton.jit
def load_rows(base, stride, rows, limit, D: tl.constexpr, BLOCK_D: tl.constexpr, CHECK: tl.constexpr):
    """Load a block of `rows` x BLOCK_D, with zeros beyond D columns and (with CHECK) beyond `limit` rows.

    `base` points at the first row of the block, and `rows` count from it, so that only `base` needs 64-bit offsets.
    """
    cols = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    if CHECK and D < BLOCK_D:
        values = tl.load(pointers, mask=(rows[:, None] < limit) & (cols[None, :] < D), other=0.0)
    elif CHECK:
        values = tl.load(pointers, mask=rows[:, None] < limit, other=0.0)
    elif D < BLOCK_D:
        values = tl.load(pointers, mask=cols[None, :] < D, other=0.0)
    else:
        values = tl.load(pointers)
    return values


@triton.jit
def load_block(Descriptor, b, h, start, column, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, BY_HEAD: tl.constexpr):
    """Load ROWS rows from `start` on, and BLOCK_D columns from `column` on, through the descriptor of a tensor.

    The tensor is (batch, seqlen, nheads, headdim), with BY_HEAD (batch, nheads, seqlen, headdim). Values beyond its
    end are zero.
    """
    b, h, start = b.to(tl.int32), h.to(tl.int32), tl.cast(start, tl.int32)
    values = Descriptor.load([b, h, start, column]) if BY_HEAD else Descriptor.load([b, start, h, column])
    return values.reshape(ROWS, BLOCK_D)


# Queries and keys of a headdim from 129 to 192 are computed as PARTS = 3 tiles of 64 columns (block_sizes.py), because
# a single tile would be padded to 256. The functions below take and return tuples of tiles, for other head dims of one.


@triton.jit
def load_row_parts(
    base, stride, rows, limit,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """Load PARTS tiles, each as load_rows does: tile i has BLOCK_D columns from i * BLOCK_D on."""
    tiles = ()
    for i in tl.static_range(PARTS):
        tiles += (load_rows(base + i * BLOCK_D, stride, rows, limit, D - i * BLOCK_D, BLOCK_D, CHECK),)
    return tiles


@triton.jit
def load_block_parts(
    Descriptor, b, h, start,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """Load PARTS tiles through a tensor descriptor: tile i has BLOCK_D columns from i * BLOCK_D on."""
    tiles = ()
    for i in tl.static_range(PARTS):
        tiles += (load_block(Descriptor, b, h, start, i * BLOCK_D, ROWS, BLOCK_D, BY_HEAD),)
    return tiles


@triton.jit
def zero_parts(ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr):
    """Return PARTS fp32 tiles of zeros, ROWS x BLOCK_D each."""
    tiles = ()
    for _ in tl.static_range(PARTS):
        tiles += (tl.zeros((ROWS, BLOCK_D), tl.float32),)
    return tiles


@triton.jit
def dot_of_parts(a, b, PARTS: tl.constexpr):
    """Return a b^T, where the summed dimension, the headdim, is in PARTS tiles."""
    result = tl.dot(a[0], tl.trans(b[0]), input_precision="ieee")
    for i in tl.static_range(1, PARTS):
        result = tl.dot(a[i], tl.trans(b[i]), result, input_precision="ieee")
    return result


@triton.jit
def add_dot_by_parts(sums, a, b, PARTS: tl.constexpr):
    """Return sums + a b, where the columns of b and of the sums are in PARTS tiles."""
    results = ()
    for i in tl.static_range(PARTS):
        results += (tl.dot(a, b[i], sums[i], input_precision="ieee"),)
    return results


@triton.jit
def load_transposed_rows(
    base, stride, limit, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, CHECK: tl.constexpr
):
    """Load ROWS x BLOCK_D as load_rows does, from memory with contiguous rows and columns `stride` apart."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    pointers = base + cols.to(tl.int64)[:, None] * stride + rows[None, :]
    if CHECK:
        values = tl.load(pointers, mask=(cols[:, None] < D) & (rows[None, :] < limit), other=0.0)
    elif D < BLOCK_D:
        values = tl.load(pointers, mask=cols[:, None] < D, other=0.0)
    else:
        values = tl.load(pointers)
    return tl.trans(values)


@triton.jit
def load_transposed_block(Descriptor, b, h, start, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load ROWS x BLOCK_D through the descriptor of a tensor (batch, headdim, nheads, seqlen)."""
    values = Descriptor.load([b.to(tl.int32), 0, h.to(tl.int32), tl.cast(start, tl.int32)])
    return tl.trans(values.reshape(BLOCK_D, ROWS))


@triton.jit
def store_rows(base, stride, rows, limit, values, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store a block of `rows` x D, without rows beyond `limit`. `base` and `rows` are as in load_rows."""
    cols = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=(rows[:, None] < limit) & (cols[None, :] < D))


@triton.jit
def store_row_parts(
    base, stride, rows, limit, tiles, factor, D: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr
):
    """Store PARTS tiles, times a factor, each as store_rows does: tile i has the columns from i * BLOCK_D on."""
    for i in tl.static_range(PARTS):
        store_rows(base + i * BLOCK_D, stride, rows, limit, tiles[i] * factor, D - i * BLOCK_D, BLOCK_D)
