"""Stand-in for fla-core 0.6.0: the parts of native sparse attention (fla/ops/nsa/naive.py), differentiable."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from standins import modules

VERSIONS = {"fla-core": "0.6.0"}


def mean_pooling(x: Tensor, chunk_size: int, cu_seqlens: None = None) -> Tensor:
    return torch.stack([part.float().mean(1) for part in x.split(chunk_size, dim=1)], dim=1).to(x.dtype)


def _scores(q: Tensor, k: Tensor, block_size: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return the scores of blocks (batch, seqlen, nheads, blocks), and whether a block ends before a query."""
    k = k.float().repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bthd,bchd->bthc", q.float(), k) * scale
    ends = (torch.arange(scores.shape[-1]) + 1) * block_size - 1
    return scores, (ends <= torch.arange(q.shape[1])[:, None])[:, None]


def parallel_nsa_compression(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    TK: int,  # noqa: N803
    block_size: int = 64,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    assert scale is not None
    assert q.shape[1] == TK
    scores, seen = _scores(q, k, block_size, scale)
    any_seen = seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen & any_seen, float("-inf"))
    p = scores.softmax(-1) * any_seen
    v = v.float().repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    lse = torch.where(any_seen[..., 0], scores.logsumexp(-1), 0.0)
    return torch.einsum("bthc,bchd->bthd", p, v).to(q.dtype), lse


def parallel_nsa_topk(
    q: Tensor,
    k: Tensor,
    TK: int,  # noqa: N803
    lse: Tensor,
    block_counts: int,
    block_size: int = 64,
    scale: float | None = None,
) -> Tensor:
    assert scale is not None
    assert lse.shape == q.shape[:3]
    assert block_size >= 2 * block_counts
    scores, _ = _scores(q, k, block_size, scale)
    own, block = torch.arange(q.shape[1])[:, None] // block_size, torch.arange(scores.shape[-1])
    p = (scores - lse[..., None]).exp().masked_fill((block >= own)[:, None], 0.0)
    p = p.unflatten(2, (k.shape[2], -1)).mean(3)
    always = (block == 0) | (block == own) | (block == own - 1)
    p = p.masked_fill(always[:, None], 1.0).masked_fill((block > own)[:, None], -1.0)
    found = p.sort(dim=-1, descending=True)
    chosen = found.indices.masked_fill(found.values < 0, -1)[..., :block_counts].to(torch.int32)
    return torch.nn.functional.pad(chosen, (0, block_counts - chosen.shape[-1]), value=-1)


class ParallelNSAFunction:
    @staticmethod
    def apply(
        q: Tensor, k: Tensor, v: Tensor, indices: Tensor, counts: int, block_size: int, scale: float, cu_seqlens: None
    ) -> Tensor:
        group = q.shape[2] // k.shape[2]
        assert group >= 16
        assert group & (group - 1) == 0
        assert indices.shape == (*k.shape[:3], counts)
        blocks = -(-k.shape[1] // block_size)
        chosen = torch.zeros(*k.shape[:3], blocks + 1, dtype=torch.bool)
        chosen.scatter_(-1, indices.long() % (blocks + 1), True)
        keys = torch.arange(k.shape[1])
        seen = chosen[..., keys // block_size] & (keys <= keys[:, None])[:, None]
        kf, vf = (t.float().repeat_interleave(group, dim=2) for t in (k, v))
        scores = torch.einsum("bthd,bchd->bthc", q.float(), kf) * scale
        p = scores.masked_fill(~seen.repeat_interleave(group, dim=2), float("-inf")).softmax(-1)
        return torch.einsum("bthc,bchd->bthd", p, vf).to(q.dtype)


def version_0_6_0() -> dict[str, ModuleType]:
    parallel = {"ParallelNSAFunction": ParallelNSAFunction, "parallel_nsa_topk": parallel_nsa_topk}
    return modules(
        {
            "fla.ops.nsa.parallel": parallel,
            "fla.ops.nsa.compression": {"parallel_nsa_compression": parallel_nsa_compression},
            "fla.ops.utils.pooling": {"mean_pooling": mean_pooling},
        }
    )
