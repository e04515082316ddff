"""Choose the query rows for which the reference is computed: all where that is cheap, else some of every query head.

Each head gets the first row, the last row, and one row of each section; there are as many sections as rows remain.
Within a section all (batch entry, query head) pairs take rows at different positions. So a wrong tile of 64 rows is
found with these probabilities, where W is the width of a section in rows:

- in one head: 64 / W
- in all heads: 1 where 64 * (batch * nheads) >= W, else 64 * (batch * nheads) / W

On a GPU with batch 1, 64k tokens and 16 query heads on one key head there are 128 rows of each head, and W is 512: 12 %
and 100 %. One row for all query heads of a key head would give 12 % in all heads. Two samples are drawn, the second
with a quarter of the rows, by seeds of the operating system (`draw_seed`). The probabilities hold for gradients; for
out, screen.py searches all rows for wrong tiles in most cases.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, cu_seqlens
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCORE_BUDGET = {"cuda": 2**27, "cpu": 2**22}  # most score elements that a check recomputes
# FLOPs of a reference up to which all rows are compared; an H200 does some 18e12 in float32 in a second.
FULL_FLOPS = {"cuda": 2e12, "cpu": 0.0}
MIN_ROWS = 16  # least number of rows of a head; where these exceed the budget, heads are left out
RUN = 8  # number of last rows of the sequence that a sample with dropout includes


@dataclass(frozen=True)
class RowSample:
    """The sampled (batch entry, key head) pairs, each with the rows to compare in the query heads of its group."""

    batch: Tensor  # (pairs,) int64
    head: Tensor  # (pairs,) int64, key heads
    rows: Tensor  # (pairs, count, group) int64, ascending in each head
    all_pairs: bool  # True: no head is left out
    all_rows: bool  # True: no row is left out
    seed: int | None = None  # seed of the draw; None where nothing was drawn

    @property
    def whole(self) -> bool:
        """Whether the sample holds every row of every head."""
        return self.all_pairs and self.all_rows

    @property
    def heads(self) -> int:
        """The number of (batch entry, query head) pairs."""
        return self.rows.shape[0] * self.rows.shape[2]


def draw_seed() -> int:
    """Return a seed from the operating system, which no code can predict."""
    return int.from_bytes(os.urandom(4), "big")


def reference_flops(case: Case) -> float:
    """Return the FLOPs of a reference of all rows: exact and eager attention, masked pairs included."""
    s = case.extent
    products = 6 * (s.headdim + s.headdim_v) if case.has_backward else 2 * (s.headdim + s.headdim_v)
    return 2.0 * products * s.batch * s.nheads * s.seqlen_q * s.seqlen_k


def choose_rows(
    case: Case,
    device: torch.device,
    seed: int = 0,
    share: float = 1.0,
    *,
    full_flops: float = 0.0,
    most: int | None = None,
    run: int = 0,
) -> RowSample:
    """Choose all rows where a reference costs at most `full_flops`; else as many as `share` of SCORE_BUDGET allows.

    At most `most` rows of each head are chosen, among them the first row and the last `run` rows, or the last one. A
    ragged batch has the first and the last row of each sequence, or of some sequences where these are too many.
    """
    import torch

    s = case.extent
    generator = torch.Generator().manual_seed(seed + 1)
    budget = int(share * SCORE_BUDGET["cpu" if device.type == "cpu" else "cuda"])
    group = s.nheads // s.nheads_k
    pairs, row = s.batch * s.nheads_k, group * s.seqlen_k
    if reference_flops(case) <= full_flops:
        budget = pairs * row * s.seqlen_q
    least = min(s.seqlen_q, MIN_ROWS)
    chosen = max(min(2, pairs), min(pairs, budget // (least * row)))
    count = max(least, min(s.seqlen_q, budget // (chosen * row), most or s.seqlen_q))
    at = torch.arange(pairs)
    if chosen < pairs:
        inner = torch.randperm(pairs - 2, generator=generator)[: chosen - 2] + 1
        at = torch.cat([at[:1], inner.sort().values, at[-1:]])
    rows = torch.arange(s.seqlen_q)[None, :, None].expand(chosen, -1, group)
    if count < s.seqlen_q:
        ends = _ends(case, max(1, min(run, count // 2)), count, generator)
        others = torch.ones(s.seqlen_q, dtype=torch.bool).index_fill(0, ends, False).nonzero().flatten()
        drawn = others[_one_of_each_section(len(others), count - len(ends), chosen * group, generator)]
        rows = torch.cat([ends[:, None].expand(-1, chosen * group), drawn]).sort(0).values
        rows = rows.unflatten(1, (chosen, group)).transpose(0, 1).contiguous()
    everything = chosen == pairs and count == s.seqlen_q
    return RowSample(
        (at // s.nheads_k).to(device),
        (at % s.nheads_k).to(device),
        rows.to(device),
        all_pairs=chosen == pairs,
        all_rows=count == s.seqlen_q,
        seed=None if everything else seed,
    )


def _ends(case: Case, run: int, most: int, generator: torch.Generator) -> Tensor:
    """Return the first row, the last `run` rows, and ends of a ragged batch's sequences, up to half of `most`."""
    import torch

    total = case.extent.seqlen_q
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(total - run, total)])
    if case.is_ragged:
        cu_seqlens_q, _ = cu_seqlens(case, torch.device("cpu"))
        inner = cu_seqlens_q[1:-1].long()
        inner = torch.cat([inner - 1, inner])
        inner = inner[torch.randperm(len(inner), generator=generator)[: max(0, most // 2 - len(ends))]]
        ends = torch.cat([ends, inner])
    unique: Tensor = ends.unique()
    return unique


def _one_of_each_section(rows: int, count: int, heads: int, generator: torch.Generator) -> Tensor:
    """Return (count, heads): one row for each of `count` sections of `rows` and each head, at different positions."""
    import torch

    edges = torch.arange(count + 1) * rows // count
    width = edges.diff()[:, None]
    turns = torch.rand(count, heads, generator=generator).argsort(1)
    offset = (turns + torch.rand(count, heads, generator=generator)) / heads
    drawn: Tensor = edges[:-1, None] + (offset * width).long().minimum(width - 1)
    return drawn


def check_inputs(case: Case, inputs: Inputs, sample: RowSample, *, in_place: bool = False) -> Inputs:
    """Return the inputs with dout = 0 outside the sampled rows of the sampled heads.

    `in_place` changes the given dout, else it is copied. With a sink, whose gradient is a sum over all batch entries,
    dout is 0 in the other heads too.
    """
    import torch

    if inputs.dout is None or sample.whole or (sample.all_rows and not case.sink):
        return inputs
    s = case.extent
    group = s.nheads // s.nheads_k
    size = (s.batch, s.seqlen_q, s.nheads_k, group)
    hidden = torch.full(size, case.sink, dtype=torch.bool, device=inputs.dout.device)
    hidden[sample.batch, :, sample.head] = True
    hidden[_places(sample.batch, sample.head, sample.rows)] = False
    hidden = hidden.flatten(2)[..., None]
    if in_place:
        inputs.dout.masked_fill_(hidden, 0)
        return inputs
    return replace(inputs, dout=inputs.dout.masked_fill(hidden, 0))


def rows_of(case: Case, t: Tensor, batch: Tensor, head: Tensor, rows: Tensor) -> Tensor:
    """Return the sampled rows of a tensor (batch, seqlen_q, nheads, d) as (pairs, count, group, d).

    `batch` and `head` (key heads) are (pairs,), `rows` (pairs, count, group).
    """
    by_key_head: Tensor = t.unflatten(2, (case.shape.nheads_k, -1))
    return by_key_head[_places(batch, head, rows)]


def _places(batch: Tensor, head: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the indices of the rows in a tensor (batch, seqlen_q, nheads_k, group, ...)."""
    import torch

    return batch[:, None, None], rows, head[:, None, None], torch.arange(rows.shape[2], device=rows.device)
