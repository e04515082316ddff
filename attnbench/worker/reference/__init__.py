"""The high-precision answer for a case, and the tests that a kernel's results pass.

Attention is recomputed exactly: in float64 (on a GPU float32 without TF32 where the case is bf16 or fp16), on a sample
of query rows of every head (`sample`). out and dq of a row depend on that row alone. dk and dv sum over all rows, so
for the check the rows outside the sample get dout = 0 (`check_inputs`): dk and dv are then exact for every key, at the
cost of the sample. For the dout that is timed they must satisfy products that hold exactly (`checksums`). Every element
of every result must be finite.

The criterion (`compare`) is flash-attention's (tests/test_flash_attn.py): the largest error is at most twice that of
eager attention in the case's dtype, plus a floor; and the same of the root mean square.
After timing all of it is checked once more, on inputs written anew in place (`renewal`). `check` has the order.
With dropout the mask is read off the launch, and the rest is the same (`dropout`, `dropout_check`).
"""

from attnbench.core.backend import Inputs
from attnbench.core.case import Case
from attnbench.worker.reference.checksums import compare_checksums
from attnbench.worker.reference.dropout_check import DropoutResultCheck
from attnbench.worker.reference.exact_attention import Reference, compute_reference, visible_keys, warm_up
from attnbench.worker.reference.renewed_inputs import InputRenewal
from attnbench.worker.reference.result_check import ResultCheck
from attnbench.worker.reference.row_sample import SCORE_BUDGET, RowSample, check_inputs, choose_rows
from attnbench.worker.reference.tolerance import compare, expected_results


def make_check(case: Case, given: Inputs, seed: int) -> ResultCheck:
    """The comparisons that a cell goes through."""
    return DropoutResultCheck(case, given, seed) if case.dropout_p else ResultCheck(case, given, seed)


__all__ = [
    "SCORE_BUDGET",
    "DropoutResultCheck",
    "InputRenewal",
    "Reference",
    "ResultCheck",
    "RowSample",
    "check_inputs",
    "choose_rows",
    "compare",
    "compare_checksums",
    "compute_reference",
    "expected_results",
    "make_check",
    "visible_keys",
    "warm_up",
]
