"""A mask of your own: the sequence has documents of 1000 tokens, and a query sees keys of its own document only.

attnbench run --mask examples/masks/documents.py:documents --causal --seqlen 4k -b eager,flex
"""

from __future__ import annotations

from torch import Tensor

TOKENS = 1000


def documents(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:  # noqa: ARG001
    """Return True where query and key are in one document. A mask_mod of FlexAttention, on tensors that broadcast."""
    return q_idx // TOKENS == kv_idx // TOKENS
