"""Masks by name in the Triton kernels: the lists of blocks that a program visits, and the constants of the mask.

A program owns a block of queries (forward, dq) or of keys (dk and dv) and reads from a list the blocks of the other
side that it visits: first the blocks in which every pair is seen, then the blocks in which some pairs are, for which
the kernel computes the mask of each pair. Other blocks are never visited. The lists are made from the definition of the
mask (core/masks.py), for the block sizes of a kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.backends.shared.masks import seen_blocks
from attnbench.core import masks

# The number of each mask in the kernels (device_functions.mask_by_name)
KINDS = {"prefix": 1, "sink_tokens": 2, "strided": 3, "dilated": 4, "random": 5}
LISTED = 6  # the list holds the whole mask, except for causal and window


class NamedMask:
    """A mask by name with causal and a window, for lengths and a device.

    `text` is as in `Case.mask`; `window_size` is (left, right), None for a side without a limit. There are at most as
    many queries as keys. Lists are made at first need, and kept.
    """

    def __init__(
        self,
        text: str,
        seqlen_q: int,
        seqlen_k: int,
        device: torch.device,
        *,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
    ) -> None:
        if seqlen_q > seqlen_k:
            raise ValueError(f"a mask by name takes at most as many queries as keys, not {seqlen_q} and {seqlen_k}")
        self.lengths, self.device = (seqlen_q, seqlen_k), device
        self._mask = mask = masks.find(text)
        if not isinstance(mask, masks.Numbered):
            raise ValueError(f"the kernels know no mask of one's own: {text}")
        kind, number = KINDS[text.partition(":")[0]], mask.number
        if kind == KINDS["random"] and (seqlen_k - seqlen_q) % masks.BLOCK == 0:
            kind = LISTED  # exact, as a kernel's block of at most masks.BLOCK is in one block of the mask
        left, right = window_size
        self._left, self._right = left, 0 if causal else right
        self.constants = {"KIND": kind, "NUMBER": int(min(number, seqlen_k))}  # random:P ignores it
        self._blocks = masks.kept_blocks(text, seqlen_k, device)
        self.kept = None if self._blocks is None or kind == LISTED else self._blocks.to(torch.int8)
        self._lists: dict[tuple[int, int, bool], Tensor] = {}
        self._forward: tuple[int, int] | None = None

    def lists(self, block_m: int, block_n: int, *, by_keys: bool = False, forward: bool = False) -> Tensor:
        """Return the lists of the blocks of queries, int32 (blocks of queries, 2 + blocks of keys).

        A list has the number of blocks seen whole, the number of blocks seen in part, then the blocks in this order.
        With `by_keys` there is a list for each block of keys, and keys beyond the last count as seen.
        """
        if forward:
            self._forward = block_m, block_n
        at = block_m, block_n, by_keys
        if at not in self._lists:
            self._lists[at] = self._make(*at)
        return self._lists[at]

    def rebuild(self) -> None:
        """Make all existing lists again."""
        self._lists = {at: self._make(*at) for at in self._lists}

    @property
    def pairs(self) -> int:
        """The number of pairs of one head in the blocks that the forward visits; 0 before it has run."""
        if self._forward is None:
            return 0
        block_m, block_n = self._forward
        return int(self._lists[block_m, block_n, False][:, :2].sum()) * block_m * block_n

    def _make(self, block_m: int, block_n: int, by_keys: bool) -> Tensor:
        band, sizes = (self._left, self._right), (block_m, block_n)
        is_some, is_whole = seen_blocks(
            self._mask, self.lengths, band, sizes, self.device, self._blocks, beyond=(True, by_keys)
        )
        if by_keys:
            is_some, is_whole = is_some.T, is_whole.T
        rank = (is_whole * 2 + (is_some & ~is_whole)).to(torch.int8)
        order = rank.argsort(dim=1, descending=True, stable=True)
        counts = torch.stack([is_whole.sum(1), (is_some & ~is_whole).sum(1)], dim=1)
        return torch.cat([counts, order], dim=1).to(torch.int32).contiguous()


def make_lists(mask: NamedMask, q: Tensor, k: Tensor, v: Tensor, *, backward: bool) -> None:
    """Make the lists that calls need with tensors such as q, k and v, (batch, seqlen, nheads, headdim) each."""
    from attnbench.backends.triton.block_sizes import Kernel, candidates, device_index, padded_head_dims
    from attnbench.backends.triton.launch import can_use_tma

    kernels: tuple[Kernel, ...] = ("fwd", "dkdv", "dq") if backward else ("fwd",)
    tensors = (*padded_head_dims(q, v), q.element_size(), device_index(q), can_use_tma(q, k, v))
    for kernel in kernels:
        blocks = candidates(kernel, *tensors, "named")[0]
        mask.lists(blocks.BLOCK_M, blocks.BLOCK_N, by_keys=kernel == "dkdv", forward=kernel == "fwd")


def arguments(mask: NamedMask | None, block_m: int, block_n: int, **which: Any) -> tuple[Tensor | None, ...]:
    """Return the kernel's arguments (Listed, Kept): both None without a mask by name, Kept also without a table."""
    return (None, None) if mask is None else (mask.lists(block_m, block_n, **which), mask.kept)
