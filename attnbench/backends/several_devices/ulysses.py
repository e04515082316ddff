"""`ulysses-*`: DeepSpeed-Ulysses around a single-device backend (Jacobs et al., arXiv 2309.14509, section 3.1).

Each rank holds a part of the sequence with all heads. An all-to-all for each of q, k and v gives it the whole sequence
with a part of the heads, on which the backend computes attention; a fourth returns the output. The backward moves dout,
dq, dk and dv in the same way. The collectives are torch.distributed's all_to_all_single; the copies that make its
blocks contiguous are part of the call.

With fewer key heads than ranks each key head goes to several ranks, and its gradients are summed.

Checked against torch 2.13 with gloo on a CPU, and against torch 2.11 on two H100s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends import ULYSSES
from attnbench.backends.base import BackendBase
from attnbench.backends.several_devices.base import SeveralDevices
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Ulysses(SeveralDevices):
    """All-to-all from parts of the sequence to parts of the heads, and back, around any backend of one device."""

    def __init__(self, on_one: BackendBase) -> None:
        self.on_one = on_one
        self.name = f"{ULYSSES}{on_one.name}"

    def cannot_split(self, case: Case, device: Device) -> str | None:
        s, ranks = case.shape, case.ranks
        if s.nheads % ranks:
            return f"ulysses gives each rank the same number of query heads: {s.nheads} is no multiple of {ranks}"
        if s.nheads_k % ranks and ranks % s.nheads_k:
            return f"ulysses: the number of key heads ({s.nheads_k}) or of ranks ({ranks}) must divide the other"
        return None

    def on_each(self, case: Case) -> Case:
        if case.ranks == 1:
            return case
        s = case.shape
        of_rank = replace(s, nheads=s.nheads // case.ranks, nheads_k=max(1, s.nheads_k // case.ranks))
        return replace(case, ranks=1, shape=of_rank, layout="bshd")

    def prepare_rank(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        s, ranks = case.shape, case.ranks
        copies = max(1, ranks // s.nheads_k)  # ranks that get the same key head
        given: Mapping[str, Tensor] = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
        if inputs.dout is not None:
            given = {**given, "dout": inputs.dout}
        whole = {
            name: torch.empty(
                (t.shape[0], s.seqlen_q, max(1, t.shape[2] // ranks), t.shape[3]), dtype=t.dtype, device=t.device
            )
            for name, t in given.items()
        }

        def gather(*names: str) -> None:
            for name in names:
                t = given[name]
                spread = t.repeat_interleave(copies, 2) if copies > 1 and name in ("k", "v") else t
                heads_from_tokens(spread, whole[name], ranks)

        def back(name: str, t: Tensor) -> Tensor:
            of_part = tokens_from_heads(t, ranks)
            return of_part.unflatten(2, (-1, copies)).sum(3) if copies > 1 and name in ("dk", "dv") else of_part

        names = tuple(given) if case.direction == "fwd_bwd" else ("q", "k", "v") if case.has_forward else ("dout",)
        gather(*given)
        prepared = self.on_one.prepare(
            self.on_each(case), Inputs(whole["q"], whole["k"], whole["v"], whole.get("dout"))
        )
        before: dict[str, Tensor] = {}
        if not case.has_forward:  # backward only: `out` is the result of the forward in `prepare`
            before["out"] = back("out", prepared.canonical(prepared.launch())["out"])

        def launch() -> dict[str, Tensor]:
            gather(*names)
            results = prepared.canonical(prepared.launch())
            return {**before, **{name: back(name, t) for name, t in results.items() if name not in before}}

        share = (ranks - 1) / ranks
        sent = sum(given[name].nbytes * (copies if name in ("k", "v") else 1) for name in names)
        results = (["out"] if case.has_forward else []) + (["q", "k", "v"] if case.has_backward else [])
        like = {"out": s.headdim_v * s.nheads, "q": s.headdim * s.nheads}
        like |= {"k": s.headdim * s.nheads_k * copies, "v": s.headdim_v * s.nheads_k * copies}
        tokens = s.batch * s.seqlen_q // ranks * inputs.q.element_size()
        sent += sum(like[name] * tokens for name in results)
        return Prepared(launch, _named, prepared.forward, moved=int(share * sent), compute=prepared.launch)


def heads_from_tokens(part: Tensor, whole: Tensor, ranks: int) -> None:
    """Fill `whole` (batch, seqlen, nheads / ranks, d) from all ranks' `part` (batch, seqlen / ranks, nheads, d)."""
    import torch
    import torch.distributed as dist

    blocks = part.unflatten(2, (ranks, -1)).permute(2, 0, 1, 3, 4).contiguous()
    by_rank = whole.unflatten(1, (ranks, -1)).transpose(0, 1)  # contiguous where batch is 1
    received = by_rank if by_rank.is_contiguous() else torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    if received is not by_rank:
        by_rank.copy_(received)


def tokens_from_heads(whole: Tensor, ranks: int) -> Tensor:
    """Return this rank's part (batch, seqlen / ranks, nheads, d) of all ranks' (batch, seqlen, nheads / ranks, d)."""
    import torch
    import torch.distributed as dist

    blocks = whole.unflatten(1, (ranks, -1)).transpose(0, 1).contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    return received.permute(1, 2, 0, 3, 4).flatten(2, 3)


def _named(raw: Any) -> Mapping[str, Tensor]:
    results: Mapping[str, Tensor] = raw
    return results
