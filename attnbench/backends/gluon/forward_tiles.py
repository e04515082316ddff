"""The tiles of the forward, and the blocks of queries that each of its programs computes.

It imports neither torch nor Triton, so that it can be tested without a GPU.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

BETWEEN = 1.0  # time that a program needs between two blocks of queries, as a number of tiles of keys


class ForwardTiles(NamedTuple):
    """The sizes of one program: `keys` in a tile, `stages` of the rings, computing `groups` and registers of each."""

    keys: int
    stages: int
    groups: int
    blocks: int  # blocks of queries in shared memory: with 2 a load and a store overlap with the computation
    registers: int  # registers of a thread: at most 240 with 2 groups, 160 with 3


# Tiles by the widths of `head_widths`, measured on an H100 (docs/dev/gluon-kernel.md).
FORWARD_TILES = {
    (64, 0): ForwardTiles(128, 2, 3, 2, 160),
    (128, 0): ForwardTiles(128, 2, 2, 2, 240),
    (128, 64): ForwardTiles(128, 2, 2, 1, 240),
    (256, 0): ForwardTiles(64, 2, 2, 1, 240),
}

# Up to SHORT queries, headdim 64 has two groups: blocks of 128 queries waste fewer scores than blocks of 192, at the
# diagonal and beyond the last query.
SHORT = 2048
SHORT_TILES = ForwardTiles(128, 4, 2, 2, 240)


def head_widths(headdim: int, headdim_v: int) -> tuple[int, int]:
    """Return (width, rest): q and k are read in tiles of `width` and of `rest` columns, v and out in tiles of `width`.

    Both are powers of two, and rest may be 0. A headdim of 192 is split into 128 and 64; others are padded.
    """
    if 128 < headdim <= 192 and headdim_v <= 128:
        return 128, 64
    return max(64, 1 << (max(headdim, headdim_v) - 1).bit_length()), 0


def choose_forward_tiles(width: int, rest: int, seqlen_q: int) -> ForwardTiles:
    """Return the tiles for the widths of `head_widths`."""
    return SHORT_TILES if width == 64 and seqlen_q <= SHORT else FORWARD_TILES[width, rest]


def block_lists(
    sizes: tuple[int, int, int], right: int | None, section: int, block: tuple[int, int], programs: int
) -> list[list[int]]:
    """Return the blocks of queries that each program computes: one list for each program, all of one length.

    A list has the number of its blocks, then (head, first query) of each, then at least two zeros, because a program
    reads one entry ahead. So the length is 3 + 2 * the most blocks. `sizes` are (seqlen_q, seqlen_k, batch * nheads),
    `block` the queries of a block and the keys of a tile; query i sees the keys up to i + seqlen_k - seqlen_q + right,
    or with None all keys.

    Blocks are distributed section by section of heads whose keys and values fit L2, under a causal mask the longest
    blocks first. Each block goes to the program that would be free first.
    """
    (seqlen_q, seqlen_k, heads), (rows, keys) = sizes, block
    lists: list[list[int]] = [[] for _ in range(programs)]
    free = [(0.0, program) for program in range(programs)]
    starts = range(0, seqlen_q, rows)
    for first in range(0, heads, section):
        for start in reversed(starts) if right is not None else starts:
            seen = seqlen_k if right is None else min(start + rows + seqlen_k - seqlen_q + right, seqlen_k)
            for head in range(first, min(first + section, heads)):
                time, program = free[0]
                lists[program] += (head, start)
                heapq.heapreplace(free, (time + max(-(-seen // keys), 1) + BETWEEN, program))
    longest = max(map(len, lists)) + 2  # two zeros at the end, because a program reads one entry ahead
    return [[len(found) // 2, *found, *(0,) * (longest - len(found))] for found in lists]
