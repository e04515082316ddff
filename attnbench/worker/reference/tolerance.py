"""A kernel's results against the reference: what error is allowed, and where it is largest against that.

Two bounds, each applied to eight stretches of the sequence apart, since a causal mask makes early rows large and would
hide errors in late ones:

- the largest error is at most twice eager's plus twice the rounding of the largest value (flash-attention's tests);
- its root mean square is at most twice eager's plus that of one rounding of every value, step / sqrt(12). A largest
  error is an outlier's, and its floor leaves room for fewer bits; of ten thousand errors the size is known well.
  Kernels in the case's dtype round less often than eager: on an H200 in bf16 SDPA's, cuDNN's and Triton's have 0.28 to
  0.63 of its root mean square in all four results (results/*.jsonl).

"Rounding" is that of the result's own dtype: an fp8 case has a bf16 result, or an e4m3 one with a scale (fp8.py).

To both is added four times the error to expect of a float32 sum of n terms in any order, sqrt(n) units (Higham and
Mary, "A new approach to probabilistic rounding error analysis", 2019), for the arithmetic inside any kernel; it matters
for fp32 alone. With dropout, what a fused backward knows less well (`exact`): four standard deviations in the largest
error, two in the root mean square, as a row of a head has one such error, and a stretch of one head only 16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnbench.core.backend import operand_dtype, torch_dtype
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, TensorError
from attnbench.worker.reference.exact_attention import ROW_RESULTS, ErrorProfile, Reference, rms_of_one_rounding

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STRETCHES = 8
FLOAT32_UNIT = 2.0**-24
DEVIATIONS, TYPICAL = 4.0, 2.0  # of what the rounding of out leaves in dq and dk: in the largest, in the mean square


def compare(reference: Reference, results: Mapping[str, Tensor], names: tuple[str, ...] | None = None) -> Accuracy:
    """Errors of `results`, (batch, seqlen, nheads, headdim) each, against the reference; by default of all.

    Raises ValueError when a result is missing, has another shape or another dtype than the case's.
    """
    case, sample = reference.case, reference.sample
    for name in expected_results(case):
        _check_form(case, name, results)
    values = {name: _compared_values(name, results) for name in expected_results(case)}
    errors = {
        name: _worst_error(reference, name, values[name], results[name].dtype)
        for name in names or expected_results(case)
    }
    unwritten = tuple(name for name in expected_results(case) if not bool(values[name].isfinite().all()))
    heads = len(sample.batch) * case.shape.nheads // case.shape.nheads_k
    return Accuracy(errors, rows=sample.rows.shape[1], heads=heads, unwritten=unwritten)


def expected_results(case: Case) -> tuple[str, ...]:
    """The results that a pass must give. A backward's out comes from the forward it belongs to."""
    return ("out", "dq", "dk", "dv") if case.has_backward else ("out",)


def worst(errors: list[TensorError]) -> TensorError:
    """The one whose error is largest against its tolerance; NaN counts as largest."""
    return max(errors, key=_excess)


def summation_error(case: Case) -> float:
    """The relative error to allow for what is summed in float32, in whatever order."""
    s = case.shape
    return 4 * FLOAT32_UNIT * math.sqrt(max(s.seqlen_q, s.seqlen_k, s.headdim, s.headdim_v))


def _excess(error: TensorError) -> float:
    return math.inf if math.isnan(error.max_error) else error.max_error / max(error.tolerance, math.ulp(0.0))


def _check_form(case: Case, name: str, results: Mapping[str, Tensor]) -> None:
    import torch

    s = case.shape
    d = s.headdim if name in ("dq", "dk") else s.headdim_v
    shape = (s.batch, s.seqlen_q, s.nheads, d) if name in ROW_RESULTS else (s.batch, s.seqlen_k, s.nheads_k, d)
    if name not in results:
        raise ValueError(f"the backend returned no {name}")
    if type(results[name]).__module__.partition(".")[0] != "torch":  # a subclass may compare as it likes
        raise ValueError(f"{name} is a {type(results[name]).__name__}, expected a plain torch.Tensor")
    if tuple(results[name].shape) != shape:
        raise ValueError(f"{name} has shape {tuple(results[name].shape)}, expected {shape}")
    if case.dtype == "fp8" and results[name].dtype == operand_dtype(case):
        factor = results.get(f"descale_{name}")
        if factor is None or factor.numel() != 1 or factor.dtype != torch.float32:
            raise ValueError(f"{name} is {results[name].dtype}: it needs descale_{name}, one float32 to multiply it by")
    elif results[name].dtype != torch_dtype(case):
        raise ValueError(f"{name} is {results[name].dtype}, expected {torch_dtype(case)}")


def _compared_values(name: str, results: Mapping[str, Tensor]) -> Tensor:
    """The result as it is compared."""
    t = results[name]
    return t if t.dtype.itemsize > 1 else t.float() * results[f"descale_{name}"]


def _worst_error(reference: Reference, name: str, result: Tensor, dtype: torch.dtype) -> TensorError:
    """The largest error of the stretch that allows it least; the root mean square where that alone is too large."""
    import torch

    case = reference.case
    found: ErrorProfile | None = None
    for part in reference.parts:
        errors = ErrorProfile.between(part.select(case, name, result), part.exact[name])
        found = errors if found is None else found.combined(errors)
    assert found is not None
    eager, size = reference.eager[name], reference.size[name]
    elements = sum(part.exact[name].numel() for part in reference.parts) / len(size.largest)  # at each position
    doubt = reference.out_rounding.get(name) or ErrorProfile(
        torch.zeros_like(size.largest), torch.zeros_like(size.square)
    )
    peaks = torch.stack([found.largest, eager.largest, size.largest, doubt.largest])
    squares = torch.stack([found.square, eager.square, size.square, doubt.square])
    n = min(STRETCHES, max(1, peaks.shape[1] // 16))
    by_stretch = torch.stack([stretch.amax(1) for stretch in peaks.tensor_split(n, dim=1)]).tolist()
    means = torch.stack([stretch.mean(1) for stretch in squares.tensor_split(n, dim=1)]).div(elements).sqrt().tolist()
    total = squares.sum(1).tolist()
    relative = math.sqrt(total[0] / total[2]) if total[2] else math.sqrt(total[0])
    floor = summation_error(case) * max(
        reference.cancelling_terms.get(name, 0.0), *(value for _, _, value, _ in by_stretch)
    )
    eps, rounding = torch.finfo(dtype).eps, rms_of_one_rounding(dtype)
    largest = worst(
        [
            TensorError(e, by, 2 * by + eps * value + DEVIATIONS * unsure + floor, relative)
            for e, by, value, unsure in by_stretch
        ]
    )
    square = worst(
        [
            TensorError(e, by, 2 * by + rounding * value + TYPICAL * unsure + floor, relative)
            for e, by, value, unsure in means
        ]
    )
    return square if largest.ok and not square.ok else largest
