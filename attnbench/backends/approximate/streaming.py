"""`streaming`: attention to the first and the last keys (Xiao et al., "StreamingLLM", arXiv 2309.17453, section 3).

As an approximation of causal attention, each query attends to the first four keys, its attention sinks, and to a window
of keys that ends at its own position. The paper counts positions within the kept keys, which matters to rotary
embeddings only.

Blocks of queries are the heads of one call of torch's SDPA, each with a mask and with the keys that any of its queries
sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.approximate.base import KEPT, Approximate, gathered, in_blocks, kept_keys, positions
from attnbench.backends.base import autograd_prepared
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

SINKS = 4
BLOCK = 128  # queries in a block


def sinks_and_window(case: Case) -> tuple[int, int]:
    """Return how many of the first keys and how many of the last keys a query attends to."""
    kept = kept_keys(case)
    sinks = min(SINKS, kept // 2)
    return sinks, kept - sinks


class Streaming(Approximate):
    name = "streaming"
    order = "bhsd"
    what = f"causal attention to the first {SINKS} keys and the last ones, together {KEPT}"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or (None if case.causal else "it is an approximation of causal masks")

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        import torch

        sinks, window = sinks_and_window(case)
        at, keys = positions(case, rows)[..., None], torch.arange(len(k), device=k.device)
        seen: Tensor = (keys <= at) & ((keys < sinks) | (keys > at - window))
        return seen

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        s, device = case.shape, inputs.q.device
        sinks, window = sinks_and_window(case)
        group = s.nheads // s.nheads_k
        block = min(BLOCK, s.seqlen_q)
        # Keys of a block: the sinks, and all keys from the window of its first query to the position of its last query.
        at = positions(case, torch.arange(-(-s.seqlen_q // block) * block, device=device)).view(-1, block, 1)
        near = torch.arange(window + block, device=device) + at[:, :1, 0] - window
        first = torch.arange(sinks, device=device).expand(len(at), -1)
        seen = (near[:, None] >= 0) & (near[:, None] <= at) & (near[:, None] > at - window)
        seen = torch.cat([first[:, None] <= at - window, seen], dim=-1).repeat(1, group, 1)
        keys = torch.cat([first, near.clamp(0, s.seqlen_k - 1)], dim=-1)
        heads = torch.arange(s.batch * s.nheads_k, device=device).view(-1, 1, 1)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, nheads, seqlen, headdim)
            rows = in_blocks(q, block).unflatten(1, (s.nheads_k, group)).transpose(2, 3).flatten(3, 4).flatten(0, 1)
            k, v = (gathered(t.flatten(0, 1), heads, keys) for t in (k, v))  # (batch * nheads_k, blocks, keys, headdim)
            out = scaled_dot_product_attention(rows, k, v, attn_mask=seen[None], scale=case.softmax_scale)
            by_head: Tensor = out.unflatten(2, (group, block)).transpose(1, 2).flatten(2, 3)[:, :, : s.seqlen_q]
            return by_head.reshape(s.batch, s.nheads, s.seqlen_q, s.headdim_v)

        return autograd_prepared(case, inputs, call, self.order, strided=True)
