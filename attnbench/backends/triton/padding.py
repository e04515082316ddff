"""To how many queries the log-sum-exp and delta of a backward are padded.

It does without torch and Triton, since backends read it for their forecasts of memory.
"""

from __future__ import annotations

PADDING = 128  # loading a block of at most so many queries then needs no mask


def padded_queries(seqlen_q: int) -> int:
    """Return the next multiple of PADDING."""
    return -(-seqlen_q // PADDING) * PADDING
