"""The check of one cell's results: all comparisons, in the order of a run or a profile.

1. `check_first`: the first and the second launch, on inputs whose dout is masked outside the sampled rows
2. `check_renewed`: a launch after timing, on inputs changed in place, on other rows
3. `check_restored`: a launch on the original inputs again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, Approximation
from attnbench.core.renewed_inputs import Renewal
from attnbench.judge.checksums import compare_checksums
from attnbench.judge.exact_attention import ROW_RESULTS, Reference, compute_reference
from attnbench.judge.row_sample import FULL_FLOPS, RowSample, check_inputs, choose_rows, draw_seed
from attnbench.judge.tolerance import compare

if TYPE_CHECKING:
    from torch import Tensor

LEAN_SHARE = 0.125  # share of SCORE_BUDGET (row_sample.py) for a lean check, which keeps dk and dv on the host
SECOND_SHARE = 0.25  # share of SCORE_BUDGET for the rows that are recomputed after timing
# Least share of the error of 8-bit rounding that shows operands in fp8. With all operands and results in 16 bits the
# share is a twentieth; with one operand of three in e4m3 a half; with a result in 8 bits a half or more.
MIN_FP8_ERROR = 0.25


class ResultCheck:
    """The reference of one case and the comparisons with it.

    The first launches must read `inputs`, with a masked dout where rows are sampled. Make the check before the first
    launch, so that a launch that writes to its inputs is found wrong.
    """

    notes: tuple[str, ...] = ()  # deviations from the usual check, one sentence each
    hard = True  # whether the first launch is to be checked on hard inputs
    is_screened = True  # whether screen.py may search for wrong rows
    _renewed: tuple[Renewal, RowSample, Reference] | None = None
    approximation: Approximation | None = None  # of an approximate backend; set once its results were found right

    def __init__(self, case: Case, given: Inputs, seed: int, *, lean: bool = False) -> None:
        """Compute the reference. A lean check takes less memory: it has fewer rows and masks the given dout itself."""
        self.case = case
        self.seed = seed
        kind = given.q.device.type
        share = LEAN_SHARE if lean and kind == "cuda" else 1.0
        sample = choose_rows(case, given.q.device, draw_seed(), share, full_flops=FULL_FLOPS[kind])
        self.inputs = check_inputs(case, given, sample, in_place=lean)
        self.dout_masked = self.inputs is not given
        self._reference = self._compute(self.inputs, sample)

    def _compute(self, given: Inputs, sample: RowSample, *, rows_only: bool = False) -> Reference:
        return compute_reference(self.case, given, sample, rows_only=rows_only)

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        """Return the launch for results that will be checked; with dropout it restores torch's random numbers first."""
        return prepared.launch

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on `self.inputs`."""
        return compare(self._reference, results)

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        """Return the evidence that the launch of an fp8 cell does not compute in fp8, in one line; None without any."""
        return copies_problem(self.case, prepared) or self.operands_problem(accuracy)

    def operands_problem(self, accuracy: Accuracy) -> str | None:
        """Return the evidence that operands of an fp8 cell were not in fp8, in one line; None without any.

        With operands in fp8 the results have an error that no choice of scales avoids. A result in 8 bits gives no such
        evidence, because its own rounding error is as large: there the names of kernels must show the operands
        (backends/cudnn/fp8.py).
        """
        for name, error in accuracy.errors.items() if self.case.dtype == "fp8" else ():
            unavoidable = self._reference.relative_eager_error(name)
            if error.relative < MIN_FP8_ERROR * unavoidable:
                expected = f"where operands in fp8 cost {unavoidable:.2%}"
                return f"{name} is off by {error.relative:.2%} only, {expected}: it computed with other operands"
        return None

    def move_reference(self, device: str) -> None:
        """Move the reference to the memory of a device. Comparisons need it on the device of the results."""
        self._reference = moved(self._reference, device)

    def drop_masked_dout(self) -> None:
        """Expect the given inputs with the full dout from now on, and free the masked dout, dk and dv."""
        if self.dout_masked:
            self.forget_dk_dv()
            del self.inputs

    def forget_dk_dv(self) -> None:
        """Free the memory of dk and dv if they are of a masked dout."""
        if self.dout_masked:
            self._reference = self._reference.without_dk_dv()

    def check_renewed(self, renewal: Renewal, fresh: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on the inputs of a renewal, and keep the reference for the same renewal."""
        sample, reference = self.prepare_renewed(renewal, fresh)
        if sample.whole or not self.case.has_backward:
            return compare(reference, results)
        by_row = compare(reference, results, ROW_RESULTS)
        return replace(by_row, errors={**by_row.errors, **compare_checksums(self._reference, fresh, results)})

    def prepare_renewed(self, renewal: Renewal, fresh: Inputs) -> tuple[RowSample, Reference]:
        """Return the rows to compare on the inputs of a renewal, and their reference."""
        if self._renewed is None or self._renewed[0] != renewal:
            sample = choose_rows(self.case, fresh.q.device, draw_seed(), share=SECOND_SHARE)
            self._renewed = renewal, sample, self._compute(fresh, sample, rows_only=not sample.whole)
        return self._renewed[1:]

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on the given inputs, which were restored after a renewal."""
        names = ROW_RESULTS if self.dout_masked else None
        return compare(self._reference, results, names)


def copies_problem(case: Case, prepared: Prepared) -> str | None:
    """Return which copy in 8 bits the launch of an fp8 cell does not name, in one line; None where it names all.

    It must name its copies of q, k and v in e4m3, and of dout in e5m2 or e4m3. After timing these copies are changed in
    place, and its results must follow.
    """
    import torch

    if case.dtype != "fp8" or case.is_indexer:  # an indexer's inputs have 8 bits themselves
        return None
    of_dout = {"dout": (torch.float8_e5m2, torch.float8_e4m3fn)} if case.has_backward else {}
    for name, dtypes in {**dict.fromkeys("qkv", (torch.float8_e4m3fn,)), **of_dout}.items():
        copy = prepared.whole_copy(name)
        if copy is None or copy.dtype not in dtypes:
            formats = " or ".join(str(t).removeprefix("torch.float8_").removesuffix("fn") for t in dtypes)
            return f"it names no {formats} copy of {name} that its launch reads (Prepared.reads)"
    return None


def moved(value: Any, device: str) -> Any:
    """Return a value with all tensors in it, through dataclasses, mappings and tuples, in the memory of a device."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: moved(inner, device) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(moved(inner, device) for inner in value)
    if is_dataclass(value) and not isinstance(value, Case | type):
        return replace(value, **{f.name: moved(getattr(value, f.name), device) for f in fields(value) if f.init})
    return value
