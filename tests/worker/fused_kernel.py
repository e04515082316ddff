"""A right fused kernel for tests, in float64 except for its scores, which are float32 sums in a given order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.judge.exact_attention import visible_keys

Order = Callable[[int], Sequence[int]]


def first(headdim: int) -> Sequence[int]:
    """Return the order that adds column 0, the large one on hard inputs, first."""
    return range(headdim)


def last(headdim: int) -> Sequence[int]:
    """Return the order that adds column 0 last."""
    return range(headdim)[::-1]


def fused(
    case: Case,
    given: Inputs,
    forward: Order = first,
    backward: Order = first,
    lost: float | Tensor = 0.0,
    seen: bool = True,
) -> dict[str, Tensor]:
    """Return the results of a dense case in its dtype, gradients included, with scores summed in these orders.

    The out that the backward reads is too small by the share `lost`, a number or (seqlen_q, 1); with `seen` the
    returned out is too small as well.
    """
    s = case.shape
    group = s.nheads // s.nheads_k
    assert given.dout is not None
    q, dout = (t.transpose(1, 2) for t in (given.q, given.dout))
    k, v = (t.transpose(1, 2).repeat_interleave(group, 1) for t in (given.k, given.v))
    hidden = ~visible_keys(case, torch.arange(s.seqlen_q))
    q, k, v, dout = (t.float() for t in (q, k, v, dout))

    def scores(order: Order) -> Tensor:
        total = torch.zeros(s.batch, s.nheads, s.seqlen_q, s.seqlen_k)
        for d in order(s.headdim):
            total += q[..., d, None] * k[..., None, :, d]
        return (total.double() * case.softmax_scale).masked_fill(hidden, -math.inf)

    before, after = scores(forward), scores(backward)
    q, k, v, dout = (t.double() for t in (q, k, v, dout))
    log_sum = before.logsumexp(-1, keepdim=True)
    sink = None if given.sink is None else given.sink.double()[:, None, None]
    log_sum = log_sum if sink is None else torch.logaddexp(log_sum, sink)
    exact = (before - log_sum).exp().nan_to_num(0.0) @ v
    out = exact * (1 - lost)
    p = (after - log_sum).exp().nan_to_num(0.0)
    row_sums = (dout * out).sum(-1, keepdim=True)
    ds = p * (dout @ v.mT - row_sums) * case.softmax_scale
    results = {"out": out if seen else exact, "dq": ds @ k}
    of_keys = {"dk": ds.mT @ q, "dv": p.mT @ dout}
    results |= {name: t.unflatten(1, (-1, group)).sum(2) for name, t in of_keys.items()}
    of_sink = {} if sink is None else {"dsink": -((sink - log_sum).exp() * row_sums).sum((0, 2, 3)).float()}
    return {name: t.transpose(1, 2).to(torch_dtype(case)) for name, t in results.items()} | of_sink
