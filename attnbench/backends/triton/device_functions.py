"""What the attention kernels share on the device: the order of programs, loads and stores, masks, tanh."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(blocks, heads, section):
    """Which block, by rank, of which head this program does.

    Program ids start in order. Within a section of heads all blocks of rank 0 come first, then those of rank 1, and
    so on: with the heaviest block at rank 0, as causal needs it, the light ones fill the gaps at the end.
    """
    pid = tl.program_id(0)
    first = pid // (section * blocks) * section
    width = tl.minimum(section, heads - first)
    rest = pid - first * blocks
    return rest // width, (first + rest % width).to(tl.int64)


@triton.jit
def sequence(b, Cu_q, Cu_k, seqlen_q, seqlen_k, VARLEN: tl.constexpr):
    """(row of its first query, row of its first key, seqlen_q, seqlen_k) of sequence `b`."""
    first_q = 0
    first_k = 0
    if VARLEN:
        begin_q, begin_k = tl.load(Cu_q + b), tl.load(Cu_k + b)
        seqlen_q, seqlen_k = tl.load(Cu_q + b + 1) - begin_q, tl.load(Cu_k + b + 1) - begin_k
        first_q, first_k = begin_q.to(tl.int64), begin_k.to(tl.int64)  # rows times strides overflow 32 bits
    return first_q, first_k, seqlen_q, seqlen_k


@triton.jit
def keys_seen(
    begin_m, end_m, seqlen_q, seqlen_k, left, right, whole,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, VARLEN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(begin, full_begin, full_end, end): what the queries [begin_m, end_m) see of the keys, in blocks of BLOCK_N.

    Every query sees all of [full_begin, full_end); of [begin, full_begin) and of [full_end, end) some queries see
    some keys; no query sees any key outside of [begin, end). All but `end` are multiples of BLOCK_N.
    """
    shift = seqlen_k - seqlen_q
    begin = 0
    full_begin = 0
    # How these bounds are written decides whether ptxas keeps the matmuls asynchronous or serialises those of the whole
    # kernel (its warning C7515, tests/unit/test_triton_compile.py): where LLVM sees that the loop from `full_end` to
    # `end` runs at most once it unrolls it, so `full_end` is given or bounded by something given; and a minimum must
    # stand inside of a maximum.
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
        some = begin_m < end_m  # else the program is beyond a short sequence's end
        full_end = tl.where(some, full_end, 0)
        end = tl.where(some, end, 0)
    return begin, full_begin, full_end, end


@triton.jit
def hide(scores, keys, first, last, LEFT: tl.constexpr):
    """Scores with -inf where a key is not from `first` to `last`, the outermost keys that its query sees."""
    seen = keys <= last
    if LEFT:
        seen = seen & (keys >= first)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def tanh(x, EXACT: tl.constexpr):
    """1 - 2 / (1 + e^2x): two instructions on the special function unit. Its absolute error is fp32's rounding.

    EXACT bounds the relative error too: where the difference would cancel, |x| < 1/4, the Taylor series up to x^9.
    """
    t = 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))  # 2 log2(e)
    if EXACT:
        y = x * x
        series = -0.3333333333333333 + y * (0.1333333333333333 + y * (-0.05396825396825397 + y * 0.02186948853615520))
        t = tl.where(tl.abs(x) < 0.25, x + x * (y * series), t)
    return t


@triton.jit
def load_rows(base, stride, rows, limit, D: tl.constexpr, BLOCK_D: tl.constexpr, CHECK: tl.constexpr):
    """A block of `rows` x D at `base`, zero where it is padded beyond D columns or (with CHECK) `limit` rows.

    `base` already points at the block's first row, so that only it needs the large offsets.
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
def load_map(Map, b, h, start, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, BY_HEAD: tl.constexpr):
    """A block of ROWS from `start` on through a tensor map of (batch, seqlen, nheads, headdim).

    BY_HEAD: (batch, nheads, ...). Zeros beyond the tensor's end.
    """
    b, h = b.to(tl.int32), h.to(tl.int32)
    values = Map.load([b, h, start, 0]) if BY_HEAD else Map.load([b, start, h, 0])
    return values.reshape(ROWS, BLOCK_D)


@triton.jit
def load_turned(base, stride, limit, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, CHECK: tl.constexpr):
    """What load_rows gives of ROWS x D, where the rows of a column lie side by side and columns `stride` apart."""
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
def load_turned_map(Map, b, h, start, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """The same through a tensor map of (batch, headdim, nheads, seqlen)."""
    values = Map.load([b.to(tl.int32), 0, h.to(tl.int32), start])
    return tl.trans(values.reshape(BLOCK_D, ROWS))


@triton.jit
def store_rows(base, stride, rows, limit, values, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The counterpart of load_rows, always checked."""
    cols = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=(rows[:, None] < limit) & (cols[None, :] < D))
