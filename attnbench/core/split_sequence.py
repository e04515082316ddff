"""The split of a sequence over several devices: the positions that each rank holds.

Contiguous parts are the order of a model's activations. With causal attention the ranks then have unequal work, as the
last rank sees all keys. Head-tail parts have equal work: of 2 * ranks chunks, rank r holds chunk r and chunk 2 * ranks
- 1 - r (torch's context parallel, torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py; Llama 3,
arXiv 2407.21783, section 3.3.2). A model loads its data in this order, so reordering is not part of a call.
"""

from __future__ import annotations

import re
from dataclasses import replace

from attnbench.core.case import Case

COLLECTIVES = re.compile("nccl|gloo|c10d::", re.IGNORECASE)  # names of kernels and operators that only move data
Spans = tuple[tuple[int, int], ...]  # (first, last + 1) position of each part, in the order in memory


def contiguous(seqlen: int, ranks: int, rank: int) -> Spans:
    """Return the positions that a rank holds with contiguous parts; `seqlen` is a multiple of `ranks`."""
    part = seqlen // ranks
    return ((rank * part, (rank + 1) * part),)


def head_tail(seqlen: int, ranks: int, rank: int) -> Spans:
    """Return the positions that a rank holds in head-tail order; `seqlen` is a multiple of 2 * `ranks`."""
    part, last = seqlen // (2 * ranks), 2 * ranks - 1 - rank
    return (rank * part, (rank + 1) * part), (last * part, (last + 1) * part)


def part_of(case: Case) -> Case:
    """Return a case of one rank's part of the sequence, with all heads, on one device."""
    s = case.shape
    part = replace(s, seqlen_q=s.seqlen_q // case.ranks, seqlen_k=s.seqlen_k // case.ranks)
    return replace(case, ranks=1, shape=part)


def exposed(latency: float, compute: float) -> float:
    """Return the share of `latency` that communication adds to `compute`, the time without it; both in seconds."""
    return max(0.0, 1 - compute / latency)
