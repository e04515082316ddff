"""A mask of one's own: documents of 1000 tokens in one sequence, of which a query sees its own only.

attnbench run --mask examples/masks/documents.py:documents --causal --seqlen 4k -b eager,flex
"""

from __future__ import annotations

from torch import Tensor

TOKENS = 1000


def documents(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:  # noqa: ARG001
    """Return whether query and key are in one document: FlexAttention's mask_mod, on tensors that broadcast."""
    return q_idx // TOKENS == kv_idx // TOKENS
