"""Bound the share by which long sums on tensor cores are too small in a right kernel.

A tensor core adds some products at a time to a sum in float32 (8 on an A100) and truncates it (Fasi et al., "Numerical
behavior of NVIDIA tensor cores", 2021): by half a unit in the last place on average, always towards zero. So a sum
becomes too small by a share that grows with its terms. Eager's errors do not include it. On an H200 with headdim 128,
for dv on an H100 too (tests/gpu/long_sums.py):

- dv of a million rows, bf16, causal, was too small by 0.42 % in SDPA's efficient kernel, by 0.21 % in cuDNN's and
  flash-attn 3, and by less than 0.05 % in flash-attn 2, which adds the largest terms last; of 262,144 rows by a fourth
  of that.
- out of a million keys, not causal, for v with a mean of 1, was too small by 0.59 % in SDPA's efficient kernel and by
  0.47 % (bf16) and 0.49 % (fp16) in its flash kernel, cuDNN's and, in bf16, flash-attn 3; of 262,144 keys by 0.12 to
  0.17 %.

FLOAT32_UNIT for each ADDED_AT_ONCE terms is allowed, 0.78 % for a million terms. It is more than all of these losses,
and more than half a unit of each partial sum explains, 0.28 % for a million terms of one sign. A sum that is smaller by
more, or by more than MOST_CUT_OFF, is wrong, whatever the cause. The figures end at a million terms; if losses grow at
the same rate, a right kernel exceeds MOST_CUT_OFF at 1.7 million.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core import masks
from attnbench.core.case import Case
from attnbench.judge.exact_attention import Reference, count_visible
from attnbench.judge.tolerance import FLOAT32_UNIT

if TYPE_CHECKING:
    from torch import Tensor

ADDED_AT_ONCE = 8  # products that a tensor core adds to a sum at a time
MOST_CUT_OFF = 0.01  # largest allowed share of a sum
MOST_OVER_MEAN = 1.5  # largest share of a row over the mean of its head, in which rows without a loss count too


def cut_off_by_term(case: Case) -> float:
    """Return the share by which each term may make a sum smaller: 0 in fp32, where kernels round each addition."""
    return 0.0 if case.dtype == "fp32" else FLOAT32_UNIT / ADDED_AT_ONCE


def most_cut_off(case: Case, terms: int, group: int = 1) -> float:
    """Return the share by which sums over `terms` queries or keys, in each head of a group, may be too small."""
    left, right = case.window_size[0], 0 if case.causal else case.window_size[1]
    adds = bool(case.mask) and masks.find(case.mask).adds
    if left is not None and right is not None and not adds:
        terms = min(terms, left + right + 1)
    return min(cut_off_by_term(case) * terms * group, MOST_CUT_OFF)


def with_out_cut_off(reference: Reference, out: Tensor) -> Reference:
    """Return the reference with the exact out of each row made smaller by the loss of a kernel's out.

    `out` is the kernel's, (batch, seqlen_q, nheads, headdim_v). Where v has a mean, all values of a row lose about the
    same share. The share that fits the row best is taken, but at most the allowed loss of sums over the keys that the
    row sees, and at most MOST_OVER_MEAN times the mean loss of the rows of its head, for the same number of keys.
    """
    import torch

    case, parts = reference.case, []
    for part in reference.parts:
        exact = part.exact["out"]
        found = part.select(case, "out", out).to(exact.dtype)
        tiny = torch.finfo(exact.dtype).tiny
        most = (cut_off_by_term(case) * count_visible(case, part.rows)).clamp(max=MOST_CUT_OFF).to(exact.dtype)
        lost = 1 - (found * exact).sum(-1) / exact.square().sum(-1).clamp(min=tiny)
        lost = lost.clamp(min=0.0).minimum(most)
        of_head = (lost * most).sum(1, keepdim=True) / most.square().sum(1, keepdim=True).clamp(min=tiny)
        lost = lost.minimum(MOST_OVER_MEAN * of_head * most)
        parts.append(replace(part, exact={**part.exact, "out": (1 - lost[..., None]) * exact}))
    return replace(reference, parts=tuple(parts))
