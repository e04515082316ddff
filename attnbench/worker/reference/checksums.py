"""Checksums of dk and dv: equations with the inputs that hold for any dout, at a cost linear in the sequence length.

Let P be the probabilities of a head and dS the scaled gradient of its scores. Then out = P v, dv = P' dout, dq = dS k
and dk = dS' q. Summed over the sequence on both sides, P and dS cancel:

    v' dv = out' dout        k' dk = dq' q

This holds for every head, with any mask and softcap; for a shared key head the sums run over its group of query heads.
The equations are checksums of all keys with headdim random weights each (Huang and Abraham, "Algorithm-based fault
tolerance for matrix operations", 1984). They tie dk and dv to out and dq, whose rows are compared one by one.

Errors e of dv that are independent of v, as roundings are, leave a difference v' e whose squares add up to the sum of
|v_j|^2 |e_j|^2. So with a relative error r in dv and in out the two sides differ by
r sqrt(sum |v|^2 |dv|^2 + sum |out|^2 |dout|^2). For r the check allows what the root mean square of a result may be:
twice eager's, plus one rounding. Errors in many keys exceed that; an error in one key of many does not.

Eager's errors are those of sums over the sampled rows; a kernel sums all. A tensor core adds some products at a time to
the sum in float32 (8 on an A100) and cuts off what does not fit (Fasi et al., "Numerical behavior of NVIDIA tensor
cores", 2021): half a unit in the last place on average, always towards zero. So a sum becomes too small by a share that
grows with the number of rows. In bf16, causal, on an H200 (tests/gpu/long_sums.py) dv of a million rows became too
small by 0.42 % in SDPA's efficient kernel, by 0.21 % in cuDNN's and flash-attn 3, and by less than 0.05 % in
flash-attn 2, which adds the largest terms last; of 262,144 rows by a fourth of that. `_cut_off` is allowed for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs
from attnbench.core.case import Case
from attnbench.core.record import TensorError
from attnbench.worker.reference.exact_attention import (
    CHUNK,
    Reference,
    long_product,
    reference_dtype,
)
from attnbench.worker.reference.precision import without_tf32
from attnbench.worker.reference.rounding import rms_of_one_rounding
from attnbench.worker.reference.tolerance import FLOAT32_UNIT, result_values, summation_error, worst

if TYPE_CHECKING:
    from torch import Tensor

ADDED_AT_ONCE = 8  # products that a tensor core adds to a sum


@without_tf32()
def compare_checksums(reference: Reference, inputs: Inputs, results: Mapping[str, Tensor]) -> dict[str, TensorError]:
    """Return for "dk" and "dv" the error of the head in which the two sides of the equation differ most.

    The errors are relative. `reference` gives eager's relative errors, from which the tolerance follows.
    """
    import torch

    case = reference.case
    assert inputs.dout is not None
    found = {}
    for name, keys, row_wise, rows in (("dv", inputs.v, "out", inputs.dout), ("dk", inputs.k, "dq", inputs.q)):
        eager_error = max(reference.relative_eager_error(name), reference.relative_eager_error(row_wise))
        rounding = max(rms_of_one_rounding(results[n].dtype) for n in (name, row_wise))
        tolerance = 2 * eager_error + rounding + summation_error(case) + _cut_off(case)
        by_key, by_row = result_values(name, results), result_values(row_wise, results)
        differ = [_difference(*heads) for heads in _by_heads(case, keys, by_key, by_row, rows)]
        found[name] = worst([TensorError(r, eager_error, tolerance, r) for r in torch.cat(differ).tolist()])
    return found


def _cut_off(case: Case) -> float:
    """Return the relative difference that is left where tensor cores make dk and dv too small, and out and dq not.

    Half a unit in the last place is at most FLOAT32_UNIT of a sum, on average 1 / (2 ln 2) of that. Only one side of
    the equation has it, which is 1 / sqrt(2) of the size of both: half of FLOAT32_UNIT for each addition.
    """
    s, (left, right) = case.shape, case.window_size
    right = 0 if case.causal else right
    rows = s.seqlen_q if left is None or right is None else min(s.seqlen_q, left + right + 1)
    return FLOAT32_UNIT / 2 * rows * (s.nheads // s.nheads_k) / ADDED_AT_ONCE


def _by_heads(case: Case, keys: Tensor, by_key: Tensor, by_row: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the four tensors of some key heads of one batch entry at a time, in the reference's dtype.

    `keys` and `by_key` (k and dk, or v and dv) as (heads, seqlen_k, d); `by_row` and `rows` (dq and q, or out and dout)
    as (heads, seqlen_q * group, d).
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


def _difference(keys: Tensor, by_key: Tensor, by_row: Tensor, rows: Tensor) -> Tensor:
    """Return for each head (heads,) the relative difference of the two sides, keys' by_key and by_row' rows.

    It is the norm of the difference over that which relative errors of 1 would leave.
    """
    import torch

    difference = (long_product(keys.mT, by_key) - long_product(by_row.mT, rows)).square().sum((1, 2)).sqrt()
    pairs = ((keys, by_key), (by_row, rows))
    size = sum((a.square().sum(2) * b.square().sum(2)).sum(1) for a, b in pairs)
    assert not isinstance(size, int)
    return difference / size.sqrt().clamp(min=torch.finfo(size.dtype).tiny)
