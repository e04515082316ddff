"""A case's mask in the forms that libraries ask for.

Keys are seen along a band: query i sees key j where -left <= j - (i + seqlen_k - seqlen_q) <= right, None for open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.installed import flash_workspace
from attnbench.core.backend import Workspace
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask


def band(case: Case) -> tuple[int | None, int | None]:
    """(left, right) with causal folded in, None for open. A lone query that sees every key has no mask."""
    left, right = case.window_size
    if case.causal:
        right = 0 if right is None else min(right, 0)
    if case.shape.seqlen_q == 1 and right is not None and right >= 0:
        right = None  # there is no key after the last
    return left, right


def flash_window(case: Case) -> tuple[int, int]:
    """window_size as flash-attn takes it, -1 for open; causal is said apart."""
    left, right = case.window_size
    return (-1 if left is None else left, -1 if right is None else right)


def visible(case: Case, device: torch.device) -> Tensor | None:
    """(seqlen_q, seqlen_k) bool, True where a query sees a key; None where all see all."""
    import torch

    left, right = band(case)
    if left is None and right is None:
        return None
    s = case.shape
    seen = torch.ones(s.seqlen_q, s.seqlen_k, dtype=torch.bool, device=device)
    middle = s.seqlen_k - s.seqlen_q
    if right is not None:
        seen.tril_(middle + right)
    if left is not None:
        seen.triu_(middle - left)
    return seen


def block_mask_workspace(case: Case) -> Workspace:
    """What `block_mask` needs, beside what a fused kernel keeps."""
    if band(case) == (None, None):
        return flash_workspace(case)
    return Workspace(nbytes=case.shape.seqlen_q * case.shape.seqlen_k, what="mask of which the block mask is made")


def block_mask(case: Case, device: torch.device) -> BlockMask | None:
    """FlexAttention's form of it, which skips the blocks that nobody sees; None where all see all."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    left, right = band(case)
    if left is None and right is None:
        return None
    s = case.shape
    low = -s.seqlen_q - s.seqlen_k if left is None else -left
    high = s.seqlen_q + s.seqlen_k if right is None else right
    middle = s.seqlen_k - s.seqlen_q

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
        distance = j - i - middle
        return (distance >= low) & (distance <= high)

    return create_block_mask(seen, None, None, s.seqlen_q, s.seqlen_k, device=torch.device(device))
