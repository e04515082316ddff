"""Chooses the query rows for which the reference is computed: some of every head, spread over the whole sequence.

Different heads get different rows, so that together they leave no gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCORE_BUDGET = {"cuda": 2**27, "cpu": 2**22}  # score elements recomputed per check
MIN_ROWS = 16  # of each head; where even these exceed the budget, heads are left out


@dataclass(frozen=True)
class RowSample:
    """(batch entry, key head) pairs, each with the query rows that are compared in all query heads of its group."""

    batch: Tensor  # (pairs,) int64
    head: Tensor  # (pairs,) int64, key heads
    rows: Tensor  # (pairs, count) int64, ascending
    all_pairs: bool  # True: no head is left out
    all_rows: bool  # True: no row is left out

    @property
    def whole(self) -> bool:
        """Whether the sample holds every row of every head."""
        return self.all_pairs and self.all_rows


def choose_rows(case: Case, device: torch.device, seed: int = 0, share: float = 1.0) -> RowSample:
    """Choose as many rows of every head as `share` of SCORE_BUDGET allows, with the first and the last row.

    The sequence is split into as many sections as there are rows, and each head gets one row of each section. Within a
    section the heads take rows at different places, so that a wrong tile that one head's rows miss is in another's.
    """
    import torch

    s = case.shape
    generator = torch.Generator().manual_seed(seed + 1)
    budget = int(share * SCORE_BUDGET["cpu" if device.type == "cpu" else "cuda"])
    pairs, row = s.batch * s.nheads_k, s.nheads // s.nheads_k * s.seqlen_k
    least = min(s.seqlen_q, MIN_ROWS)
    chosen = max(min(2, pairs), min(pairs, budget // (least * row)))
    count = max(least, min(s.seqlen_q, budget // (chosen * row)))
    at = torch.arange(pairs)
    if chosen < pairs:
        inner = torch.randperm(pairs - 2, generator=generator)[: chosen - 2] + 1
        at = torch.cat([at[:1], inner.sort().values, at[-1:]])
    rows = torch.arange(s.seqlen_q).expand(chosen, -1)
    if count < s.seqlen_q:
        edges = torch.arange(count + 1) * s.seqlen_q // count
        width = edges.diff()[:, None]
        turns = torch.rand(count, chosen, generator=generator).argsort(1)
        offset = (turns + torch.rand(count, chosen, generator=generator)) / chosen
        rows = (edges[:-1, None] + (offset * width).long().minimum(width - 1)).T.contiguous()
        rows[:, 0], rows[:, -1] = 0, s.seqlen_q - 1
    return RowSample(
        (at // s.nheads_k).to(device),
        (at % s.nheads_k).to(device),
        rows.to(device),
        all_pairs=chosen == pairs,
        all_rows=count == s.seqlen_q,
    )


def check_inputs(case: Case, inputs: Inputs, sample: RowSample) -> Inputs:
    """Return the inputs with dout = 0 outside the sampled rows of the sampled heads (see worker/reference)."""
    import torch

    if inputs.dout is None or sample.all_rows:
        return inputs
    s = case.shape
    hidden = torch.zeros(s.batch, s.seqlen_q, s.nheads_k, dtype=torch.bool, device=inputs.dout.device)
    hidden[sample.batch, :, sample.head] = True
    hidden[sample.batch[:, None], sample.rows, sample.head[:, None]] = False
    return replace(
        inputs, dout=inputs.dout.masked_fill(hidden.repeat_interleave(s.nheads // s.nheads_k, 2)[..., None], 0)
    )


def rows_of(case: Case, t: Tensor, batch: Tensor, head: Tensor, rows: Tensor) -> Tensor:
    """Return the sampled rows of a tensor (batch, seqlen_q, nheads, d) as (pairs, count, group, d).

    `batch` and `head` (key heads) are (pairs,), `rows` (pairs, count).
    """
    by_key_head: Tensor = t.unflatten(2, (case.shape.nheads_k, -1))
    return by_key_head[batch[:, None], rows, head[:, None]]
