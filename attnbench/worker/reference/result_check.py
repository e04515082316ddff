"""All comparisons of one cell, in the order in which they are made; a run and a profile make the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.record import Accuracy
from attnbench.worker.reference.checksums import compare_checksums
from attnbench.worker.reference.exact_attention import ROW_RESULTS, compute_reference
from attnbench.worker.reference.renewed_inputs import InputRenewal
from attnbench.worker.reference.row_sample import check_inputs, choose_rows
from attnbench.worker.reference.tolerance import compare

if TYPE_CHECKING:
    from torch import Tensor

SECOND_SHARE = 0.25  # of the budget: what may be recomputed after timing, on other rows
MIN_FP8_ERROR = 0.25  # of the error of honest fp8: 16 bits leave a twentieth, one operand of three in e4m3 half


class ResultCheck:
    """The answers for one case. `inputs` are what its first launches read: dout is masked where rows are sampled.

    Made before the first launch, so that one which writes to its inputs is wrong.
    """

    notes: tuple[str, ...] = ()  # what could not be checked as usual, one line each

    def __init__(self, case: Case, given: Inputs, seed: int) -> None:
        self.case = case
        self.seed = seed
        sample = choose_rows(case, given.q.device, seed)
        self.inputs = check_inputs(case, given, sample)
        self.dout_masked = self.inputs is not given
        self._answer = compute_reference(case, self.inputs, sample)

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        """The launch, for a call whose results are to be checked."""
        return prepared.launch

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Of a launch on `inputs`."""
        return compare(self._answer, results)

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        """Why an fp8 cell whose launch gave this cannot be one, in one line; None where nothing says so.

        Rounding to e4m3 costs what it costs, whatever the scales. The launch's own e4m3 copies are changed in place
        after timing, and its results must follow.
        """
        import torch

        if self.case.dtype != "fp8":
            return None
        for name in ("q", "k", "v"):
            copy = prepared.reads.get(name)
            if copy is None or copy.dtype != torch.float8_e4m3fn:
                return f"it names no e4m3 copy of {name} that its launch reads (Prepared.reads)"
        found, honest = accuracy.errors["out"].relative, self._answer.relative_eager_error("out")
        if found < MIN_FP8_ERROR * honest:
            return f"out is off by {found:.2%} only, where e4m3 operands cost {honest:.2%}: it computed with others"
        return None

    def drop_masked_dout(self) -> None:
        """From here on launches read the inputs as they were given: gives the memory of the masked dk and dv back."""
        if self.dout_masked:
            self._answer = self._answer.without_dk_dv()
            del self.inputs

    def check_renewed(self, renewal: InputRenewal, made: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        """Of a launch on what `renewal` wrote; `made` are the inputs as they were given, made again, to write over."""
        fresh = renewal.apply_to(made)
        sample = choose_rows(self.case, made.q.device, self.seed + 1, share=SECOND_SHARE)
        answer = compute_reference(self.case, fresh, sample, rows_only=not sample.whole)
        if sample.whole or not self.case.has_backward:
            return compare(answer, results)
        by_row = compare(answer, results, ROW_RESULTS)
        return replace(by_row, errors={**by_row.errors, **compare_checksums(self._answer, fresh, results)})

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Of a launch on the inputs as they were given."""
        return compare(self._answer, results, ROW_RESULTS if self.dout_masked else None)
