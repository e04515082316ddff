"""The tiles of the backward, and the number of programs that share the query heads of a key head.

It imports neither torch nor Triton, because the backend reads it for the forecast of memory.
"""

from __future__ import annotations

from typing import NamedTuple

# Programs for each multiprocessor. With at least so many, a program takes all query heads of a key head; with fewer,
# query_parts splits the heads.
PROGRAMS = 4


class BackwardTiles(NamedTuple):
    """The sizes of one program. Above 128 columns (`wide`) they are for the kernel of backward_wide.py."""

    width: int  # columns of q and k, padded
    width_v: int  # columns of v and dout, padded
    queries: int  # queries of a block: 64, or 128 where the consumers share dq by rows
    stages: int  # stages of the ring of q; if not `wide` of dout's ring too, and then 2 or 3 (backward.py, _load)
    stages_v: int = 0  # `wide` only: stages of the ring of dout
    buffers: int = 1  # `wide` only: buffers of a consumer for dq

    @property
    def wide(self) -> bool:
        return self.width > 128

    @property
    def keys(self) -> int:
        """The number of keys of a program."""
        return 64 if self.wide else 128

    @property
    def columns(self) -> tuple[int, int]:
        """The columns of a tile of q and k in shared memory, and of a tile of v and dout."""
        return (64, 64) if self.wide else (self.width, self.width_v)

    @property
    def constants(self) -> dict[str, int]:
        """The compile-time constants of the kernel that follow from the tiles."""
        if not self.wide:
            return {"STAGES": self.stages}
        sizes = {"TILES": self.width // 64, "TILES_V": self.width_v // 64}
        return {**sizes, "STAGES": self.stages, "STAGES_V": self.stages_v, "BUFFERS": self.buffers}

    def blocks(self, seqlen_q: int) -> int:
        """Return the number of blocks in which the queries of a head are computed."""
        return -(-seqlen_q // self.queries)

    def values_of_dq_sum(self, heads: int, seqlen_q: int) -> int:
        """Return the number of values of the float32 sum of dq (dq_sum.py), for `heads` query heads over the batch."""
        return heads * self.blocks(seqlen_q) * self.queries * self.width


# The fastest candidates on an H100 (docs/dev/gluon-kernel.md), by columns of q and k, and of v.
BACKWARD_TILES = {
    (64, 64): BackwardTiles(64, 64, 128, 2),
    (64, 128): BackwardTiles(64, 128, 64, 3),
    (128, 64): BackwardTiles(128, 64, 64, 3),
    (128, 128): BackwardTiles(128, 128, 64, 3),
    (192, 128): BackwardTiles(192, 128, 64, 2, 2, buffers=2),
    (192, 256): BackwardTiles(192, 256, 64, 2, 1),
    (256, 128): BackwardTiles(256, 128, 64, 2, 2),
    (256, 256): BackwardTiles(256, 256, 64, 2, 1),
}


def choose_backward_tiles(headdim: int, headdim_v: int) -> BackwardTiles:
    """Return the tiles for these head dims, which are padded to their widths."""
    if max(headdim, headdim_v) > 128:
        return BACKWARD_TILES[192 if headdim <= 192 else 256, 128 if headdim_v <= 128 else 256]
    return BACKWARD_TILES[64 if headdim <= 64 else 128, 64 if headdim_v <= 64 else 128]


def query_parts(group: int, programs: int, processors: int) -> int:
    """Return the number of parts into which to split the `group` query heads of a key head, one part a program.

    `programs` is the number of programs without splitting. The result is the least divisor of `group` that gives
    PROGRAMS programs for each of the multiprocessors, `processors`; if none does, `group`: one query head a program.
    """
    return next((n for n in range(1, group) if group % n == 0 and programs * n >= PROGRAMS * processors), group)
