"""The mask of a case in the forms that libraries take.

Query i sees key j where -left <= j - (i + seqlen_k - seqlen_q) <= right; None for a side without a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.libraries import flash_workspace
from attnbench.core.backend import Workspace
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask


def effective_window(case: Case) -> tuple[int | None, int | None]:
    """Return (left, right) as causal and the window give it together; None for a side without a limit.

    The right side of a single query is None, since it stands at the last key.
    """
    left, right = case.window_size
    if case.shape.seqlen_q == 1:
        return left, None
    return left, 0 if case.causal else right


def flash_window(case: Case) -> tuple[int, int]:
    """Return the window as flash-attn takes it, -1 for open. Causal is an option of its own there."""
    left, right = case.window_size
    return (-1 if left is None else left, -1 if right is None else right)


def visibility_mask(case: Case, device: torch.device) -> Tensor | None:
    """Return a bool tensor (seqlen_q, seqlen_k), True where a query sees a key; None where there is no mask."""
    import torch

    left, right = effective_window(case)
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
    """Return the workspace of `block_mask`; without a mask, that of a fused kernel."""
    if effective_window(case) == (None, None):
        return flash_workspace(case)
    return Workspace(
        nbytes=case.shape.seqlen_q * case.shape.seqlen_k, what="full mask from which the block mask is built"
    )


def block_mask(case: Case, device: torch.device) -> BlockMask | None:
    """Return FlexAttention's mask, which skips the blocks that no query sees; None where there is no mask."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    left, right = effective_window(case)
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
