"""Attention for stand-ins: differentiable, in float32, with a mask that is a band of diagonals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    left: int | None = None,
    right: int | None = None,
    bottom_right: bool = True,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
    signed: bool = False,
    change: Callable[[Tensor], Tensor] | None = None,
    sink: Tensor | None = None,
    dropout_p: float = 0.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (out, lse) for tensors (batch, seqlen, nheads, headdim); lse is (batch, nheads, seqlen_q).

    out has `dtype`, by default q's. Query i sees key j where -left <= j - i - shift <= right; shift is
    seqlen_k - seqlen_q with `bottom_right`, else 0. The out of a query that sees no key is 0.

    ALiBi's `slopes` (nheads,) subtract slope * |j - i - shift| from the scores, or add slope * (j - i) where `signed`.
    `change` is applied to the scores, (batch, nheads, seqlen_q, seqlen_k), and sets the scores of hidden pairs to -inf.
    A `sink` (nheads,) is one more score of each query of a head, included in lse.
    """
    out_dtype = dtype or q.dtype
    group = q.shape[2] // k.shape[2]
    q, k, v = q.float(), *(t.float().repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
    distance = j[None, :] - i[:, None] - (len(j) - len(i) if bottom_right else 0)
    if slopes is not None:
        check(slopes.shape == q.shape[2:3] and slopes.dtype == torch.float32, "ALiBi's slopes: (nheads,) in float32")
        scores = scores + slopes[:, None, None] * (j[None, :] - i[:, None] if signed else -distance.abs())
    if change is not None:
        scores = change(scores)
    if left is not None:
        scores = scores.masked_fill(distance < -left, -math.inf)
    if right is not None:
        scores = scores.masked_fill(distance > right, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    p, lse = torch.softmax(scores, dim=-1), torch.logsumexp(scores, dim=-1)
    if sink is not None:
        check(sink.shape == q.shape[2:3], "a sink of each head")
        beside = sink.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        p = torch.softmax(torch.cat([scores, beside], dim=-1), dim=-1)[..., :-1]
        lse = torch.logaddexp(lse, beside[..., 0])
    p = torch.nn.functional.dropout(p.masked_fill(blind, 0.0), dropout_p)
    return torch.einsum("bhij,bjhd->bihd", p, v).to(out_dtype), lse


def attend_varlen(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, max_q: object, max_k: object, **options: Any
) -> Tensor:
    """Return out for packed tensors (total, nheads, headdim), with sequences between the starts.

    The starts must be int32 from 0 to the totals, and the longest lengths must be true and of type int.
    """
    check(starts_q.dtype == torch.int32 == starts_k.dtype, "cu_seqlens must be int32")
    check((int(starts_q[-1]), int(starts_k[-1])) == (len(q), len(k)), "cu_seqlens must end with the totals")
    for starts, longest in ((starts_q, max_q), (starts_k, max_k)):
        check(type(longest) is int and longest == int(starts.diff().max()), "the longest sequence")
    edges = zip(itertools.pairwise(starts_q.tolist()), itertools.pairwise(starts_k.tolist()), strict=True)
    outs = [attend(q[None, a:b], k[None, c:d], v[None, c:d], **options)[0][0] for (a, b), (c, d) in edges]
    return torch.cat(outs)


def attend_paged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    page_table: Tensor,
    seqlens_k: Tensor,
    *,
    starts_q: Tensor | None = None,
    lse: list[Tensor] | None = None,
    **options: Any,
) -> Tensor:
    """Return out for caches (pages, page_size, nheads_k, headdim), sequence by sequence, in the shape of q.

    q is (sequences, seqlen_q, nheads, headdim), or (total_q, nheads, headdim) between `starts_q`. The log-sum-exps,
    (total_q, nheads), are appended to `lse`.
    """
    check(page_table.dtype == torch.int32 == seqlens_k.dtype, "page table and lengths must be int32")
    queries = q if starts_q is None else q.split(starts_q.diff().tolist())
    outs, of_queries = [], []
    for mine, pages, length in zip(queries, page_table.long(), seqlens_k.tolist(), strict=True):
        used = pages[: -(-length // k.shape[1])]
        keys, values = (cache[used].flatten(0, 1)[None, :length] for cache in (k, v))
        out, sums = attend(mine[None], keys, values, **options)
        outs.append(out)
        of_queries.append(sums[0].T)
    if lse is not None:
        lse.append(torch.cat(of_queries))
    return torch.cat(outs) if starts_q is None else torch.cat(outs, dim=1)[0]


def append_paged(
    k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, page_table: Tensor, seqlens: Tensor, starts: Sequence[int]
) -> None:
    """Write new keys and values, (total, nheads_k, headdim) between the starts, to the end of each sequence."""
    for i, (a, b) in enumerate(itertools.pairwise(starts)):
        places = torch.arange(int(seqlens[i]), int(seqlens[i]) + b - a)
        pages = page_table[i, places // k.shape[1]].long()
        for cache, new in ((k, new_k), (v, new_v)):
            cache[pages, places % k.shape[1]] = new[a:b]


def opened(window: tuple[int, int]) -> tuple[int | None, int | None]:
    """Return a window of flash-attn with None instead of -1 for a side without a limit."""
    left, right = window
    return (None if left < 0 else left, None if right < 0 else right)


def alibi_slopes(heads: int) -> Tensor:
    """Return the slopes of ALiBi's paper, which cuDNN, FlashInfer and Transformer Engine use."""
    n = 2 ** int(math.log2(heads))
    return torch.tensor(
        [2 ** (-8 * i / n) for i in range(1, 1 + n)] + [2 ** (-4 * i / n) for i in range(1, 2 * (heads - n), 2)]
    )


def check(condition: bool, message: str) -> None:
    """Raise RuntimeError unless the condition holds, like TORCH_CHECK."""
    if not condition:
        raise RuntimeError(message)


def check_half(*tensors: Tensor) -> None:
    check(all(t.dtype == tensors[0].dtype for t in tensors), "query, key and value must have the same dtype")
    check(tensors[0].dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
