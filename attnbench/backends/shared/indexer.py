"""An indexer as a function of scores and torch.topk, for every backend that has such a function (core/indexer.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import BackendBase
from attnbench.core import masks
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

AT_ONCE = 2**29  # most bytes of the scores that are computed at once
# Code to paste: backends/paste.py
SHAPES = """\
# q: (batch, seqlen_q, nheads, headdim); k: (batch, seqlen_k, headdim); weights, float32: (batch, seqlen_q, nheads)
# with e4m3 q and k: k_scale, float32: (batch, seqlen_k)
"""
CHOICE = """\
highest, indices = scores.topk(min({chosen}, k.size(1)))
indices = indices.masked_fill(highest == float("-inf"), -1).int()"""


class Indexer(BackendBase):
    """Base of a backend of indexers. Scores are computed, and keys chosen, for some queries at a time."""

    kinds: ClassVar[tuple[Kind, ...]] = ("indexer",)
    choice_kernels = "(?i)topk|sort|radix"  # of torch.topk

    def bytes_of_a_score(self, case: Case) -> int:
        """Return the bytes of the score of a query and a key, and of its choice."""
        return 8

    def scores(self, case: Case, inputs: Inputs) -> Callable[..., Tensor]:
        """Return a function of parts of q, k, the weights and the scale of k (None but for fp8).

        It returns float32 scores (batch, queries, keys), -inf where a query does not see a key. The last query of the
        parts sees the last key.
        """
        raise NotImplementedError

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        nbytes = self.bytes_of_a_score(case) * s.batch * s.seqlen_k * self._queries(case)
        return Workspace(nbytes, "scores", passes=3.0)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        s, chosen, queries = case.shape, masks.chosen(case.mask), self._queries(case)
        q, k, weights, k_scale = inputs.q, inputs.k, inputs.weights, inputs.k_scale
        assert weights is not None
        scores = self.scores(case, inputs)

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

    def _queries(self, case: Case) -> int:
        """Return how many queries are computed at once."""
        s = case.shape
        return max(1, min(s.seqlen_q, AT_ONCE // (self.bytes_of_a_score(case) * s.batch * s.seqlen_k)))
