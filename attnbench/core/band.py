"""The band of (query, key) pairs that causal and a window leave, and how many pairs it holds.

With offset = seqlen_k - seqlen_q query i sees key j where lo <= j - i <= hi, with hi = offset + right and
lo = offset - left. Causal limits `right` to 0 (flash-attn's bottom-right alignment).
"""

from __future__ import annotations


def diagonals(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int | None, int | None]
) -> tuple[int, int]:
    """Return the first and last diagonal j - i that the mask leaves; an open side ends at the corner of the matrix."""
    offset = seqlen_k - seqlen_q
    left, right = window_size
    if causal:
        right = 0 if right is None else min(right, 0)
    lo = 1 - seqlen_q if left is None else offset - left
    hi = seqlen_k - 1 if right is None else offset + right
    return lo, hi


def visible_pairs(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int | None, int | None] = (None, None)
) -> int:
    """Return the number of (query, key) pairs that the mask leaves, for one head of one batch entry.

    The count is exact and takes constant time. The number of pairs with j - i <= c is the sum over i of clamp(i + c +
    1, 0, seqlen_k). As clamp(x, 0, n) = max(x, 0) - max(x - n, 0), and the sum of max(x, 0) over consecutive x is a
    difference of triangular numbers, four triangular numbers give that sum. The band has the pairs up to its last
    diagonal, less the pairs before its first.
    """
    lo, hi = diagonals(seqlen_q, seqlen_k, causal, window_size)
    return 0 if lo > hi else pairs_up_to(hi, seqlen_q, seqlen_k) - pairs_up_to(lo - 1, seqlen_q, seqlen_k)


def pairs_up_to(c: int, seqlen_q: int, seqlen_k: int) -> int:
    """Return the number of pairs with j - i <= c."""
    return _triangle(c + seqlen_q) - _triangle(c) - _triangle(c + seqlen_q - seqlen_k) + _triangle(c - seqlen_k)


def _triangle(n: int) -> int:
    """Return 1 + 2 + ... + n, and 0 for n below 1."""
    return n * (n + 1) // 2 if n > 0 else 0
