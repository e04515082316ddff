"""Check a kernel's results: the exact reference of a case, the tolerance, and the order of the comparisons.

The reference (exact_attention.py) is attention recomputed in float64, or on a GPU in float32 without TF32 where the
case is bf16, fp16 or fp8, for all query rows or for a sample of them (row_sample.py). A row of out or dq depends on
that query row alone. dk and dv are sums over all query rows. So for the check the rows outside the sample get
dout = 0 (`check_inputs`): dk and dv are then exact for every key, at the cost of the sample. For the full dout that is
timed, dk and dv must satisfy equations that hold exactly (checksums.py). Every element of every result must be finite.

The tolerance (tolerance.py) is flash-attention's (tests/test_flash_attn.py): the largest error may be twice the error
of eager attention in the case's dtype, plus a floor. The root mean square may be 1.22 times eager's, plus an allowance
for chance. For large scores rounding.py estimates the additional errors of a right fused kernel.

The first launch has hard inputs, on which some kernels fail that are right on standard normal ones (hard_inputs.py).
result_check.py has the order of the other comparisons: before timing, and again after timing on inputs that were
changed in place (renewed_inputs.py). Where rows are sampled, screen.py searches all rows for wrong ones. With dropout,
dropout_mask.py reads the dropped probabilities from launches, and dropout_check.py makes the same comparisons with this
mask. An approximate backend is compared with its own definition (approximate_check.py). Delta rules and
indexers have checks of their own (delta_check.py, indexer_check.py).
"""

from typing import cast

from attnbench.core.backend import ApproximateBackend, Backend, Inputs
from attnbench.core.case import Case
from attnbench.judge.approximate_check import ApproximateResultCheck
from attnbench.judge.checksums import compare_checksums
from attnbench.judge.delta_check import DeltaResultCheck
from attnbench.judge.dialog import LaunchesOfWorker
from attnbench.judge.dropout_check import DropoutResultCheck
from attnbench.judge.exact_attention import (
    Reference,
    compute_reference,
    count_pairs,
    visible_keys,
    warm_up,
)
from attnbench.judge.hard_inputs import HardInputsCheck, make_hard
from attnbench.judge.indexer_check import IndexerResultCheck
from attnbench.judge.result_check import ResultCheck
from attnbench.judge.row_sample import SCORE_BUDGET, RowSample, check_inputs, choose_rows
from attnbench.judge.screen import find_wrong_rows
from attnbench.judge.tolerance import compare, expected_results, in_parts


def make_check(
    case: Case, given: Inputs, seed: int, backend: Backend | None = None, launches: LaunchesOfWorker | None = None
) -> ResultCheck:
    """Return the check of one cell. It computes the reference, so make it before the first launch.

    With `launches`, a check with dropout launches the kernel in another process.
    """
    if backend is not None and not getattr(backend, "exact", True):
        return ApproximateResultCheck(case, given, cast("ApproximateBackend", backend))
    if case.is_delta:
        return DeltaResultCheck(case, given, seed)
    if case.is_indexer:
        return IndexerResultCheck(case, given, seed)
    return DropoutResultCheck(case, given, seed, launches) if case.dropout_p else ResultCheck(case, given, seed)


__all__ = [
    "SCORE_BUDGET",
    "ApproximateResultCheck",
    "DropoutResultCheck",
    "HardInputsCheck",
    "Reference",
    "ResultCheck",
    "RowSample",
    "check_inputs",
    "choose_rows",
    "compare",
    "compare_checksums",
    "compute_reference",
    "count_pairs",
    "expected_results",
    "find_wrong_rows",
    "in_parts",
    "make_check",
    "make_hard",
    "visible_keys",
    "warm_up",
]
