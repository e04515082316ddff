"""Attention over a cache of pages, or of latent rows, that is wrong in one way each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from measuring_device import Textbook
from torch import Tensor

from attnbench.core import pages
from attnbench.core.backend import Inputs, Prepared, cu_seqlens
from attnbench.core.case import Case
from attnbench.core.pages import seqlens_k

# (page table, lengths) -> the ones that the kernel reads
Changes = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def right(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    return table, lengths


def in_order(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The pages of a sequence are taken in the order of their numbers."""
    return table.sort(1).values, lengths


def stale_page(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The last page of the first sequence is one that it had before."""
    at = (int(lengths[0]) - 1) // 16
    changed = table.clone()
    changed[0, at] = (table[0, at] + 1) % (int(table.max()) + 1)
    return changed, lengths


def neighbours_page(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The second sequence reads the first page of the first."""
    changed = table.clone()
    changed[1, 0] = table[0, 0]
    return changed, lengths


def whole_pages(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The rest of a last page is read as keys."""
    return table, (lengths + 15) // 16 * 16


def one_key_less(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The newest key is not seen."""
    return table, lengths - 1


def appended(case: Case, given: Inputs) -> None:
    pages.appender(case, given)()


def not_appended(case: Case, given: Inputs) -> None:
    """The new keys and values are not written, so the old content of their places is read."""


def keys_alone(case: Case, given: Inputs) -> None:
    """The new values are not written."""
    pages.appender(case, replace(given, v=given.v.clone()))()


def also_elsewhere(case: Case, given: Inputs) -> None:
    """A key in the cache that no query of the batch sees is overwritten."""
    pages.appender(case, given)()
    assert given.page_table is not None
    used = {*pages.key_places(case, given.page_table).flatten().tolist()}
    other = next(place for place in range(given.k.shape[0] * case.page_size) if place not in used)
    given.k.flatten(0, 1)[other] = 1.0


@dataclass
class Paged(Textbook):
    """Attention, one sequence after the other, over the right pages and lengths changed by `changes`."""

    changes: Changes = right
    scale_of: int = 0  # the head dim whose root is the scale; 0: the case's scale
    descale: bool = True  # factors of an e4m3 cache are used
    append: Callable[[Case, Inputs], None] = appended
    name = "paged"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        assert inputs.page_table is not None
        device = inputs.q.device
        table, lengths = self.changes(inputs.page_table.long(), seqlens_k(case, device).long())
        edges = cu_seqlens(case, device)[0].tolist()
        factors = inputs.descale if self.descale else (1.0, 1.0)

        def launch() -> Tensor:
            self.append(case, inputs)
            q, outs = inputs.q.flatten(0, 1), []
            for i, (begin, end) in enumerate(itertools.pairwise(edges)):
                own = table[i][: -(-int(lengths[i]) // case.page_size)]
                k, v = (
                    t[own].flatten(0, 1)[: int(lengths[i])].float().mul(factor).to(q)
                    for t, factor in zip((inputs.k, inputs.v), factors, strict=True)
                )
                group = case.shape.nheads // case.shape.nheads_k
                k, v = (t.repeat_interleave(group, dim=1).transpose(0, 1) for t in (k, v))
                scale = self.scale_of**-0.5 if self.scale_of else case.softmax_scale
                scores = q[begin:end].transpose(0, 1) @ k.transpose(1, 2) * scale  # (nheads, queries, keys)
                if case.causal:
                    hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=device)
                    scores = scores.masked_fill(hidden.triu(len(hidden[0]) - len(hidden) + 1), float("-inf"))
                outs.append((torch.softmax(scores, -1) @ v).transpose(0, 1))
            return torch.cat(outs).view(*inputs.q.shape[:3], -1)

        return Prepared(launch, lambda out: {"out": out})
