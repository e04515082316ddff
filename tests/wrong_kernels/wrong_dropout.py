"""Backends of attention with dropout, right and wrong, which differ in the draw or the use of the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from right_attention import probabilities, weigh
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

Attention = Callable[[Tensor, Tensor, Tensor, Case], Tensor]


class DropoutBackend(BackendBase):
    """A backend of a function of (q, k, v, case)."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        return autograd_prepared(case, inputs, lambda q, k, v: self.attention(q, k, v, case))


def attend(q: Tensor, k: Tensor, v: Tensor, case: Case, kept: Tensor, rescale: float | None = None) -> Tensor:
    """Return attention with a dropout mask that is broadcast to (batch, nheads, seqlen_q, seqlen_k)."""
    p = probabilities(q, k, case.causal, case.softmax_scale)
    return weigh(p * kept.to(p.dtype) * (1 / (1 - case.dropout_p) if rescale is None else rescale), v)


def shape(case: Case) -> tuple[int, int, int, int]:
    s = case.shape
    return (s.batch, s.nheads, s.seqlen_q, s.seqlen_k)


def torch_dropout(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Right: a mask from torch's random numbers."""
    return attend(q, k, v, case, torch.rand(shape(case)) >= case.dropout_p)


def byte_dropout(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Right, as flash-attn does it: a random byte is compared with the share kept in 255ths."""
    return attend(q, k, v, case, torch.randint(256, shape(case)) <= int((1 - case.dropout_p) * 255))


class OwnRandomNumbers:
    """Draws from a generator of its own, which torch.set_rng_state does not reach; right unless options change it."""

    def __init__(self, rescale: float | None = None, wrong_p: float | None = None) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.rescale, self.wrong_p = rescale, wrong_p

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
        kept = torch.rand(shape(case), generator=self.generator) >= (self.wrong_p or case.dropout_p)
        return attend(q, k, v, case, kept, self.rescale)


def drops_nothing(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Ignores dropout."""
    return attend(q, k, v, case, torch.ones(()), rescale=1.0)


def wrong_p(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Drops 10 % too many and rescales by the wrong p too, so that its mean is right."""
    p = 1.1 * case.dropout_p
    return attend(q, k, v, case, torch.rand(shape(case)) >= p, rescale=1 / (1 - p))


def wrong_share(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Drops 10 % too many and rescales by the right p, so that only the share is wrong."""
    return attend(q, k, v, case, torch.rand(shape(case)) >= 1.1 * case.dropout_p)


def no_rescale(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Does not rescale the kept probabilities."""
    return attend(q, k, v, case, torch.rand(shape(case)) >= case.dropout_p, rescale=1.0)


def before_softmax(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Drops keys before the softmax, so that the rest sums up to one again."""
    p = probabilities(q, k, case.causal, case.softmax_scale) * (torch.rand(shape(case)) >= case.dropout_p)
    return weigh(p / p.sum(-1, keepdim=True).clamp(min=1e-9), v)


def on_output(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Drops elements of the output."""
    return torch.nn.functional.dropout(attend(q, k, v, case, torch.ones(()), rescale=1.0), case.dropout_p)


def same_mask_in_all_heads(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    return attend(q, k, v, case, torch.rand(1, 1, *shape(case)[2:]) >= case.dropout_p)


def same_mask_in_all_rows(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    batch, heads, _, keys = shape(case)
    return attend(q, k, v, case, torch.rand(batch, heads, 1, keys) >= case.dropout_p)


def same_mask_in_every_second_row(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Gives one mask to the rows i, i + 2, i + 4 and i + 6 of each 8, as cuDNN 9.19 does on an H200."""
    batch, heads, rows, keys = shape(case)
    kept = torch.rand(batch, heads, rows // 8, 1, 2, keys) >= case.dropout_p
    return attend(q, k, v, case, kept.expand(-1, -1, -1, 4, -1, -1).reshape(batch, heads, rows, keys))


def same_mask_in_all_tiles(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Repeats the mask of the first 64 keys."""
    batch, heads, rows, keys = shape(case)
    return attend(q, k, v, case, (torch.rand(batch, heads, rows, 64) >= case.dropout_p).repeat(1, 1, 1, keys // 64))


def same_mask_in_all_calls(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return attend(q, k, v, case, torch.rand(shape(case), generator=generator) >= case.dropout_p)


class _OtherMaskInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, case: Case, own: bool) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.case, ctx.own = case, own
        return torch_dropout(q, k, v, case)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        q, k, v = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            if ctx.own:  # always the same mask, so that it can be read
                kept = torch.rand(shape(ctx.case), generator=torch.Generator().manual_seed(3)) >= ctx.case.dropout_p
                out = attend(q, k, v, ctx.case, kept)
            else:
                out = torch_dropout(q, k, v, ctx.case)
            return (*torch.autograd.grad(out, (q, k, v), dout), None, None)


class OtherMaskInBackward:
    """Draws the backward's mask anew: from torch's random numbers at that time, or (`own`) always the same mask."""

    def __init__(self, *, own: bool) -> None:
        self.own = own

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
        out: Tensor = _OtherMaskInBackward.apply(q, k, v, case, self.own)
        return out
