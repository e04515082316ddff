"""The inputs of one rank, and single heads of all ranks together.

Inputs are made one key head at a time, with its query heads: heads are independent, so that such a head is a case of
its own (judge/heads.py). Every rank makes each head from the same seed and keeps its positions of the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs
from attnbench.core.case import Case
from attnbench.core.split_sequence import Spans
from attnbench.judge import inputs
from attnbench.judge.heads import head_case, head_seed

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def make_head(case: Case, head: int, device: str, seed: int) -> Inputs:
    """Return the inputs of one key head of the whole sequence."""
    return inputs.make(head_case(case), device, head_seed(seed, head))


def make_part(case: Case, spans: Spans, device: str, seed: int) -> Inputs:
    """Return the inputs of the positions `spans`, all heads."""
    s, part = case.shape, {}
    for head in range(s.nheads_k):  # in turn, with one whole head at a time beside the part
        for name, t in make_head(case, head, device, seed).values.items():
            own = take(t, spans)
            if head == 0:
                part[name] = own.new_empty(*own.shape[:2], s.nheads_k * own.shape[2], own.shape[3])
            part[name][:, :, columns(case, name, head)] = own
    return Inputs(part["q"], part["k"], part["v"], part.get("dout"))


def take(t: Tensor, spans: Spans) -> Tensor:
    """Return the positions `spans` of a tensor (batch, seqlen, ...), in their order."""
    import torch

    return torch.cat([t[:, start:end] for start, end in spans], 1)


def columns(case: Case, name: str, head: int) -> slice:
    """Return the slice of heads that belong to a key head, in the tensor `name` ("q", "dk", ...) of all heads."""
    group = 1 if name in ("k", "v", "dk", "dv") else case.shape.nheads // case.shape.nheads_k
    return slice(head * group, (head + 1) * group)


def put_head(case: Case, part: Inputs, head: int, whole: Inputs | None, spans: Spans, device: torch.device) -> None:
    """Write a key head of rank 0's `whole` inputs (None in other ranks) into each rank's part. A collective.

    A copy is sent, as the inputs may lie in memory of another process.
    """
    import torch
    import torch.distributed as dist

    s = head_case(case).shape
    for name, t in part.values.items():
        size = (s.batch, s.seqlen_q, s.nheads if name in ("q", "dout") else 1, t.shape[-1])
        sent = (
            torch.empty(size, dtype=t.dtype, device=device)
            if whole is None
            else whole.values[name].contiguous().clone()
        )
        dist.broadcast(sent, 0)
        t[:, :, columns(case, name, head)] = take(sent, spans)


def gather_head(case: Case, results: Mapping[str, Tensor], head: int, spans_of: Sequence[Spans]) -> dict[str, Tensor]:
    """Return the results of one key head for the whole sequence, from all ranks' parts. A collective."""
    import torch
    import torch.distributed as dist

    found = {}
    for name in sorted(results):
        own = results[name][:, :, columns(case, name, head)].contiguous()
        parts = [torch.empty_like(own) for _ in spans_of]
        dist.all_gather(parts, own)
        whole = torch.empty(own.shape[0], case.shape.seqlen_q, *own.shape[2:], dtype=own.dtype, device=own.device)
        for part, spans in zip(parts, spans_of, strict=True):
            at = 0
            for start, end in spans:
                whole[:, start:end] = part[:, at : at + end - start]
                at += end - start
        found[name] = whole
    return found


def is_as_made(case: Case, given: Inputs, spans: Spans, seed: int) -> str | None:
    """Return the name of the first tensor of `given` whose values have changed since they were made; else None."""
    return inputs.first_changed(given, make_part(case, spans, str(given.q.device), seed))
