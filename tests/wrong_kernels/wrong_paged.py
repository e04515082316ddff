"""Attention over a cache of pages, or of latent rows, that is wrong in one way each."""

from __future__ import annotations

import itertools
import math
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


PREFIX = 96  # tokens of the shared prefix, in pages of 16


def neighbours_own_page(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The second sequence reads the first page after the prefix of the first."""
    changed = table.clone()
    changed[1, PREFIX // 16] = table[0, PREFIX // 16]
    return changed, lengths


def another_page_of_the_prefix(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """A sequence has one of its own pages as the prefix's second."""
    changed = table.clone()
    changed[1, 1] = table[1, PREFIX // 16]
    return changed, lengths


def prefix_left_out(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Only a sequence's own keys are read."""
    return table[:, PREFIX // 16 :], lengths - PREFIX


def prefix_twice(table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The keys of the prefix count twice."""
    return torch.cat([table[:, : PREFIX // 16], table], 1), lengths + PREFIX


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


# (out, lse) of the prefix, and of a sequence's own keys -> out; lse is the log2-sum-exp2, as kernels compute it
Merge = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def by_weights(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    share = 1 / (1 + torch.exp2(lse_b - lse_a))[..., None]
    return (share * out_a.float() + (1 - share) * out_b.float()).to(out_a)


def by_another_base(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """A log-sum-exp of base 2 is taken as one of base e."""
    return by_weights(out_a, lse_a / math.log(2), out_b, lse_b / math.log(2))


def without_weights(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:  # noqa: ARG001
    """The two parts are averaged."""
    return ((out_a.float() + out_b.float()) / 2).to(out_a)


def swapped(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """Each part has the weight of the other."""
    return by_weights(out_a, lse_b, out_b, lse_a)


@dataclass
class Cascade(Textbook):
    """Attention over the shared prefix and over each sequence's own keys, rounded to the dtype, and merged."""

    merge: Merge = by_weights
    causal_prefix: bool = False  # the causal mask also applies to the prefix
    name = "cascade"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        assert inputs.page_table is not None
        device = inputs.q.device
        lengths, edges = seqlens_k(case, device).tolist(), cu_seqlens(case, device)[0].tolist()
        group = case.shape.nheads // case.shape.nheads_k

        def attend(q: Tensor, places: slice, row: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
            k, v = (t[row.long()].flatten(0, 1)[places] for t in (inputs.k, inputs.v))
            k, v = (t.repeat_interleave(group, dim=1).transpose(0, 1) for t in (k, v))
            scores = q.transpose(0, 1) @ k.transpose(1, 2) * case.softmax_scale
            if causal:
                hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=device)
                scores = scores.masked_fill(hidden.triu(len(hidden[0]) - len(hidden) + 1), float("-inf"))
            out = (torch.softmax(scores, -1) @ v).transpose(0, 1)
            return out, scores.float().logsumexp(-1).T / math.log(2)

        def launch() -> Tensor:
            outs = []
            for i, (begin, end) in enumerate(itertools.pairwise(edges)):
                q, row = inputs.q.flatten(0, 1)[begin:end], inputs.page_table[i]
                shared = attend(q, slice(case.shared_prefix), row, case.causal and self.causal_prefix)
                own = attend(q, slice(case.shared_prefix, lengths[i]), row, case.causal)
                outs.append(self.merge(*shared, *own))
            return torch.cat(outs).view(*inputs.q.shape[:3], -1)

        return Prepared(launch, lambda out: {"out": out})


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
