"""The host side of the backward, and its first kernel, delta. attention.py explains the algorithm."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.backends.shared.libraries import padded_queries
from attnbench.backends.triton.block_sizes import (
    Blocks,
    head_dim_constants,
    heads_per_section,
    query_splits,
    tile_constants,
)
from attnbench.backends.triton.device_functions import load_rows, store_rows
from attnbench.backends.triton.dkdv import _dk_dv
from attnbench.backends.triton.dq import _dq
from attnbench.backends.triton.launch import Part, can_use_tma, launch, launch_best, row_descriptors, tensor_descriptors
from attnbench.backends.triton.named_mask import arguments
from attnbench.backends.triton.problem import LOG2_E, Problem


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: Problem,
    *,
    need_dq: bool = True,
    need_dkv: bool = True,
    need_dsink: bool = False,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return (dq, dk, dv, dsink), contiguous, in the dtype of q, dsink in the dtype of the sink; None if not needed.

    `lse` is the log-sum-exp that attention_forward returned.
    """
    nheads, nheads_k = q.shape[2], k.shape[2]
    if dout.stride(-1) != 1:  # a broadcast gradient, for example of out.sum()
        dout = dout.contiguous()
    constants = tile_constants(q, v)
    lse_padded, delta = padded_lse_and_delta(dout, out, lse)

    sequences = (problem.cu_seqlens_q, problem.cu_seqlens_k, problem.alibi_slopes)
    strides = (*problem.strides(q, k, v, dout), *problem.lse_strides(delta))
    scalars = (problem.softmax_scale, *problem.scales, problem.seqlen_q, problem.seqlen_k, *problem.window)
    group, heads_k = nheads // nheads_k, problem.heads_in_order(nheads_k)
    row_bytes = (q.shape[3] + v.shape[3]) * q.element_size()
    use_tma = can_use_tma(q, k, v, dout)
    rows_by_tma = use_tma and not problem.varlen  # a descriptor would load rows of the next sequence

    dq: Any = torch.empty(q.shape, dtype=q.dtype, device=q.device) if need_dq else None
    dk: Any = torch.empty(k.shape, dtype=q.dtype, device=q.device) if need_dkv else None
    dv: Any = torch.empty(v.shape, dtype=q.dtype, device=q.device) if need_dkv else None

    def parts(blocks: Blocks) -> tuple[tuple[Part, Part], tuple[Part, Part]]:
        """Return the tensors to read in blocks of queries, and the tensors to read in blocks of keys."""
        m, n, width, width_v = blocks.BLOCK_M, blocks.BLOCK_N, constants["BLOCK_D"], constants["BLOCK_DV"]
        return ((q, m, width), (dout, m, width_v)), ((k, n, width), (v, n, width_v))

    def features(blocks: Blocks, by_tma: bool) -> dict[str, Any]:
        tma = blocks.tma and by_tma
        return {**constants, **problem.features, **problem.named_constants, "TMA": tma, "AHEAD": blocks.ahead}

    def run_dk_dv(blocks: Blocks) -> None:
        inputs: tuple[Any, ...] = (k, v, q, dout)
        rows: tuple[Any, ...] = (lse_padded, delta)
        if blocks.tma and rows_by_tma:
            queries, keys = parts(blocks)
            inputs, rows = tensor_descriptors(keys, queries, resident=False), row_descriptors(rows, blocks.BLOCK_M)
        blocks_of_keys = problem.blocks_of_keys(k, blocks.BLOCK_N)
        programs = blocks_of_keys * heads_k
        splits = query_splits(q, programs, group, triton.cdiv(problem.seqlen_q, blocks.BLOCK_M), blocks.num_warps)
        results = (dk, dv) if splits == 1 else tuple(empty_splits(x, splits) for x in (dk, dv))
        launch(
            _dk_dv,
            blocks,
            programs * splits,
            q,
            *(inputs[2], *inputs[:2], inputs[3], *rows, *results, *sequences),
            *arguments(problem.named_mask, blocks.BLOCK_M, blocks.BLOCK_N, by_keys=True),
            *(*strides, *problem.strides(*results)),
            *(*scalars, nheads, group // splits, None if splits == 1 else splits),
            *(problem.batch * nheads_k * splits, blocks_of_keys),
            heads_per_section(heads_k * splits, group // splits * problem.seqlen_q * row_bytes),
            **features(blocks, rows_by_tma),
        )
        if splits > 1:
            add_splits(results[0], dk, splits)
            add_splits(results[1], dv, splits)

    def run_dq(blocks: Blocks) -> None:
        inputs: tuple[Any, ...] = (q, dout, k, v)
        if blocks.tma and use_tma:
            inputs = tensor_descriptors(*parts(blocks), blocks.resident)
        blocks_of_queries = problem.blocks_of_queries(q, blocks.BLOCK_M)
        launch(
            _dq,
            blocks,
            blocks_of_queries * heads_k * group,
            q,
            *(inputs[0], *inputs[2:], inputs[1], lse_padded, delta, dq, *sequences),
            *arguments(problem.named_mask, blocks.BLOCK_M, blocks.BLOCK_N),
            *(*strides, *problem.strides(dq)),
            *(*scalars, nheads, group, problem.batch * nheads, blocks_of_queries),
            heads_per_section(heads_k, problem.seqlen_k * row_bytes) * group,
            problem.seqlen_k if problem.varlen else problem.seqlen_k - problem.seqlen_k % blocks.BLOCK_N,
            RESIDENT=blocks.resident,
            **features(blocks, use_tma),
        )

    if need_dkv:
        launch_best("dkdv", q, v, problem.mask_kind, rows_by_tma, run_dk_dv)
    if need_dq:
        launch_best("dq", q, v, problem.mask_kind, use_tma, run_dq)
    dsink = _gradient_of_sink(problem.sink, lse_padded, delta) if need_dsink and problem.sink is not None else None
    return dq, dk, dv, dsink


def padded_lse_and_delta(dout: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and delta = rowsum(out * dout), both (batch, nheads, padded_queries(seqlen_q)) in fp32.

    The padding is +inf for the log-sum-exp, (batch, nheads, seqlen_q), and 0 for delta. `dout` and `out` are (batch,
    seqlen_q, nheads, headdim_v), their last stride is 1.
    """
    batch, seqlen_q, nheads, headdim_v = out.shape
    padded_q = padded_queries(seqlen_q)
    padded, delta = torch.empty((2, batch, nheads, padded_q), dtype=torch.float32, device=out.device).unbind()
    launch(
        _delta,
        Blocks(64, 1, 4, 1),
        padded_q // 64 * batch * nheads,
        out,
        *(out, dout, lse, padded, delta, *out.stride()[:3], *dout.stride()[:3], seqlen_q, padded_q, nheads),
        HEADDIM_V=headdim_v,
        BLOCK_DV=head_dim_constants(out, out)["BLOCK_DV"],
    )
    return padded, delta


def empty_splits(x: Tensor, splits: int) -> Tensor:
    """Return a new fp32 tensor for `splits` parts of x: (batch, seqlen, nheads * splits, headdim)."""
    batch, seqlen, nheads, headdim = x.shape
    return torch.empty((batch, seqlen, nheads * splits, headdim), dtype=torch.float32, device=x.device)


def add_splits(parts: Tensor, result: Tensor, splits: int) -> None:
    """Write the sums of the parts, a tensor of `empty_splits`, to `result`; the order of additions is fixed."""
    launch(
        _sum_splits,
        Blocks(16, 1, 4, 1),
        triton.cdiv(result.numel() // result.shape[-1], 16),
        result,
        *(parts, result, result.numel() // result.shape[-1], splits),
        HEADDIM=result.shape[-1],
        BLOCK_D=triton.next_power_of_2(result.shape[-1]),
    )


def _gradient_of_sink(sink: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """Return the gradient of the sink (nheads,), from the log-sum-exp in base 2 and delta, (batch, nheads, queries)."""
    of_sink = torch.exp2(sink.float()[:, None] * LOG2_E - lse)  # probability of the sink in each row; 0 in the padding
    return (of_sink * delta).sum((0, 2)).neg().to(sink.dtype)


@triton.jit(do_not_specialize=["seqlen_q", "padded_q", "nheads"])
def _delta(
    Out, DOut, Lse, LsePadded, Delta,
    stride_ob, stride_om, stride_oh, stride_gb, stride_gm, stride_gh,
    seqlen_q, padded_q, nheads,
    HEADDIM_V: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # noqa: ARG001  `launch` passes both to every kernel
):  # fmt: skip
    """Write delta = rowsum(out * dout), (batch, nheads, padded_q), and a copy of the log-sum-exp of the same shape.

    The padding is 0 for delta and +inf for the log-sum-exp. Rows are independent, so packed sequences are treated as
    one.
    """
    blocks = padded_q // BLOCK_M
    pid = tl.program_id(0)
    start_m, bh = pid % blocks * BLOCK_M, (pid // blocks).to(tl.int64)
    b, h = bh // nheads, bh % nheads
    rows = tl.arange(0, BLOCK_M)
    limit, first = seqlen_q - start_m, start_m.to(tl.int64)
    out = load_rows(
        Out + b * stride_ob + h * stride_oh + first * stride_om, stride_om, rows, limit, HEADDIM_V, BLOCK_DV, True
    )
    dout = load_rows(
        DOut + b * stride_gb + h * stride_gh + first * stride_gm, stride_gm, rows, limit, HEADDIM_V, BLOCK_DV, True
    )
    at = bh * padded_q + start_m + rows
    tl.store(Delta + at, tl.sum(out.to(tl.float32) * dout, 1))
    lse = tl.load(Lse + bh * seqlen_q + start_m + rows, mask=rows < limit, other=float("inf"))
    tl.store(LsePadded + at, lse)


@triton.jit(do_not_specialize=["count", "splits"])
def _sum_splits(
    Parts, Result, count, splits,
    HEADDIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # noqa: ARG001  `launch` passes both to every kernel
):  # fmt: skip
    """Write the sums of (count, splits, HEADDIM) fp32 over `splits` to (count, HEADDIM), both contiguous."""
    start = tl.program_id(0) * BLOCK_M
    rows, limit, first = tl.arange(0, BLOCK_M), count - start, start.to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for split in range(splits):
        Part = Parts + (first * splits + split) * HEADDIM
        total += load_rows(Part, splits * HEADDIM, rows, limit, HEADDIM, BLOCK_D, True)
    store_rows(Result + first * HEADDIM, HEADDIM, rows, limit, total, HEADDIM, BLOCK_D)
