"""Transformer Engine's context parallel on CPUs: backends of test_ranks.py over a module of the same interface.

For every kind of communication the module gathers keys and values, like the interface's "all_gather", and computes
this rank's queries at their places in Transformer Engine's documented order (attn_forward_func_with_cp).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnbench.backends.several_devices import ring_transformer_engine
from attnbench.core.backend import Probe, Signature


class DotProductAttention(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        assert options["qkv_format"] == "bshd"
        assert options["window_size"] == ((-1, 0) if options["attn_mask_type"] == "causal" else (-1, -1))
        self.options = options

    def set_context_parallel_group(self, group: Any, ranks: list[int], stream: Any, communication: str) -> None:
        assert group is dist.group.WORLD
        assert ranks == list(range(dist.get_world_size()))
        assert stream is not None
        assert communication in ("p2p", "all_gather", "a2a")

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        causal = self.options["attn_mask_type"] == "causal"
        half = k.shape[1] // 2
        k_all, v_all = (AllGather.apply(t) for t in (k, v))
        chunks = [c for r in range(ranks) for c in (r, 2 * ranks - 1 - r)]  # dual chunk swap
        if not causal:
            chunks = list(range(2 * ranks))
        keys = torch.cat([torch.arange(c * half, (c + 1) * half) for c in chunks])
        queries = keys.view(ranks, -1)[rank]
        seen = keys[None, :] <= queries[:, None] if causal else torch.ones(len(queries), len(keys), dtype=torch.bool)
        groups = q.shape[2] // k.shape[2]
        q, k_all, v_all = (t.transpose(1, 2).double() for t in (q, k_all, v_all))
        scores = q @ k_all.repeat_interleave(groups, 1).mT * self.options["softmax_scale"]
        p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out: Tensor = (p @ v_all.repeat_interleave(groups, 1)).transpose(1, 2).flatten(2)
        return out.to(v.dtype)


class AllGather(torch.autograd.Function):
    """A function that joins all ranks' (batch, seqlen / ranks, nheads, headdim) in the dimension of seqlen.

    Its backward changes the shape of a saved tensor, like the backward of "p2p".
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        found = t.new_empty(dist.get_world_size() * t.shape[0], *t.shape[1:])
        dist.all_gather_into_tensor(found, t.contiguous())
        ctx.save_for_backward(torch.zeros(2))
        return found.unflatten(0, (-1, t.shape[0])).transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.saved_tensors[0].unsqueeze_(-1)
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]


for _name in ("transformer_engine", "transformer_engine.pytorch"):
    sys.modules[_name] = ModuleType(_name)
sys.modules["transformer_engine.pytorch"].__dict__["DotProductAttention"] = DotProductAttention


class OnACpu(ring_transformer_engine.ContextParallel):
    inner = "sdpa"

    def __init__(self, *communication: str) -> None:
        super().__init__(*communication)
        self._stream = object()  # a CPU has no streams

    def probe(self) -> Probe:
        return Probe(version="0")

    def unsupported(self, case: Any, device: Any) -> str | None:
        return self.cannot_split(case, device) if case.ranks > 1 else None

    def signature(self, case: Any, device: Any) -> Signature:
        return Signature()


class P2p(OnACpu):
    name = "te-p2p"


class Ulysses(OnACpu, ring_transformer_engine.Ulysses):
    name = "te-ulysses"
