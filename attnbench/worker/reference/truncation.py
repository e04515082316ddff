"""Says by how much long sums on tensor cores are too small in a right kernel.

A tensor core adds some products at a time to a sum in float32 (8 on an A100) and cuts off what does not fit (Fasi et
al., "Numerical behavior of NVIDIA tensor cores", 2021): half a unit in the last place on average, always towards zero.
So a sum becomes too small by a share that grows with its terms. Eager's errors do not show it. Measured on an H200 with
headdim 128, dv on an H100 too (tests/gpu/long_sums.py):

- dv of a million rows, bf16, causal, was too small by 0.42 % in SDPA's efficient kernel, by 0.21 % in cuDNN's and
  flash-attn 3, and by less than 0.05 % in flash-attn 2, which adds the largest terms last; of 262,144 rows by a fourth
  of that.
- out of a million keys, not causal, for v with a mean of 1, was too small by 0.59 % in SDPA's efficient kernel and by
  0.47 % (bf16) and 0.49 % (fp16) in its flash kernel, cuDNN's and, in bf16, flash-attn 3; of 262,144 keys by 0.12 to
  0.17 %.

FLOAT32_UNIT for each ADDED_AT_ONCE terms, 0.78 % of a million, is more than all of these. What is smaller by more than
that, or by more than MOST_CUT_OFF, is wrong, whatever the cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core.case import Case
from attnbench.worker.reference.exact_attention import Reference, most_visible_keys
from attnbench.worker.reference.tolerance import FLOAT32_UNIT

if TYPE_CHECKING:
    from torch import Tensor

ADDED_AT_ONCE = 8  # products that a tensor core adds to a sum
MOST_CUT_OFF = 0.01  # of a sum


def cut_off_by_term(case: Case) -> float:
    """Return by which share a sum may become smaller with each term: 0 in fp32, where kernels round each addition."""
    return 0.0 if case.dtype == "fp32" else FLOAT32_UNIT / ADDED_AT_ONCE


def most_cut_off(case: Case, terms: int, group: int = 1) -> float:
    """Return by which share sums over so many queries or keys, in each head of a group, may be too small."""
    left, right = case.window_size[0], 0 if case.causal else case.window_size[1]
    if left is not None and right is not None and not case.mask:  # a mask may add to the window
        terms = min(terms, left + right + 1)
    return min(cut_off_by_term(case) * terms * group, MOST_CUT_OFF)


def with_out_cut_off(reference: Reference, out: Tensor) -> Reference:
    """Return the reference with the exact out of each row made smaller as that of a kernel is.

    `out` is the kernel's, (batch, seqlen_q, nheads, headdim_v). The factor of a row fits its values best, and is not
    less than what the sums over its keys may lose. Where v has a mean, all values of a row lose about the same share.
    """
    import torch

    case, parts = reference.case, []
    for part in reference.parts:
        exact = part.exact["out"]
        found = part.select(case, "out", out).to(exact.dtype)
        tiny = torch.finfo(exact.dtype).tiny
        factor = (found * exact).sum(-1, keepdim=True) / exact.square().sum(-1, keepdim=True).clamp(min=tiny)
        most = (cut_off_by_term(case) * most_visible_keys(case, part.rows)).clamp(max=MOST_CUT_OFF)
        factor = factor.clamp(max=1.0).maximum(1 - most[..., None].to(exact.dtype))
        parts.append(replace(part, exact={**part.exact, "out": factor * exact}))
    return replace(reference, parts=tuple(parts))
