"""Products of dk and dv with the inputs that hold for any dout, at a cost linear in the sequence.

With P the probabilities of a head and dS the gradient of its scores, scaled: out = P v, dv = P' dout, dq = dS k and
dk = dS' q. So, sums over the sequence on both sides, P and dS drop out of

    v' dv = out' dout        k' dk = dq' q

for every head, whatever the mask and softcap (a shared key head's sums run over its group). These are checksums of all
keys with headdim random weights each (Huang and Abraham, "Algorithm-based fault tolerance for matrix operations",
1984), and tie dk and dv to out and dq, whose rows are compared one by one.

Errors e of dv that do not know of v, as roundings, leave v' e, whose squares add up to the sum of |v_j|^2 |e_j|^2. So
with a relative error r of dv and of out the sides differ by r sqrt(sum |v|^2 |dv|^2 + sum |out|^2 |dout|^2), and r is
allowed what the root mean square of a result is: twice eager's, plus one rounding. Errors of many keys stand out
against that, one key of many does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.core.record import TensorError
from attnbench.worker.reference.exact_attention import (
    CHUNK,
    Reference,
    long_product,
    reference_dtype,
    rms_of_one_rounding,
)
from attnbench.worker.reference.tolerance import summation_error, worst

if TYPE_CHECKING:
    from torch import Tensor


def compare_checksums(reference: Reference, inputs: Inputs, results: Mapping[str, Tensor]) -> dict[str, TensorError]:
    """{"dk", "dv"}: the head in which the sides differ most, relative; `reference` says how well eager knows them."""
    import torch

    case = reference.case
    assert inputs.dout is not None
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    found = {}
    for name, keys, row_wise, rows in (("dv", inputs.v, "out", inputs.dout), ("dk", inputs.k, "dq", inputs.q)):
        expected_results = max(reference.relative_eager_error(name), reference.relative_eager_error(row_wise))
        tolerance = 2 * expected_results + rms_of_one_rounding(torch_dtype(case)) + summation_error(case)
        differ = [_difference(*heads) for heads in _by_heads(case, keys, results[name], results[row_wise], rows)]
        found[name] = worst([TensorError(r, expected_results, tolerance, r) for r in torch.cat(differ).tolist()])
    torch.set_float32_matmul_precision(before)
    return found


def _by_heads(case: Case, keys: Tensor, by_key: Tensor, by_row: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some heads of one batch entry at a time: (heads, seqlen_k, d) twice, (heads, seqlen_q * group, d) twice."""
    s = case.shape
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
    """(heads,): the norm of keys' by_key - by_row' rows, over what errors as large as the results would leave."""
    difference = (long_product(keys.mT, by_key) - long_product(by_row.mT, rows)).square().sum((1, 2)).sqrt()
    pairs = ((keys, by_key), (by_row, rows))
    size = sum((a.square().sum(2) * b.square().sum(2)).sum(1) for a, b in pairs)
    assert not isinstance(size, int)
    return difference / size.sqrt().clamp(min=math.ulp(0.0))
