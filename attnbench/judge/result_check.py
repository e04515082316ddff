"""The check of one cell's results: all comparisons, in the order in which a run and a profile make them.

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

LEAN_SHARE = 0.125  # of SCORE_BUDGET of a GPU: dk and dv of the sampled heads are moved to the host and back
SECOND_SHARE = 0.25  # of SCORE_BUDGET for the rows that are recomputed after timing
# Share of the error that rounding to 8 bits costs. With operands and results of 16 bits a twentieth of it is left, with
# one operand of three in e4m3 a half, and a half or more with a result in 8 bits.
MIN_FP8_ERROR = 0.25


class ResultCheck:
    """The reference of one case and the comparisons with it.

    `inputs` are what the first launches must read: dout is masked where rows are sampled. Make it before the first
    launch, so that a launch which writes to its inputs is found wrong.
    """

    notes: tuple[str, ...] = ()  # what could not be checked as usual, one sentence each
    hard = True  # whether the first launch is to be checked on hard inputs
    is_screened = True  # whether screen.py may look for wrong rows
    _renewed: tuple[Renewal, RowSample, Reference] | None = None
    approximation: Approximation | None = None  # of an approximate backend, once its results were found right

    def __init__(self, case: Case, given: Inputs, seed: int, *, lean: bool = False) -> None:
        """Compute the reference. A lean one takes less memory: fewer rows, and the dout given is masked."""
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
        """Return the launch to call where its results are to be checked."""
        return prepared.launch

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on `self.inputs`."""
        return compare(self._reference, results)

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        """Return why the launch of an fp8 cell does not compute in fp8, in one line; None where nothing shows that."""
        return copies_problem(self.case, prepared) or self.operands_problem(accuracy)

    def operands_problem(self, accuracy: Accuracy) -> str | None:
        """Return why results of an fp8 cell are none of operands in fp8, in one line; None where nothing shows that.

        Their errors must be those of such operands, which no choice of scales avoids. That tells little of a result in
        8 bits, whose own rounding is as large: there the kernels' names must say it (backends/cudnn/fp8.py).
        """
        for name, error in accuracy.errors.items() if self.case.dtype == "fp8" else ():
            unavoidable = self._reference.relative_eager_error(name)
            if error.relative < MIN_FP8_ERROR * unavoidable:
                expected = f"where operands in fp8 cost {unavoidable:.2%}"
                return f"{name} is off by {error.relative:.2%} only, {expected}: it computed with other operands"
        return None

    def move_reference(self, device: str) -> None:
        """Keep the reference in the memory of a device; on that of the results it must be to compare them."""
        self._reference = _moved(self._reference, device)

    def drop_masked_dout(self) -> None:
        """Expect the given inputs from now on, with the full dout. Frees the memory of the masked dout, dk and dv."""
        if self.dout_masked:
            self.forget_dk_dv()
            del self.inputs

    def forget_dk_dv(self) -> None:
        """Free the memory of dk and dv where they are those of a masked dout."""
        if self.dout_masked:
            self._reference = self._reference.without_dk_dv()

    def check_renewed(self, renewal: Renewal, fresh: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on the inputs of a renewal; their reference is kept for the same one."""
        sample, reference = self.prepare_renewed(renewal, fresh)
        if sample.whole or not self.case.has_backward:
            return compare(reference, results)
        by_row = compare(reference, results, ROW_RESULTS)
        return replace(by_row, errors={**by_row.errors, **compare_checksums(self._reference, fresh, results)})

    def prepare_renewed(self, renewal: Renewal, fresh: Inputs) -> tuple[RowSample, Reference]:
        """Return the rows that are compared on the inputs of a renewal, and their reference."""
        if self._renewed is None or self._renewed[0] != renewal:
            sample = choose_rows(self.case, fresh.q.device, draw_seed(), share=SECOND_SHARE)
            self._renewed = renewal, sample, self._compute(fresh, sample, rows_only=not sample.whole)
        return self._renewed[1:]

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        """Compare the results of a launch on the given inputs, restored after a renewal."""
        names = ROW_RESULTS if self.dout_masked else None
        return compare(self._reference, results, names)


def copies_problem(case: Case, prepared: Prepared) -> str | None:
    """Return which copy in 8 bits the launch of an fp8 cell does not name, in one line; None where it names all.

    It must name its copies of q, k and v in e4m3, and of dout in e5m2 or e4m3. Those that it reads are changed in place
    after timing, and its results must follow.
    """
    import torch

    if case.dtype != "fp8":
        return None
    of_dout = {"dout": (torch.float8_e5m2, torch.float8_e4m3fn)} if case.has_backward else {}
    for name, dtypes in {**dict.fromkeys("qkv", (torch.float8_e4m3fn,)), **of_dout}.items():
        copy = prepared.reads.get(name)
        if copy is None or copy.dtype not in dtypes:
            formats = " or ".join(str(t).removeprefix("torch.float8_").removesuffix("fn") for t in dtypes)
            return f"it names no {formats} copy of {name} that its launch reads (Prepared.reads)"
    return None


def _moved(value: Any, device: str) -> Any:
    """Return a value with each tensor in it, in whatever dataclass, mapping or tuple, in the memory of a device."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(inner, device) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_moved(inner, device) for inner in value)
    if is_dataclass(value) and not isinstance(value, Case | type):
        return replace(value, **{f.name: _moved(getattr(value, f.name), device) for f in fields(value) if f.init})
    return value
