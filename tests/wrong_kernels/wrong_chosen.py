"""Attention over keys chosen for each query, in a cache of latent rows, that is wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from measuring_device import Textbook
from torch import Tensor

from attnbench.backends.flashmla import chosen_rows
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.pages import queries

Changes = Callable[[Tensor], Tensor]  # chosen rows (batch, seqlen_q, number), -1 for none -> the rows that are read
PAGE = 16  # tokens


def right(rows: Tensor) -> Tensor:
    return rows


def one_left_out(rows: Tensor) -> Tensor:
    return torch.cat([rows[..., :3], rows[..., 4:]], -1)


def one_read_twice(rows: Tensor) -> Tensor:
    return torch.cat([rows[..., :3], rows[..., 4:5], rows[..., 4:]], -1)


def another_sequences_key(rows: Tensor) -> Tensor:
    changed = rows.clone()
    changed[0, :, 5] = rows[1, :, 5]
    return changed


def one_page_for_all(rows: Tensor) -> Tensor:
    """Keys are read at their place in the sequence, without the page table."""
    return torch.where(rows < 0, rows, rows % PAGE)


def no_key_as_first_row(rows: Tensor) -> Tensor:
    """Entries of -1 are read as row 0."""
    return rows.clamp(min=0)


def last_part_left_out(rows: Tensor) -> Tensor:
    """The last tile of a list, of 16 keys, is not read."""
    return rows[..., :-16]


@dataclass
class Chosen(Textbook):
    """Attention over the rows of a cache that the case chooses for each query, changed by `changes`."""

    changes: Changes = right
    descale: bool = True  # the factor of an e4m3 cache is used
    name = "chosen"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        rows = self.changes(chosen_rows(case, inputs))
        factor = inputs.descale[0] if self.descale else 1.0

        def launch() -> Tensor:
            outs = []
            for q, own in zip(queries(case, inputs.q), rows, strict=True):
                keys = inputs.k.flatten(0, 2)[own.clamp(min=0)].float().mul(factor).to(q)
                scores = q @ keys.transpose(1, 2) * case.softmax_scale  # (seqlen_q, nheads, number)
                p = torch.softmax(scores.masked_fill((own < 0)[:, None], float("-inf")), -1)
                outs.append(p @ keys[..., : case.shape.headdim_v])
            return torch.stack(outs).view(*inputs.q.shape[:3], -1)

        return Prepared(launch, lambda out: {"out": out})
