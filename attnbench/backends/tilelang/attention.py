"""Attention in TileLang, forward only: the kernel, the tiles of which the fastest is taken, and the call.

The algorithm is FlashAttention's: a block of threads owns a tile of queries, and an online softmax goes over tiles of
keys. TileLang reads the annotations of the kernel as values, so this file has no `from __future__ import annotations`.
"""

# mypy: ignore-errors

import os

import tilelang
import tilelang.language as T  # noqa: N812  # its documented name
from tilelang.profiler import do_bench
from torch import Tensor

LOG2_E = 1.4426950408889634  # exponentials are of base 2
LOWEST = -1e30  # the maximum of no scores, finite so that a difference of two is no NaN
# queries, keys, stages of the pipeline that loads keys and values
TILES = ((128, 128, 2), (128, 128, 1), (128, 64, 2), (64, 128, 2), (64, 64, 2))
_kernels = {}  # the fastest kernel of each shape


@tilelang.jit(out_idx=[3], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def forward(shape_q, shape_k, dtype, causal, scale, rows, keys, stages):
    """Return the kernel for one shape of q, (batch, seqlen, nheads, headdim), and one of k and v."""
    (batch, seqlen_q, nheads, headdim), (_, seqlen_k, nheads_k, _) = shape_q, shape_k
    group, ahead = nheads // nheads_k, seqlen_k - seqlen_q  # query i sees the keys up to i + ahead

    @T.prim_func
    def tilelang_attention(
        q: T.Tensor(shape_q, dtype),
        k: T.Tensor(shape_k, dtype),
        v: T.Tensor(shape_k, dtype),
        out: T.Tensor(shape_q, dtype),
    ):
        with T.Kernel(T.ceildiv(seqlen_q, rows), nheads, batch, threads=2 * rows) as (tile, head, b):
            q_tile = T.alloc_shared((rows, headdim), dtype)
            k_tile = T.alloc_shared((keys, headdim), dtype)
            v_tile = T.alloc_shared((keys, headdim), dtype)
            out_tile = T.alloc_shared((rows, headdim), dtype)
            scores = T.alloc_fragment((rows, keys), "float32")
            weights = T.alloc_fragment((rows, keys), dtype)
            acc = T.alloc_fragment((rows, headdim), "float32")
            highest = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            sums = T.alloc_fragment((rows,), "float32")

            T.copy(q[b, tile * rows : (tile + 1) * rows, head, :], q_tile)
            T.fill(acc, 0)
            T.fill(total, 0)
            T.fill(highest, LOWEST)
            seen = T.max(1, T.min(seqlen_k, (tile + 1) * rows + ahead)) if causal else seqlen_k
            for n in T.Pipelined(T.ceildiv(seen, keys), num_stages=stages):
                T.copy(k[b, n * keys : (n + 1) * keys, head // group, :], k_tile)
                for i, j in T.Parallel(rows, keys):
                    last = tile * rows + i + ahead if causal else seqlen_k - 1
                    scores[i, j] = T.if_then_else(n * keys + j <= last, 0, -T.infinity("float32"))
                T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(highest, before)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i, j in T.Parallel(rows, keys):
                    scores[i, j] = T.exp2(scores[i, j] * scale - highest[i] * scale)
                T.reduce_sum(scores, sums, dim=1)
                for i in T.Parallel(rows):
                    before[i] = T.exp2(before[i] * scale - highest[i] * scale)
                    total[i] = total[i] * before[i] + sums[i]
                for i, j in T.Parallel(rows, headdim):
                    acc[i, j] *= before[i]
                T.copy(scores, weights)
                T.copy(v[b, n * keys : (n + 1) * keys, head // group, :], v_tile)
                T.gemm(weights, v_tile, acc, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(rows, headdim):
                acc[i, j] = T.if_then_else(total[i] > 0, acc[i, j] / total[i], 0)
            T.copy(acc, out_tile)
            T.copy(out_tile, out[b, tile * rows : (tile + 1) * rows, head, :])

    return tilelang_attention


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    """Return attention of contiguous (batch, seqlen, nheads, headdim) tensors in fp16 or bf16.

    k and v may have fewer heads. The causal mask is aligned bottom-right; a query that sees no key has output 0. The
    default of `softmax_scale` is 1 / sqrt(headdim). The first call for a shape compiles and times all TILES, or with
    ATTNBENCH_TUNE=0 compiles the first.
    """
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    key = tuple(q.shape), tuple(k.shape), str(q.dtype).removeprefix("torch."), causal, scale * LOG2_E
    if key not in _kernels:
        _kernels[key] = _fastest(key, (q, k, v))
    return _kernels[key](q, k, v)


def _fastest(key: tuple, tensors: tuple[Tensor, ...]):
    if os.environ.get("ATTNBENCH_TUNE", "1") == "0":
        return forward(*key, *TILES[0])
    made = forward.par_compile([(*key, *tiles) for tiles in TILES], ignore_error=True)
    kernels = [kernel for kernel in made if kernel is not None] or [forward(*key, *TILES[0])]  # raises the error
    return min(kernels, key=lambda kernel: do_bench(lambda: kernel(*tensors), warmup=5, rep=20))
