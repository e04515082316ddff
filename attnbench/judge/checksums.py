"""Checksums of dk and dv: equations with the inputs that hold for any dout, at a cost linear in the sequence length.

Let P be the probabilities of a head and dS the scaled gradient of its scores. Then out = P v, dv = P' dout, dq = dS k
and dk = dS' q. Summed over the sequence on both sides, P and dS cancel:

    v' dv = out' dout        k' dk = dq' q

This holds for every head, with any mask and softcap; for a shared key head the sums run over its group of query heads.
The equations are checksums of all keys with headdim random weights each (Huang and Abraham, "Algorithm-based fault
tolerance for matrix operations", 1984). They tie dk and dv to out and dq, whose rows are compared one by one.

Errors e of dv that are independent of v, as roundings are, leave a difference v' e whose squares add up to the sum of
|v_j|^2 |e_j|^2. So with a relative error r in dv and in out the two sides differ by
r sqrt(sum |v|^2 |dv|^2 + sum |out|^2 |dout|^2). The check allows r to be the bound on the root mean square of a result:
twice eager's, plus one rounding. Errors in many keys exceed it; an error in one key of many does not.

Eager's errors come from the sampled rows, in sums of few terms. They do not include two errors of a right kernel:

- Sums of many terms become too small on tensor cores (truncation.py): dv of a million rows by up to 0.42 %. One side of
  the equation may be smaller than the other by the share that truncation explains, and no more.
- In fp16 the probabilities of a long sequence are subnormal: P and dS are rounded to multiples of 2^-24, but with a
  million keys they are about 10^-6. Such errors, of all pairs of a row and a key, are added to the tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.core.record import TensorError
from attnbench.judge.exact_attention import (
    CHUNK,
    Reference,
    long_product,
    reference_dtype,
)
from attnbench.judge.plain_torch import plain_torch
from attnbench.judge.rounding import rms_of_one_rounding, rms_of_subnormals
from attnbench.judge.tolerance import result_values, summation_error, worst
from attnbench.judge.truncation import most_cut_off

if TYPE_CHECKING:
    from torch import Tensor


@plain_torch()
def compare_checksums(reference: Reference, inputs: Inputs, results: Mapping[str, Tensor]) -> dict[str, TensorError]:
    """Return for "dk" and "dv" the relative error of the head in which the two sides of the equation differ most.

    The tolerance follows from eager's relative errors in `reference`.
    """
    case, s = reference.case, reference.case.shape
    assert inputs.dout is not None
    least, most = 1 - most_cut_off(case, s.seqlen_q, s.nheads // s.nheads_k), 1 + most_cut_off(case, s.seqlen_k)
    found = {}
    for name, keys, row_wise, rows in (("dv", inputs.v, "out", inputs.dout), ("dk", inputs.k, "dq", inputs.q)):
        eager_error = max(reference.relative_eager_error(name), reference.relative_eager_error(row_wise))
        rounding = max(rms_of_one_rounding(results[n].dtype) for n in (name, row_wise))
        tolerance = 2 * eager_error + rounding + summation_error(case)
        of_subnormals = rms_of_subnormals(torch_dtype(case)) * (1.0 if name == "dv" else case.softmax_scale)
        by_key, by_row = result_values(name, results), result_values(row_wise, results)
        errors = []
        for heads in _by_heads(case, keys, by_key, by_row, rows):
            for error, subnormal in zip(*_difference(*heads, least=least, most=most), strict=True):
                errors.append(TensorError(error, eager_error, tolerance + of_subnormals * subnormal, error))
        found[name] = worst(errors)
    return found


def _by_heads(case: Case, keys: Tensor, by_key: Tensor, by_row: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the four tensors for some key heads of one batch entry at a time, in the reference's dtype.

    `keys` and `by_key` (k and dk, or v and dv) become (heads, seqlen_k, d); `by_row` and `rows` (dq and q, or out and
    dout) become (heads, seqlen_q * group, d).
    """
    s = case.extent
    group = s.nheads // s.nheads_k
    step = max(1, CHUNK // (max(s.seqlen_k, s.seqlen_q * group) * max(s.headdim, s.headdim_v)))
    precise = reference_dtype(case, keys.device)
    for b in range(s.batch):
        for start in range(0, s.nheads_k, step):
            of_keys, of_rows = slice(start, start + step), slice(start * group, (start + step) * group)
            for_keys = (t[b, :, of_keys].to(precise).transpose(0, 1) for t in (keys, by_key))
            for_rows = (t[b, :, of_rows].to(precise).unflatten(1, (-1, group)) for t in (by_row, rows))
            yield (*for_keys, *(t.transpose(0, 1).flatten(1, 2) for t in for_rows))


def _difference(
    keys: Tensor, by_key: Tensor, by_row: Tensor, rows: Tensor, *, least: float, most: float
) -> tuple[list[float], list[float]]:
    """Return two lists by head for the two sides keys' by_key and by_row' rows.

    The first list has the norm of the difference of the sides, in units of the norm that relative errors of 1 would
    give. The first side may be the second times a factor from `least` to `most`. The second list has the difference
    that errors of 1 in every probability would give, in the same units.
    """
    import torch

    first, second = long_product(keys.mT, by_key), long_product(by_row.mT, rows)
    tiny = torch.finfo(second.dtype).tiny
    factor = (first * second).sum((1, 2)) / second.square().sum((1, 2)).clamp(min=tiny)
    difference = (first - factor.clamp(least, most)[:, None, None] * second).square().sum((1, 2)).sqrt()
    norms = [t.square().sum(2) for t in (keys, by_key, by_row, rows)]
    size = ((norms[0] * norms[1]).sum(1) + (norms[2] * norms[3]).sum(1)).sqrt().clamp(min=tiny)
    subnormal = (norms[0].sum(1) * norms[3].sum(1)).sqrt()
    return (difference / size).tolist(), (subnormal / size).tolist()
