"""Estimates how far right fused kernels may be off where eager attention, by its order of computation, is not.

Scores. A dot product of headdim terms is off by at most headdim * u * sum |q_d k_d| in any order of summation, u being
half a unit in the last place of float32 (Higham, "Accuracy and stability of numerical algorithms", 2002, section 3.1).
In one order, the error of each addition is some u times the partial sum, and independent errors add up in squares
(Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019). Terms of random signs have partial
sums of sqrt(sum (q_d k_d)^2) at most, in root mean square, whatever their order. So the standard deviation of a score
is at most sqrt(headdim) * sqrt(sum (q_d k_d)^2) roundings; and a few roundings of the score itself, where it is scaled,
capped, and subtracted from the largest. It is the relative error of a probability.

Eager computes the probabilities once, and normalises those: the errors of a row add up to zero in out, and again in dS.
A fused backward computes them anew, from scores summed in another order, and normalises them by the log-sum-exp of
the forward (Dao et al., "FlashAttention", 2022, appendix B.4). The row of P does not add up to one then, nor that of dS
to zero. In a row, with independent errors e_j in the forward and e'_j in the backward, and D = sum_j P_j dP_j,

    out is off by                     sum_j e_j P_j (v_j - out)
    D, computed as dout out', by      sum_j e_j P_j (dP_j - D)
    P_j in the backward by            P_j (e'_j - e),    e = sum_j e_j P_j
    dq by                             sum_j e'_j dS_j k_j - (error of D) sum_j P_j k_j - e dq

and dk and dv by sums of the same over the rows. Where a column of k is the same in all keys, as an outlier channel is,
eager's error of dq cancels in it, since sum_j dS_j = 0, but neither of the first two terms does: with k = 28 and scores
of 10 to 20, torch's flash attention for CPUs is ten times as far off as eager in fp32
(tests/worker/test_rounding.py).

Out. D is also off since the forward rounds out, by one rounding of |dout * out|, and since it rounds the probabilities
that multiply v, by one rounding of each P_j dP_j. It is largest for a query that sees one key. Without dropout out is v
itself there and is not rounded; with dropout it is v / (1 - p), while eager's dq is exactly zero.

The tolerance (tolerance.py) adds what follows: for large scores all of it, with dropout on other data the rounding of
out alone. Where scores are of a few units and nothing is dropped, eager's own error has the same size, and nothing is
added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.core.backend import torch_dtype
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCORE_ROUNDINGS = 4  # of a score once it is summed: scaled (twice), capped, subtracted


def rms_of_one_rounding(dtype: torch.dtype) -> float:
    """Return the root mean square of the relative error of one rounding to a dtype: at most eps / sqrt(12)."""
    import torch

    return torch.finfo(dtype).eps / math.sqrt(12)


@dataclass(frozen=True)
class Rows:
    """Exact attention of some query rows: what they read, and what was computed on the way.

    With tokens first and the group of a key head second: q, out, dout, dq (pairs, count, group, d); the others (pairs,
    count, group, seqlen_k), of which `weights` are the probabilities after dropout.
    """

    q: Tensor
    scores: Tensor
    p: Tensor
    weights: Tensor
    out: Tensor
    dout: Tensor | None = None
    dp: Tensor | None = None
    dq: Tensor | None = None


def rounding_variances(
    case: Case, rows: Rows, k: Tensor, v: Tensor, *, large_scores: bool, rows_only: bool
) -> dict[str, Tensor]:
    """Return by result the variance of each element, from the roundings of some rows.

    Those of "out" and "dq" are (pairs, count, group, d). Those of "dk" and "dv", (pairs, seqlen_k, d), are left out with
    `rows_only`; they are to be added up over all rows. k and v are (pairs, seqlen_k, d). Without `large_scores` only the
    rounding of out counts.
    """
    import torch

    of_out = rms_of_one_rounding(torch_dtype(case)) ** 2
    of_p, of_float32 = (of_out, rms_of_one_rounding(torch.float32) ** 2) if large_scores else (0.0, 0.0)
    p, weights = rows.p, rows.weights
    capped = rows.scores / case.softcap if case.softcap else None
    slope = case.softmax_scale * (1 if capped is None else 1 - capped**2)
    # Of scores, that is relative ones of probabilities; and for each row that of its log-sum-exp
    of_scores = _times(rows.q.square(), k.square().mT) * slope**2
    of_scores = of_float32 * (case.shape.headdim * of_scores + SCORE_ROUNDINGS * rows.scores.square())
    of_sum = of_float32 * SCORE_ROUNDINGS * (p * rows.scores.square()).sum(-1, keepdim=True)
    of_sum += (of_scores * p.square()).sum(-1, keepdim=True)
    found = {
        "out": _times(of_scores * weights.square(), v.square())
        - 2 * rows.out * _times(of_scores * weights * p, v)
        + rows.out.square() * (of_scores * p.square()).sum(-1, keepdim=True)
    }
    if rows.dout is None or rows.dp is None or rows.dq is None:
        return found
    pdp = p * rows.dp
    ds = pdp - p * pdp.sum(-1, keepdim=True)
    of_sums = of_float32 * case.shape.headdim_v  # of dP and D, products with dout
    of_d = (of_out + of_sums) * (rows.dout * rows.out).square().sum(-1, keepdim=True)
    of_d += (of_scores * ds.square() + of_p * pdp.square()).sum(-1, keepdim=True)
    of_dp = of_sums * _times(rows.dout.square(), v.square().mT)
    slopes = slope**2 if capped is None else slope**2 + (2 * case.softmax_scale * capped / case.softcap) ** 2
    of_ds = of_scores * ds.square() * slopes + of_dp * (weights * slope).square()
    found["dq"] = _times(of_ds, k.square()) + of_d * _times(p * slope, k).square() + of_sum * rows.dq.square()
    if not rows_only:
        of_ds += of_sum * (ds * slope).square() + of_d * (p * slope).square()
        found["dk"] = _summed(of_ds, rows.q.square())
        found["dv"] = _summed((of_scores + of_sum) * weights.square(), rows.dout.square())
    return found


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return (pairs, count, group, x) times (pairs, x, y)."""
    product: Tensor = (a.flatten(1, 2) @ b).unflatten(1, a.shape[1:3])
    return product


def _summed(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of (pairs, count, group, keys) times (pairs, count, group, x) over count and group."""
    return a.flatten(1, 2).mT @ b.flatten(1, 2)
