"""The exact work of a case: unmasked pairs, floating-point operations, bytes. Properties of the case, of no backend.

**Pairs.** Attention computes one score for each (query, key) pair that the mask leaves. With
offset = seqlen_k - seqlen_q the mask is a band of diagonals: query i sees keys lo <= j - i <= hi, where
hi = offset + right, lo = offset - left, and causal caps `right` at 0 (flash-attn's bottom-right alignment).

**FLOPs.** One pair costs, per query head and batch entry, one multiply and one add per element of each product:

    forward    S = q k^T (headdim), out = P v (headdim_v)                     2 (headdim + headdim_v)
    backward   S = q k^T, dq = dS k, dk = dS^T q (headdim each),
               dP = dout v^T, dv = P^T dout (headdim_v each)                  2 (3 headdim + 2 headdim_v)

With headdim = headdim_v = d and no mask, forward is 4 s^2 d per head and backward 2.5 times that: the count of the
FlashAttention-2 paper (Dao 2023, arXiv 2307.08691, section 4.1: "4 * seqlen^2 * head dimension * number of heads",
backward 2.5 times the forward for 5 products against 2, scores recomputed). Its causal figures divide by 2; that is
`convention="fa"` here. The softmax itself is not counted, as is the custom; keys shared by several query heads do not
change the count.

**Bytes.** The least that has to cross the memory bus: each operand once, however small the cache. An implementation may
move more (a second pass over k and v, workspaces), so bytes over time is a lower bound of the bandwidth it drew.

**Roofline** (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009): no implementation takes less than
max(FLOPs / peak, bytes / bandwidth), with exact FLOPs and ideal traffic. The larger term is what bounds the case. With
a warm L2 the traffic need not cross the bus.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from attnbench.core.case import ITEMSIZE, RESULT_ITEMSIZE, Case

Convention = Literal["exact", "fa"]


@dataclass(frozen=True)
class Roofline:
    """The least time that a case can take, by its work and a machine's rates."""

    flops: float
    nbytes: float
    peak: float  # FLOP/s
    bandwidth: float  # bytes/s
    source: str = ""  # of the two rates
    datasheet: bool = False  # else they may have been reached by something here, and a call may do better

    @classmethod
    def of(cls, case: Case, peak: float, bandwidth: float, source: str = "", *, datasheet: bool = False) -> Roofline:
        return cls(flops(case), nbytes(case), peak, bandwidth, source, datasheet)

    @property
    def intensity(self) -> float:
        """FLOP per byte of ideal traffic."""
        return self.flops / self.nbytes

    @property
    def ridge(self) -> float:
        """The intensity from which compute is the limit."""
        return self.peak / self.bandwidth

    @property
    def compute(self) -> float:
        """Seconds for the arithmetic."""
        return self.flops / self.peak

    @property
    def memory(self) -> float:
        """Seconds for the traffic."""
        return self.nbytes / self.bandwidth

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        return "compute" if self.compute >= self.memory else "memory"


def visible_pairs(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int | None, int | None] = (None, None)
) -> int:
    """The number of (query, key) pairs that the mask leaves, exact, in constant time.

    The pairs with j - i <= c are sum over i of clamp(i + c + 1, 0, seqlen_k). As clamp(x, 0, n) is
    max(x, 0) - max(x - n, 0), and the sum of max(x, 0) over consecutive x is a difference of triangular numbers,
    four of those are enough. The band is what lies up to its last diagonal less what lies before its first.
    """
    lo, hi = _band(seqlen_q, seqlen_k, causal, window_size)
    return 0 if lo > hi else _pairs_up_to(hi, seqlen_q, seqlen_k) - _pairs_up_to(lo - 1, seqlen_q, seqlen_k)


@cache
def flops(case: Case, convention: Convention = "exact") -> float:
    """Floating-point operations of one call of the case; the module's docstring has the derivation.

    "exact" counts the pairs that the mask leaves. "fa" is what papers print: half of all seqlen_q * seqlen_k pairs when
    causal, whatever the lengths and whatever the window (so a decode step reads half its true rate, and a causal
    sliding window a rate far too high); without causal it is the exact count.
    """
    s = case.shape
    if convention == "exact" or (convention == "fa" and not case.causal):
        pairs = float(visible_pairs(s.seqlen_q, s.seqlen_k, case.causal, case.window_size))
    elif convention == "fa":
        pairs = s.seqlen_q * s.seqlen_k / 2
    else:
        raise ValueError(f'unknown FLOPs convention "{convention}"; known: exact, fa')
    per_pair = 0
    if case.has_forward:
        per_pair += 2 * (s.headdim + s.headdim_v)
    if case.has_backward:
        per_pair += 2 * (3 * s.headdim + 2 * s.headdim_v)
    return per_pair * pairs * s.batch * s.nheads


@cache
def nbytes(case: Case) -> int:
    """Ideal traffic of one call in bytes, each operand moved once.

    Forward reads q, k, v and writes out; backward reads q, k, v, out, dout and writes dq, dk, dv; fwd_bwd is the sum.
    k, v and their gradients have nheads_k heads. Results are written whole, zeros too; rows of an input that take part
    in no unmasked pair (keys older than the window in a decode step) need not be read and are not counted.
    Log-sum-exp is not counted: whether and in which form to keep it is an implementation's choice. In fp8 q, k and v
    are e4m3 and out is bf16.
    """
    s = case.shape
    lo, hi = _band(s.seqlen_q, s.seqlen_k, case.causal, case.window_size)
    rows_q = s.batch * s.nheads
    rows_k = s.batch * s.nheads_k
    seen_q = rows_q * _touched(-hi, -lo, s.seqlen_k, s.seqlen_q)  # queries that see a key
    seen_k = rows_k * _touched(lo, hi, s.seqlen_q, s.seqlen_k)  # keys that a query sees
    rows_q, rows_k = rows_q * s.seqlen_q, rows_k * s.seqlen_k
    d, dv = s.headdim, s.headdim_v
    operands = seen_q * d + seen_k * (d + dv)  # q, k, v, in each pass
    passes = case.has_forward + case.has_backward
    results = 0
    if case.has_forward:
        results += rows_q * dv  # out
    if case.has_backward:
        results += seen_q * 2 * dv  # out, dout
        results += rows_q * d + rows_k * (d + dv)  # dq, dk, dv
    return passes * operands * ITEMSIZE[case.dtype] + results * RESULT_ITEMSIZE[case.dtype]


def _band(seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int | None, int | None]) -> tuple[int, int]:
    """The first and the last diagonal j - i that the mask leaves; an open side ends at the corner of the matrix."""
    offset = seqlen_k - seqlen_q
    left, right = window_size
    if causal:
        right = 0 if right is None else min(right, 0)
    lo = 1 - seqlen_q if left is None else offset - left
    hi = seqlen_k - 1 if right is None else offset + right
    return lo, hi


def _pairs_up_to(c: int, seqlen_q: int, seqlen_k: int) -> int:
    """Pairs with j - i <= c."""
    return _triangle(c + seqlen_q) - _triangle(c) - _triangle(c + seqlen_q - seqlen_k) + _triangle(c - seqlen_k)


def _triangle(n: int) -> int:
    """1 + 2 + ... + n; 0 below 1."""
    return n * (n + 1) // 2 if n > 0 else 0


def _touched(lo: int, hi: int, rows: int, columns: int) -> int:
    """How many of `columns` hold an entry of the band lo <= column - row <= hi over `rows`: one contiguous run."""
    if lo > hi:
        return 0
    return max(0, min(columns - 1, rows - 1 + hi) - max(0, lo) + 1)
