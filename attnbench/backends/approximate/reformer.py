"""`reformer`: attention to keys of similar hashes (Kitaev et al., "Reformer", arXiv 2001.04451, section 2).

A query or key x has the bucket argmax [xR, -xR] of a random matrix R. Queries and keys are sorted, each by bucket and
within a bucket by position, and queries are cut into chunks of m. In the paper keys are the queries, normalised, so
that a chunk attends to itself and to the chunk before it. Here q and k differ, as in the case: a chunk attends to the m
keys before the place of its first query among the sorted keys, and to the m keys from there on. Both rules agree where
q equals k. As in the paper every query attends to its own position too, so that each has a key. There is one round of
hashing; the paper sums up to eight.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from attnbench.backends.approximate.base import KEPT, Approximate, gathered, kept_keys, positions, selecting_prepared
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import ITEMSIZE, Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

MOST_BUCKETS = 256
SEED = 2001


def chunk_of(case: Case) -> int:
    """Return the number of queries in a chunk."""
    return max(1, kept_keys(case) // 2)


def bucket_scores(case: Case, x: Tensor) -> Tensor:
    """Return the bucket scores (..., buckets) of x (..., headdim). A bucket holds half a chunk on average."""
    import torch

    number = 2 * max(1, min(MOST_BUCKETS // 2, case.shape.seqlen_k // chunk_of(case)))
    rotated = x @ _rotation(x.shape[-1], number // 2, x.device).to(x.dtype)
    return torch.cat([rotated, -rotated], dim=-1)


@lru_cache(maxsize=4)
def _rotation(headdim: int, directions: int, device: torch.device) -> Tensor:
    import torch

    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(headdim, directions, generator=generator).to(torch.bfloat16).to(device)  # exact in any dtype


class Reformer(Approximate):
    name = "reformer"
    what = f"attention to keys that hash alike and to a query's own, {KEPT}"

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        tokens = s.batch * s.nheads * s.seqlen_q
        # For each query four rows of scores over two chunks (plain, masked, with its own position, softmax), and the
        # keys and values of two chunks.
        per_token = 4 * 2 * chunk_of(case) + 4 * (s.headdim + s.headdim_v)
        return Workspace(tokens * per_token * ITEMSIZE[case.dtype] * (2 if case.has_backward else 1), "scores", 3.0)

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        import torch

        return bucket_scores(case, torch.cat([q.transpose(0, 1).flatten(0, 1), k]))

    def selected_count(self, case: Case) -> int | None:
        return 1

    def selected_for(self, case: Case, selected: Tensor, head: int) -> Tensor:
        import torch

        s = case.shape  # `selected` has the buckets of the group's queries, head by head, then of the keys
        return torch.cat([selected[head * s.seqlen_q : (head + 1) * s.seqlen_q], selected[-s.seqlen_k :]])

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        import torch

        assert selected is not None  # (seqlen_q + seqlen_k, 1)
        m, keys = chunk_of(case), torch.arange(len(k), device=k.device)
        of_q, of_k = selected[:, 0].split([len(q), len(k)])
        at = positions(case, torch.arange(len(q), device=k.device))
        place_q = of_q * len(k) + at  # sorts by bucket, then by position
        place_k = of_k * len(k) + keys
        rank_k = place_k.argsort().argsort()
        order = place_q.argsort(stable=True)
        first = order[order.argsort()[rows] // m * m]  # first query of the chunk of each row
        start = (place_k < place_q[first][:, None]).sum(-1, keepdim=True)
        own = at[rows][:, None]
        seen: Tensor = ((rank_k >= start - m) & (rank_k < start + m)) | (keys == own)
        return seen & (keys <= own) if case.causal else seen

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        s, m, device = case.shape, chunk_of(case), inputs.q.device
        at_q = positions(case, torch.arange(s.seqlen_q, device=device))
        at_k = torch.arange(s.seqlen_k, device=device)
        heads = torch.arange(s.batch * s.nheads, device=device)[:, None]
        key_heads = heads // (s.nheads // s.nheads_k)
        steps = torch.arange(-m, m, device=device)

        def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:  # (batch, nheads, seqlen, headdim)
            with torch.no_grad():
                of_q, of_k = (bucket_scores(case, t).argmax(-1) for t in (q, k))
                place_k, order_k = (of_k.flatten(0, 1) * s.seqlen_k + at_k).sort(-1)
                place_q, order_q = (of_q.flatten(0, 1) * s.seqlen_k + at_q).sort(dim=-1, stable=True)
                start = torch.searchsorted(place_k[key_heads[:, 0]], place_q[:, ::m].contiguous())
                slots = start[..., None] + steps  # (batch * nheads, chunks, 2 m)
                keys = order_k[key_heads[..., None], slots.clamp(0, s.seqlen_k - 1)]
                short = -s.seqlen_q % m  # repeats the last query to fill the last chunk
                rows = torch.cat([order_q, order_q[:, -1:].expand(-1, short)], dim=1)
                own = at_q[rows]
                by_chunk = own.view(*slots.shape[:2], m, 1)
                seen = ((slots >= 0) & (slots < s.seqlen_k))[:, :, None] & (keys[:, :, None] != by_chunk)
                if case.causal:
                    seen &= keys[:, :, None] < by_chunk
                selected = torch.cat([of_q.unflatten(1, (s.nheads_k, -1)).flatten(2), of_k], dim=-1)[..., None]
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            some = q[heads, rows]  # (batch * nheads, chunks * m, headdim)
            near_k, near_v = (gathered(t, key_heads[..., None], keys) for t in (k, v))
            own_k, own_v = (gathered(t, key_heads, own) for t in (k, v))
            scores = some.view(*by_chunk.shape[:3], -1) @ near_k.transpose(-2, -1) * case.softmax_scale
            with_own = (some * own_k).sum(-1).view(by_chunk.shape) * case.softmax_scale
            p = torch.softmax(torch.cat([scores.masked_fill(~seen, float("-inf")), with_own], dim=-1), dim=-1)
            out = (p[..., :-1] @ near_v).flatten(1, 2) + p[..., -1:].flatten(1, 2) * own_v
            by_row = out[heads, order_q.argsort(-1)]
            return by_row.view(s.batch, s.nheads, s.seqlen_q, s.headdim_v), selected

        return selecting_prepared(case, inputs, call)
