"""ALiBi as a `score_mod` of flash-attn 4, in CuTe DSL: it is compiled into the kernels, forward and backward.

As score_mod_alibi of flash-attention's tests/cute/score_mod_definitions.py, with slopes that are given, and the place
of a query counted from the end of its sequence. The arguments have the names by which the library passes them.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def score_mods() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `score_mod` and `score_mod_bwd`, which want the slopes, (nheads,) in float32, as `aux_tensors`."""
    import cutlass
    from cutlass import cute
    from cutlass._mlir.dialects import math as mlir_math

    @cute.jit
    def subtract_alibi(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # noqa: ARG001
        """Return a scaled score less slope * distance. With aux_tensors a call has one score, and so one head."""
        slope = cute.make_rmem_tensor(1, cutlass.Float32)
        slope[0] = aux_tensors[0][h_idx[0]]
        shift = cute.full_like(q_idx, seqlen_info.seqlen_k - seqlen_info.seqlen_q)
        behind = q_idx + shift - kv_idx
        distance = cute.TensorSSA(mlir_math.absi(behind), behind.shape, behind.dtype)
        return score - slope.load() * distance.to(cutlass.Float32)

    @cute.jit
    def same_gradient(grad, score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # noqa: ARG001
        return grad

    return subtract_alibi, same_gradient
