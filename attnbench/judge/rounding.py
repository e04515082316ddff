"""Estimate errors that a right fused kernel may have and eager attention has not, due to another order of computation.

Sums. A product of d terms x_i y_i is off by at most d u sum |x_i y_i| in any order of summation, u being the unit
roundoff (Higham, "Accuracy and stability of numerical algorithms", 2002, section 3.1). Each addition is off by a
rounding of its partial sum, and independent errors add up in squares (Higham and Mary, "A new approach to probabilistic
rounding error analysis", 2019). Where terms have random signs, or all but one, no partial sum exceeds
sqrt(sum (x_i y_i)^2) in root mean square, whatever the order. So the standard deviation is at most sqrt(d) roundings of
this value. The scores q k', dP = dout v' and D = dout out' have such errors in float32. A score is rounded some more
times, and its error is the relative error of its probability.

Scores. Eager computes the probabilities once and normalises them, so that the errors of a row of P add up to zero, and
so do the errors of a row of dS. A fused backward recomputes them, from scores summed in another order, and normalises
them by the log-sum-exp of its forward (Dao et al., "FlashAttention", 2022, appendix B). Then a row of P does not add up
to one, and a row of dS does not add up to zero. A forward may normalise in the same way: exp(score - log-sum-exp), over
all keys or over each part of them. With independent errors e_j of the scores in the forward and e'_j in the backward,
errors f_j of dP, and e = sum_j P_j e_j, in a row

    out    is off by   sum_j e_j P_j (v_j - out) + (rounding of the log-sum-exp) out
    D      is off by   sum_j e_j dS_j,                  dS_j = P_j (dP_j - D)
    P_j    is off by   (e'_j - e) P_j                   in the backward
    dq     is off by   sum_j (e'_j dS_j + f_j P_j) k_j - (error of D) sum_j P_j k_j - e dq

and dk and dv by sums of the same errors over rows. Where a column of k is the same in all keys, such as an outlier
channel, eager's errors cancel in this column of dq, but these errors do not. With 28 in the column and scores of 10 to
20, in fp32, torch's flash attention for CPUs was off in dq by up to 70 times as much as eager. Its own probabilities
give this error in float64 too; the probabilities of its forward in both passes give a tenth of it
(tests/worker/test_rounding.py).

Out and probabilities. D is also off because a forward rounds out, and the probabilities that multiply v, to the dtype:
by one rounding of each dout * out and P_j dP_j. It matters most for a query that sees one key. Without dropout its out
is v and is not rounded; with dropout it is v / (1 - p), while eager's dq is exactly zero.

The tolerance (tolerance.py) includes all these errors where scores are large, and only the rounding of out with dropout
on other data. Elsewhere eager's error has the same size, and nothing is added.

The maximum. A row of dS adds up to zero, so the gradient of the largest score of a row, which a softmax subtracts, is
zero too. A kernel that leaves its backward to autograd computes this gradient nevertheless, unless it detaches the
maximum. Then it is the error of the sum of the row, and autograd adds it to dS of the key with the largest score:

    dS_m   is off by   sum_j (r_j + s_j) P_j dP_j + sum_d t_d dout_d out_d

for the roundings r of P before it multiplies v, s of dP, and t of dout over the sum of the exponentials. In mean square
these are two more roundings of dS, which the tolerance allows to every kernel. But one key has the errors of all keys,
and they are not in proportion to its own probability: dS of this key, and its row of dk, may be off by several times as
much as eager's. With keys in blocks, the largest key of the first blocks has the errors of these blocks. In dq the
error shows in rows in which one key has nearly all the probability, where eager's dS is nearly zero. So the tolerance
of dq and dk has `maximum_variances`, on all data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.core.backend import torch_dtype
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LEAST_BLOCK = 16  # least number of keys in a kernel's block; larger blocks have a multiple
SCORE_ROUNDINGS, CAP_ROUNDINGS = 2, 3  # roundings of a summed score: to store and scale it; with a softcap


def rms_of_one_rounding(dtype: torch.dtype) -> float:
    """Return the root mean square of the relative error of one rounding to a dtype: at most eps / sqrt(12)."""
    import torch

    return torch.finfo(dtype).eps / math.sqrt(12)


def rms_of_subnormals(dtype: torch.dtype) -> float:
    """Return the root mean square of the error of one rounding of a subnormal number of a dtype."""
    import torch

    return rms_of_one_rounding(dtype) * torch.finfo(dtype).smallest_normal


@dataclass(frozen=True)
class Rows:
    """Exact attention of some query rows: inputs, intermediate values and results.

    q, out, dout and dq are (pairs, count, group, d), the others (pairs, count, group, seqlen_k). `weights` are the
    probabilities after dropout.
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
    case: Case, rows: Rows, k: Tensor, v: Tensor, *, scores_in: Sequence[torch.dtype | None], rows_only: bool
) -> list[dict[str, Tensor]]:
    """Return for each dtype of `scores_in` a dict: name of a result -> variance of each element from roundings in rows.

    k and v are (pairs, seqlen_k, d). Variances of "out" and "dq" are (pairs, count, group, d). Variances of "dk" and
    "dv", (pairs, seqlen_k, d), must be summed over all rows; they are left out with `rows_only`. Scores are summed in
    float32 and kept in the dtype; for None only the rounding of out counts. Only the first dtype has "dq": a kernel
    that keeps scores in the dtype of the case does so for its backward, where their errors cancel as in eager's.
    """
    import torch

    of_out = rms_of_one_rounding(torch_dtype(case)) ** 2
    of_p = of_float32 = 0.0
    if scores_in[0] is not None:
        of_p, of_float32 = of_out, rms_of_one_rounding(torch.float32) ** 2
    p, weights, backward = rows.p, rows.weights, rows.dout is not None
    p2, scores2, v2 = p.square(), rows.scores.square(), v.square()
    weights2 = p2 if weights is p else weights.square()
    capped = rows.scores / case.softcap if case.softcap else None
    slope = case.softmax_scale * (1 if capped is None else 1 - capped**2)
    slope2 = slope**2
    # Variances: of_scores of e_j; of_lse of the log-sum-exp; of_sum of both; of_d of D; of_dp of f_j in dS.
    of_products = _times(rows.q.square(), k.square().mT) * (slope2 * (of_float32 * case.shape.headdim))
    of_lse = of_float32 * SCORE_ROUNDINGS * (p * scores2).sum(-1, keepdim=True)
    if backward:
        assert rows.dout is not None
        assert rows.dp is not None
        pdp, of_sums = p * rows.dp, of_float32 * case.shape.headdim_v  # for dP and D, the products with dout
        ds2 = (pdp - p * pdp.sum(-1, keepdim=True)).square_()
        of_d_out = (of_out + of_sums) * (rows.dout * rows.out).square().sum(-1, keepdim=True)
        of_d_out += of_p * pdp.square_().sum(-1, keepdim=True)
        of_dp = _times(rows.dout.square(), v2.mT).mul_(weights2).mul_(slope2 * of_sums)
        slopes = slope2 if capped is None else slope2 + (2 * case.softmax_scale * capped / case.softcap) ** 2
    found = []
    for number, dtype in enumerate(scores_in):
        of_score = 0.0 if dtype is None else rms_of_one_rounding(dtype) ** 2
        of_score *= SCORE_ROUNDINGS + (CAP_ROUNDINGS if case.softcap else 0)
        of_scores = of_products.add(scores2, alpha=of_score)
        by_p = of_scores * p2
        of_sum = of_lse + by_p.sum(-1, keepdim=True)
        by_weights, by_both = (by_p, by_p) if weights is p else (of_scores * weights2, of_scores * weights * p)
        out = _times(by_weights, v2) - 2 * rows.out * _times(by_both, v) + rows.out.square() * of_sum
        found.append({"out": out})
        if not backward:
            continue
        assert rows.dout is not None
        assert rows.dq is not None
        of_ds = of_scores.mul_(ds2)
        of_d = of_d_out + of_ds.sum(-1, keepdim=True)
        of_ds.mul_(slopes).add_(of_dp)
        if number == 0:
            of_keys = of_d * _times(p * slope, k).square()
            found[-1]["dq"] = _times(of_ds, k.square()) + of_keys + of_sum * rows.dq.square()
        if not rows_only:
            of_ds += (of_sum * ds2).addcmul_(of_d, p2).mul_(slope2)
            found[-1]["dk"] = _summed(of_ds, rows.q.square())
            found[-1]["dv"] = _summed(by_weights.addcmul_(of_sum, weights2), rows.dout.square())
    return found


def maximum_variances(case: Case, rows: Rows, k: Tensor, *, rows_only: bool) -> dict[str, Tensor]:
    """Return result -> variance of each element from a gradient through the maxima of some rows.

    k is (pairs, seqlen_k, d). The variance of "dq" is (pairs, count, group, d). The variance of "dk", (pairs, seqlen_k,
    d), must be summed over all rows; it is left out with `rows_only`.
    """
    import torch
    from torch.nn.functional import pad

    assert rows.dout is not None
    assert rows.dp is not None
    dtype, keys = torch_dtype(case), rows.p.shape[-1]
    of_dout = (rows.dout * rows.out).square().sum(-1, keepdim=True)
    terms = (rows.p * rows.dp).square_().mul_(2).addcmul_(of_dout, rows.p)
    terms, p = (
        (pad(t, (0, -keys % LEAST_BLOCK)) if keys % LEAST_BLOCK else t).unflatten(-1, (-1, LEAST_BLOCK))
        for t in (terms, rows.p)
    )
    so_far, peaks = terms.sum(-1).cumsum(-1), p.amax(-1)
    largest, block = peaks.cummax(-1).values, peaks.argmax(-1, keepdim=True)
    of_block = p.gather(-2, block[..., None].expand(*block.shape, LEAST_BLOCK)).squeeze(-2)
    at = block * LEAST_BLOCK + of_block.argmax(-1, keepdim=True)
    highest = rows.scores.gather(-1, at)
    slope = case.softmax_scale * (1 - (highest / case.softcap) ** 2 if case.softcap else 1)
    so_far *= (rms_of_one_rounding(dtype) * slope) ** 2
    of_k = k.square().gather(1, at.flatten(1, 3)[..., None].expand(-1, -1, k.shape[-1]))
    found = {"dq": so_far[..., -1:] * of_k.unflatten(1, at.shape[1:3])}
    if rows_only:
        return found
    apart = (2 * torch.finfo(dtype).eps * highest.abs()).clamp(max=0.5)  # rounding may exchange two scores this close
    last = torch.searchsorted(largest, largest * (1 + apart), right=True) - 1  # block in which it may be the largest
    of_sum = torch.where(p >= (largest * (1 - apart))[..., None], so_far.gather(-1, last)[..., None], 0.0)
    found["dk"] = _summed(of_sum.flatten(-2)[..., :keys], rows.q.square())
    return found


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return (pairs, count, group, x) times (pairs, x, y)."""
    product: Tensor = (a.flatten(1, 2) @ b).unflatten(1, a.shape[1:3])
    return product


def _summed(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of (pairs, count, group, keys) times (pairs, count, group, x) over count and group."""
    return a.flatten(1, 2).mT @ b.flatten(1, 2)
