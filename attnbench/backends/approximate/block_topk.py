"""`block-topk`: each block of queries attends to the blocks of keys with the highest scores of block means.

The block-sparse heads of MInference (Jiang et al., arXiv 2407.02490, algorithm 3): q and k are averaged over blocks of
64 tokens, and each block of queries attends to the blocks of keys with the largest products. Under a causal mask it
attends to its own block, too. Each query head selects its own blocks. They are gathered for one call of torch's SDPA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.approximate.base import (
    KEPT,
    Approximate,
    block_means,
    gathered,
    in_blocks,
    in_selected_blocks,
    kept_keys,
    positions,
    selecting_prepared,
)
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import ITEMSIZE, Case

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

BLOCK = 64


def kept_blocks(case: Case) -> int:
    """Return how many blocks of keys a block of queries attends to; fewer where a causal mask hides the others."""
    return min(-(-case.shape.seqlen_k // BLOCK), max(1, kept_keys(case) // BLOCK) + case.causal)


def block_scores(case: Case, q: Tensor, k: Tensor) -> Tensor:
    """Return the scores of blocks, (..., query blocks, key blocks), of q and k (..., seqlen, headdim).

    Under a causal mask the score of a block's own block is infinity, and that of later blocks is minus infinity.
    """
    import torch

    found = block_means(q, BLOCK) @ block_means(k, BLOCK).transpose(-2, -1) * case.softmax_scale
    if case.causal:
        last = torch.arange(1, found.shape[-2] + 1, device=q.device) * BLOCK - 1
        own = (positions(case, last.clamp(max=case.shape.seqlen_q - 1)) // BLOCK)[:, None]
        block = torch.arange(found.shape[-1], device=q.device)
        found = found.masked_fill(block > own, float("-inf")).masked_fill(block == own, float("inf"))
    return found


class BlockTopk(Approximate):
    name = "block-topk"
    what = f"attention to the blocks of {BLOCK} keys with the largest mean scores, {KEPT} but one block at least"

    def workspace(self, case: Case) -> Workspace:
        s, kept = case.shape, kept_blocks(case)
        # Memory of each query: its block's keys and values, gathered, and a mask as bool and in the case's dtype.
        per_query = (kept * (s.headdim + s.headdim_v) + kept * BLOCK) * ITEMSIZE[case.dtype] + kept * BLOCK
        copies = 2 if case.has_backward else 1
        return Workspace(s.batch * s.nheads * s.seqlen_q * per_query * copies, "the blocks selected", passes=2.0)

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        return block_scores(case, q.transpose(0, 1), k)

    def selected_count(self, case: Case) -> int | None:
        return kept_blocks(case)

    def selected_for(self, case: Case, selected: Tensor, head: int) -> Tensor:
        return selected[head]

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        import torch

        assert selected is not None  # (query blocks, kept), -1 where there are fewer
        seen = in_selected_blocks(selected, rows // BLOCK, len(k), BLOCK)
        keys = torch.arange(len(k), device=k.device)
        return seen & (keys <= positions(case, rows)[..., None]) if case.causal else seen

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        s, device = case.shape, inputs.q.device
        group, kept = s.nheads // s.nheads_k, kept_blocks(case)
        within = torch.arange(BLOCK, device=device)
        at = positions(case, torch.arange(-(-s.seqlen_q // BLOCK), device=device)[:, None] * BLOCK + within)
        key_head = torch.arange(s.batch * s.nheads_k, device=device).view(s.batch, s.nheads_k, 1, 1, 1)

        def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:  # (batch, nheads, seqlen, headdim)
            q = q.unflatten(1, (s.nheads_k, group))
            with torch.no_grad():
                best = block_scores(case, q, k[:, :, None]).topk(kept, dim=-1)
                selected = best.indices  # hidden blocks too, where fewer are visible: the mask excludes them
                named = selected.masked_fill(best.values.isneginf(), -1) if case.causal else selected
            mask = None
            if case.causal or s.seqlen_k % BLOCK:
                keys = (selected[..., None] * BLOCK + within).flatten(-2)[..., None, :]
                mask = (keys <= at[..., None]) if case.causal else (keys < s.seqlen_k)
                mask = mask.expand(*selected.shape[:-1], BLOCK, -1).flatten(0, 2)
            # (batch * nheads, query blocks, kept * BLOCK, headdim)
            blocks = (in_blocks(t, BLOCK).flatten(0, 1) for t in (k, v))
            k, v = (gathered(t, key_head, selected).flatten(-3, -2).flatten(0, 2) for t in blocks)
            rows = in_blocks(q, BLOCK).flatten(0, 2)
            out = scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=case.softmax_scale)
            by_head = out.flatten(1, 2)[:, : s.seqlen_q]
            return by_head.reshape(s.batch, s.nheads, s.seqlen_q, s.headdim_v), named

        return selecting_prepared(case, inputs, call)
