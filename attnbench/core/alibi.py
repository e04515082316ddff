"""The slopes of ALiBi (Press, Smith and Lewis, "Train short, test long", arXiv 2108.12409, section 3).

The score of query i for key j of a sequence becomes q k^T * scale - slope * |p - j|, where p = i + seqlen_k - seqlen_q
is the query's position. With a causal mask |p - j| is the paper's distance; without one it is the symmetric form of
encoders, and of flash-attn.
"""

from __future__ import annotations


def alibi_slopes(nheads: int) -> tuple[float, ...]:
    """Return the slope of each query head.

    For 2^m heads the slopes are 2^(-8 / 2^m) and its powers. For another number of heads, first come the slopes of the
    next smaller power of two, then every other slope of twice that power, as in the code of the paper's authors.
    """
    below = 1 << (nheads.bit_length() - 1)
    more = (2.0 ** (-4 * i / below) for i in range(1, 2 * (nheads - below), 2))
    return (*(2.0 ** (-8 * i / below) for i in range(1, below + 1)), *more)
