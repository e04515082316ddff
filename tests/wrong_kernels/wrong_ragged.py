"""Attention of ragged batches with one fault each in the limits of sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring_device import Textbook
from torch import Tensor

from attnbench.backends.base import autograd_prepared
from attnbench.core.backend import Inputs, Prepared, cu_seqlens
from attnbench.core.case import Case

Starts = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def right(starts_q: Tensor, starts_k: Tensor) -> tuple[Tensor, Tensor]:
    return starts_q, starts_k


def off_by_one_key(starts_q: Tensor, starts_k: Tensor) -> tuple[Tensor, Tensor]:
    """Each sequence but the first begins one key too late."""
    return starts_q, torch.cat([starts_k[:1], starts_k[1:-1] + 1, starts_k[-1:]])


def off_by_one_query(starts_q: Tensor, starts_k: Tensor) -> tuple[Tensor, Tensor]:
    """The last query of each sequence but the last counts to the next one."""
    return torch.cat([starts_q[:1], starts_q[1:-1] - 1, starts_q[-1:]]), starts_k


def two_as_one(starts_q: Tensor, starts_k: Tensor) -> tuple[Tensor, Tensor]:
    """The first two sequences are one: keys leak into the neighbour."""
    return torch.cat([starts_q[:1], starts_q[2:]]), torch.cat([starts_k[:1], starts_k[2:]])


@dataclass
class Ragged(Textbook):
    """Attention, one sequence after the other, between the right starts changed by a function."""

    starts: Starts = right
    swaps: bool = False  # swaps the results of the last two sequences, of equal length
    name = "ragged"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        starts_q, starts_k = (t.long() for t in self.starts(*cu_seqlens(case, inputs.q.device)))
        edges = list(zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False))

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (total, nheads, headdim)
            outs = []
            for a, b, c, d in edges:
                options: dict[str, Any] = {"scale": case.softmax_scale, "enable_gqa": True}
                if case.causal:
                    seen = torch.ones(int(b - a), int(d - c), dtype=torch.bool, device=q.device)
                    options["attn_mask"] = seen.tril(int(d - c) - int(b - a))
                parts = (t[None].transpose(1, 2) for t in (q[a:b], k[c:d], v[c:d]))
                out = torch.nn.functional.scaled_dot_product_attention(*parts, **options)
                outs.append(out.transpose(1, 2)[0])
            if self.swaps:
                outs[-2:] = outs[:-3:-1]
            return torch.cat(outs)

        return autograd_prepared(case, inputs, attention, "thd", strided=True)
