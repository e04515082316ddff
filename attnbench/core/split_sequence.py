"""How a sequence is split over several devices: which positions each rank holds.

Contiguous parts are as a model's activations lie. For causal attention they are unlike work: the last rank sees all
keys. Head-tail parts are even: of 2 * ranks chunks rank r holds chunk r and chunk 2 * ranks - 1 - r (torch's context
parallel, torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py; Llama 3, arXiv 2407.21783, section
3.3.2). A model's data are loaded in that order, so it is no part of a call.
"""

from __future__ import annotations

import re
from dataclasses import replace

from attnbench.core.case import Case

COLLECTIVES = re.compile("nccl|gloo|c10d::", re.IGNORECASE)  # names of kernels and operators that move data alone
Spans = tuple[tuple[int, int], ...]  # (first, one after the last) position of each part, in the order in memory


def contiguous(seqlen: int, ranks: int, rank: int) -> Spans:
    """Return the positions that a rank holds where each holds one part; `seqlen` is a multiple of `ranks`."""
    part = seqlen // ranks
    return ((rank * part, (rank + 1) * part),)


def head_tail(seqlen: int, ranks: int, rank: int) -> Spans:
    """Return the positions that a rank holds in head-tail order; `seqlen` is a multiple of 2 * `ranks`."""
    part, last = seqlen // (2 * ranks), 2 * ranks - 1 - rank
    return (rank * part, (rank + 1) * part), (last * part, (last + 1) * part)


def part_of(case: Case) -> Case:
    """Return the case of one rank's part of the sequence alone, with all heads, on one device."""
    s = case.shape
    part = replace(s, seqlen_q=s.seqlen_q // case.ranks, seqlen_k=s.seqlen_k // case.ranks)
    return replace(case, ranks=1, shape=part)


def exposed(latency: float, compute: float) -> float:
    """Return the share of a call's `latency` that it does not take without its communication, in `compute` seconds."""
    return max(0.0, 1 - compute / latency)
