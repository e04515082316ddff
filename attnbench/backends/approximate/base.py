"""Defaults and helper functions of backends that approximate attention (core/backend.py, ApproximateBackend).

Methods that leave keys out keep an eighth of them, at most 256, as FlashAttention's appendix E.6 (arXiv 2205.14135).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import BackendBase, Order, autograd_prepared
from attnbench.backends.limits import TORCH_LIMITS
from attnbench.core.backend import Prepared
from attnbench.core.case import Case

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

COMPRESSION, MOST_KEPT = 8, 256
KEPT = f"an eighth of the keys, at most {MOST_KEPT}"
CHUNK = 2**25  # most scores that a definition computes at once
COPIES = 64  # most copies of k and v in a definition: each takes memory for its gradient
# Queries that see no key are refused, because each method would need a rule of its own for them.
APPROXIMATE_LIMITS = replace(TORCH_LIMITS, unequal_causal=False, empty_rows=False)


class Approximate(BackendBase):
    """Defaults for a method that attends to all pairs of query and key.

    A method that attends to some pairs overrides `attended`; its definition is the softmax over these pairs. A method
    that rounds probabilities overrides `weighted`.
    """

    exact = False
    what = ""  # what the method computes, as a noun phrase for a sentence
    limits = APPROXIMATE_LIMITS

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        """Return softmax attention over the pairs of `attended`, some rows at a time; a backward recomputes them."""
        import torch
        from torch.utils.checkpoint import checkpoint

        def attend(some: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:  # some: (count, headdim)
            seen = self.attended(case, q, k, rows, selected)
            assert seen is not None
            scores = (some @ k.T * case.softmax_scale).masked_fill(~seen, float("-inf"))
            return self.weighted(scores, v)

        step = max(1, CHUNK // len(k))
        parts = zip(q.split(step), torch.arange(len(q), device=q.device).split(step), strict=True)
        again = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
        # If all parts read one k, autograd would add and round its gradients part by part. The gradients of copies are
        # summed at once.
        copies = [t.expand(min(COPIES, -(-len(q) // step)), *t.shape).unbind() for t in (k, v)]
        turns = itertools.cycle(zip(*copies, strict=True))
        return torch.cat([again(some, *next(turns), rows) for some, rows in parts])

    def weighted(self, scores: Tensor, v: Tensor) -> Tensor:
        """Return softmax(scores) v for scores (rows, seqlen_k), -inf where a key is hidden."""
        out: Tensor = scores.softmax(dim=-1) @ v
        return out

    def unrounded(self) -> Approximate | None:
        return None

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        return None

    def selected_count(self, case: Case) -> int | None:
        return None  # a method that overrides `scores` must override this too, or the check finds its launches wrong

    def selected_indices(self, selected: Tensor) -> Tensor:
        return selected

    def selected_for(self, case: Case, selected: Tensor, head: int) -> Tensor:
        return selected  # one choice for all query heads of a key head

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        return None


def kept_keys(case: Case) -> int:
    """Return how many keys of a case a method keeps."""
    return max(1, min(MOST_KEPT, case.shape.seqlen_k // COMPRESSION))


def positions(case: Case, rows: Tensor) -> Tensor:
    """Return the position of each query row among the keys, between 0 and the last key."""
    s = case.shape
    return (rows + s.seqlen_k - s.seqlen_q).clamp(0, s.seqlen_k - 1)


def in_blocks(t: Tensor, block: int) -> Tensor:
    """Return a tensor (..., seqlen, headdim) as (..., blocks, block, headdim), with zeros after its end."""
    import torch

    blocks: Tensor = torch.nn.functional.pad(t, (0, 0, 0, -t.shape[-2] % block)).unflatten(-2, (-1, block))
    return blocks


def block_means(t: Tensor, block: int) -> Tensor:
    """Return the means of the blocks of a tensor (..., seqlen, headdim), (..., blocks, headdim)."""
    import torch

    sizes = in_blocks(torch.ones_like(t[..., :1]), block).sum(-2)
    means: Tensor = in_blocks(t, block).sum(-2) / sizes
    return means


def in_selected_blocks(selected: Tensor, rows: Tensor, keys: int, block: int) -> Tensor:
    """Return (rows, keys), True where a key is in a block that the row's `selected` (..., kept) names; -1 is none."""
    import torch

    blocks = -(-keys // block)
    chosen = torch.zeros(len(selected), blocks + 1, dtype=torch.bool, device=selected.device)
    chosen.scatter_(1, selected.masked_fill(selected < 0, blocks), True)
    return chosen[rows][..., torch.arange(keys, device=selected.device) // block]


def gathered(t: Tensor, heads: Tensor, places: Tensor) -> Tensor:
    """Return the rows `places` of the heads `heads` of t (heads, rows, ...): two index tensors that broadcast.

    Gradients of a row that is taken several times are summed in float32, as in kernels; torch's indexing would round
    after each addition.
    """
    found: Tensor = _gather().apply(t.flatten(0, 1), heads * t.shape[1] + places)
    return found


@cache
def _gather() -> Any:
    import torch

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.rows = len(t)
            return t[index]

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
            (index,), (gradient,) = ctx.saved_tensors, gradients
            wide = gradient.flatten(0, index.dim() - 1).to(torch.promote_types(gradient.dtype, torch.float32))
            total = wide.new_zeros(ctx.rows, *wide.shape[1:]).index_add_(0, index.flatten(), wide)
            return total.to(gradient.dtype), None

    return Gather


def selecting_prepared(
    case: Case, inputs: Inputs, fn: Callable[..., tuple[Tensor, Tensor]], order: Order = "bhsd"
) -> Prepared:
    """Return `autograd_prepared` of a function that returns (out, selection); the selection becomes a result, too."""
    last: list[Tensor] = []

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, selected = fn(q, k, v)
        last[:] = [selected]
        return out

    plain = autograd_prepared(case, inputs, call, order, strided=True)
    return replace(
        plain,
        launch=lambda: (plain.launch(), last[0]),
        canonical=lambda raw: {**plain.canonical(raw[0]), "selected": raw[1]},
    )
