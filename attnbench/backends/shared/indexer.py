"""The prepared call of an indexer, for every backend that has a function of its scores (core/indexer.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnbench.core import masks
from attnbench.core.backend import Prepared
from attnbench.core.case import Case

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

SHAPES = """\
# q: (batch, seqlen_q, nheads, headdim); k: (batch, seqlen_k, headdim); weights, float32: (batch, seqlen_q, nheads)
# with e4m3 q and k: k_scale, float32: (batch, seqlen_k)
"""  # code to paste: backends/paste.py
CHOICE = """\
highest, indices = scores.topk(min({chosen}, k.size(1)))
indices = indices.masked_fill(highest == float("-inf"), -1).int()"""


def indexer_prepared(case: Case, inputs: Inputs, scores: Callable[..., Tensor], queries: int) -> Prepared:
    """Return the prepared call of a function of scores and torch.topk, for as many queries at a time as `queries`.

    `scores` takes parts of q, k, the weights and the scale of k (None but for fp8), of which the last query sees the
    last key. It returns float32 scores (batch, queries, keys), -inf where a query does not see a key.
    """
    import torch

    s, chosen = case.shape, masks.chosen(case.mask)
    q, k, weights, k_scale = inputs.q, inputs.k, inputs.weights, inputs.k_scale
    assert weights is not None

    def launch() -> Tensor:
        indices = torch.full((s.batch, s.seqlen_q, chosen), -1, dtype=torch.int32, device=q.device)
        for first in range(0, s.seqlen_q, queries):
            last = min(first + queries, s.seqlen_q)
            keys = last + s.seqlen_k - s.seqlen_q
            scale = None if k_scale is None else k_scale[:, :keys]
            of_part = scores(q[:, first:last], k[:, :keys], weights[:, first:last], scale)
            highest, at = of_part.topk(min(chosen, keys), sorted=False)
            indices[:, first:last, : at.shape[2]] = at.masked_fill_(highest == float("-inf"), -1)
        return indices

    return Prepared(launch, lambda raw: {"indices": raw})


def queries_at_once(case: Case, nbytes: float, most: int = 2**29) -> int:
    """Return how many queries at a time need at most `most` bytes, with `nbytes` for each query and key."""
    s = case.shape
    return max(1, min(s.seqlen_q, int(most // (nbytes * s.batch * s.seqlen_k))))
