"""The tolerance of the check, a bound on the error of a kernel's results, and the comparison itself (`compare`).

There are two bounds. Both hold for each of eight sections of the sequence separately, because a causal mask makes the
values of early rows large, and their tolerance would hide errors in late rows:

- The largest error is at most twice eager's, plus twice the rounding of the largest value (flash-attention's tests).
- The root mean square of the error is at most 1.22 times eager's, or the error of one rounding of every value, step /
  sqrt(12), if this is more. Eager rounds at least four times in the dtype: scores, scaled scores, probabilities,
  result. Errors of independent roundings add up in squares, and a right kernel that keeps partial sums in the dtype may
  round twice more: sqrt(6 / 4) (EXTRA_ROUNDINGS). On an H200 in bf16 (results/*.jsonl*) fused kernels have 0.3 to 0.6
  of eager's error, torch's own eager attention up to 1.10 (gradients, headdim 64, no mask).
- Both root mean squares are estimates from the compared values. The errors of one row share the roundings of a few
  probabilities, so each row counts as one value. Its square has a relative variance of at most 2, and the difference of
  two means over n rows one of 4 / n. DEVIATIONS_MEAN standard deviations are allowed: a root mean square of 1.37 times
  eager's with 1024 rows, of 1.73 with 64. Where rows differ in size, n is less (_effective_counts). Below FEW, where
  eager's own error may be small by chance, the bound is twice eager's, plus one rounding.

Where another estimate takes the place of eager (fp8), the root mean square may be twice the estimate and one rounding
of every value, added up in squares. For rows that were chosen for their errors (screen.py), and on hard inputs on a
GPU, it may be twice eager's, plus one rounding.

Both bounds are raised by:

- four times the error to expect of a float32 sum of n terms in any order, sqrt(n) units in the last place (Higham and
  Mary, "A new approach to probabilistic rounding error analysis", 2019), for the arithmetic inside any kernel. It
  matters for fp32 only.
- for large scores and with dropout, the additional errors of a fused kernel (rounding.py): four standard deviations for
  the largest error and two for the root mean square, because a row of a head shares one such error, and a section of
  one head may have only 16 rows.

In dq and dk a gradient through the maximum of a row adds the error of a whole row at one key (rounding.py), in squares.
The largest error may have four standard deviations of it. In the root mean square the EXTRA_ROUNDINGS include it; where
fewer than FEW rows count for it, it is added, with the allowance for chance.

There is no allowance for partial sums of dq that are kept in the dtype after each of m chunks of keys, as by autograd.
Their error is sqrt(m / 2) roundings of dq, 1.3 % of it with 64 chunks of 64 keys in bf16, and grows with the sequence.
One key of 4096 left out of dq costs as much, 1.6 %, and one key of more costs less, so no limit would separate the two.

Where scores are large, errors are not in proportion to values: in 16 bits the errors of a few probabilities dominate,
and eager's may be small by chance. So the number of effective rows comes from the expected errors of a kernel that
keeps scores in the dtype, if they give fewer, and the largest error may be four standard deviations of these errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from attnbench.core import kinds
from attnbench.core.backend import cu_seqlens, torch_dtype
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, TensorError
from attnbench.judge.exact_attention import ROW_RESULTS, ErrorProfile, Reference
from attnbench.judge.rounding import rms_of_one_rounding

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PART = 2**26  # most elements of a tensor that are compared at once
SECTIONS = 8  # sections of the sequence with separate bounds
FLOAT32_UNIT = 2.0**-24
NEARLY_ALL = 0.8  # least share of wrong places in a wrong stretch, in which some errors are small by chance
# Allowed standard deviations of rounding.py, in the largest error and in the root mean square
DEVIATIONS_LARGEST, DEVIATIONS_RMS = 4.0, 2.0
FEW = 32  # effective rows, below which twice eager's error is allowed
EXTRA_ROUNDINGS = 6 / 4  # allowed mean square of the error over eager's
DEVIATIONS_MEAN = 4.0  # allowed standard deviations of a mean square; chance alone exceeds them in 1 of 30,000 tests


def compare(
    reference: Reference,
    results: Mapping[str, Tensor],
    names: tuple[str, ...] | None = None,
    *,
    wide: Mapping[str, float] | None = None,
) -> Accuracy:
    """Compare results, (batch, seqlen, nheads, headdim) each, with the reference.

    `names` are the results to compare, by default all; the others must exist and be finite, too. For results in `wide`
    both errors may be as many times eager's, plus one rounding. Raises ValueError where a result is missing, or has
    another shape or dtype than the case's.
    """
    case, sample = reference.case, reference.sample
    for name in expected_results(case):
        check_form(case, name, results)
    compared = names or expected_results(case)
    errors, unwritten = {}, []
    for name in expected_results(case):  # one at a time, because values of 8 bits take four times their memory
        values = result_values(name, results)
        if not _is_finite(values):
            unwritten.append(name)
        if name not in compared:
            continue
        if name == "dsink":
            errors[name] = _error_of_dsink(reference, values)
        else:
            errors[name] = _worst_error(reference, name, values, results[name].dtype, (wide or {}).get(name))
    rows = sample.rows.shape[1]
    return Accuracy(errors, rows=rows, heads=sample.heads, unwritten=tuple(unwritten), seed=sample.seed)


def in_parts(t: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor as views of some rows each, so that computations on a view take little memory."""
    dim = min(1, t.dim() - 1)
    parts: tuple[Tensor, ...] = t.split(max(1, PART * t.shape[dim] // max(1, t.numel())), dim)
    return parts


def _is_finite(t: Tensor) -> bool:
    return all(bool(part.isfinite().all()) for part in in_parts(t))


def expected_results(case: Case) -> tuple[str, ...]:
    """Return the names of the results of a case. A backward returns out too, the result of its forward."""
    if not case.is_softmax:
        return (*kinds.result_shapes(case),)
    if not case.has_backward:
        return ("out",)
    return ("out", "dq", "dk", "dv", "dsink") if case.sink else ("out", "dq", "dk", "dv")


def worst(errors: list[TensorError]) -> TensorError:
    """Return the error that is largest relative to its tolerance; NaN counts as largest."""
    return max(errors, key=_excess)


def summation_error(case: Case) -> float:
    """Return the relative error of float32 sums over the case's lengths, for any order of summation."""
    s = case.shape
    return 4 * FLOAT32_UNIT * math.sqrt(max(s.seqlen_q, s.seqlen_k, s.headdim, s.headdim_v))


def _effective_counts(size: ErrorProfile, sections: int) -> list[float]:
    """Return for each section the number of rows of equal size with as many independent values as its rows.

    It is (sum x)^2 / sum x^2 for the squares x of the rows, because errors are in proportion to values.
    """
    squares, fourths = (t.tensor_split(sections) for t in (size.square, size.fourth))
    pairs = ((float(square.sum()) ** 2, float(fourth.sum())) for square, fourth in zip(squares, fourths, strict=True))
    return [max(1.0, total / fourth) if fourth else 1.0 for total, fourth in pairs]


def _slack(count: float) -> float:
    """Return the factor by which a root mean square over `count` rows may exceed another by chance."""
    return math.sqrt(1 + DEVIATIONS_MEAN * math.sqrt(4 / count))


def _slack_of_known(count: float) -> float:
    """Return the factor by which a root mean square over `count` rows may exceed a known standard deviation.

    A sum of few squares is far from normal, but its cube root is nearly normal (Wilson and Hilferty, "The distribution
    of chi-square", 1931).
    """
    variance = 2 / (9 * count)
    return math.pow(1 - variance + DEVIATIONS_MEAN * math.sqrt(variance), 1.5)


def _excess(error: TensorError) -> float:
    """Return the error over its tolerance; infinite for NaN."""
    return math.inf if math.isnan(error.max_error) else error.max_error / max(error.tolerance, math.ulp(0.0))


def check_form(case: Case, name: str, results: Mapping[str, Tensor]) -> None:
    """Raise ValueError where a result is missing or has another type, shape or dtype than the case's."""
    import torch

    s = case.extent
    d = s.headdim if name in ("dq", "dk") else s.headdim_v
    shape: tuple[int, ...] = (s.batch, s.seqlen_k, s.nheads_k, d)
    if name in ROW_RESULTS:
        shape = (s.batch, s.seqlen_q, s.nheads, d)
    elif name == "dsink":
        shape = (s.nheads,)
    if not case.is_softmax:
        shape = kinds.result_shapes(case)[name]
    if name not in results:
        raise ValueError(f"the backend returned no {name}")
    if type(results[name]) is not torch.Tensor:  # a subclass may redefine comparisons
        raise ValueError(f"{name} is a {type(results[name]).__name__}, expected a plain torch.Tensor")
    if tuple(results[name].shape) != shape:
        raise ValueError(f"{name} has shape {tuple(results[name].shape)}, expected {shape}")
    own = None if case.is_softmax else kinds.own_dtype(case, name)
    if case.dtype == "fp8" and results[name].dtype.itemsize == 1 and not own:
        factor = results.get(f"descale_{name}")
        if factor is None or factor.numel() != 1 or factor.dtype != torch.float32:
            raise ValueError(f"{name} is {results[name].dtype}: it needs descale_{name}, one float32 to multiply it by")
        return
    expected = getattr(torch, own) if own else torch_dtype(case)
    if results[name].dtype not in (expected, torch.float32 if name == "dsink" else None):
        raise ValueError(f"{name} is {results[name].dtype}, expected {expected}")


def result_values(name: str, results: Mapping[str, Tensor]) -> Tensor:
    """Return the values of a result to compare: values of 8 bits are multiplied by their scale."""
    t = results[name]
    return t if t.dtype.itemsize > 1 else t.float() * results[f"descale_{name}"]


def _worst_error(
    reference: Reference, name: str, result: Tensor, dtype: torch.dtype, wide: float | None
) -> TensorError:
    """Return the error of one result in the section where it is largest relative to its tolerance.

    It is the largest error, or the root mean square where only this exceeds its bound. `dtype` is the result's own,
    before scaling. With `wide` both errors may be as many times eager's.
    """
    import torch

    case, expected = reference.case, sections_of(reference, name)
    found: ErrorProfile | None = None
    for part in reference.parts:
        errors = ErrorProfile.between(part.select(case, name, result), part.exact[name])
        found = errors if found is None else found.combined(errors)
    assert found is not None
    largest, square = found.largest, found.square
    if expected.order is not None:
        largest, square = largest[expected.order], square[expected.order]
    n = len(expected.sections)
    by_section = [section.amax().to(square) for section in largest.tensor_split(n)]
    by_section += [section.mean() for section in square.tensor_split(n)]
    *measured, total = torch.stack([*by_section, square.sum()]).tolist()
    relative = math.sqrt(total / expected.total) if expected.total else math.sqrt(total)
    floor = expected.floor

    eps, one_rounding = torch.finfo(dtype).eps, rms_of_one_rounding(dtype)
    largest_errors = []
    root_mean_squares = []
    for of, error, mean_square in zip(expected.sections, measured[:n], measured[n:], strict=True):
        few = _slack(of.independent) if of.independent < FEW else 1
        bound = (wide or 2) * of.eager_largest * few + DEVIATIONS_LARGEST * of.deviation_largest
        bound = math.hypot(max(bound, DEVIATIONS_LARGEST * of.expectation), DEVIATIONS_LARGEST * of.maximum_largest)
        bound += eps * of.largest + floor
        largest_errors.append(TensorError(error, of.eager_largest, bound, relative))
        if wide or case.dtype == "fp8" or of.independent < FEW:
            most = (wide or 2) * of.eager_rms * few
            bound = math.hypot(most, one_rounding * of.rms) if case.dtype == "fp8" else most + one_rounding * of.rms
        else:
            bound = max(math.sqrt(EXTRA_ROUNDINGS) * of.eager_rms, one_rounding * of.rms) * _slack(of.independent)
        if of.independent_of_maximum < FEW:
            chance = of.maximum_rms * _slack_of_known(of.independent_of_maximum)
            bound = max(bound, math.hypot(of.eager_rms * _slack(of.independent), chance))
        bound += DEVIATIONS_RMS * of.deviation_rms + floor
        error = math.sqrt(mean_square / expected.elements)
        root_mean_squares.append(TensorError(error, of.eager_rms, bound, relative))
    largest_error = worst(largest_errors)
    root_mean_square = worst(root_mean_squares)
    if largest_error.ok:
        return largest_error if root_mean_square.ok else replace(root_mean_square, where="in the root mean square")
    is_wrong = ~(found.largest <= largest_error.tolerance)
    length = case.extent.seqlen_q if name in ROW_RESULTS else case.extent.seqlen_k
    noun = "token" if case.is_delta else "query row" if name in ROW_RESULTS else "key"
    if name == "state":
        length, noun = case.shape.headdim, "row of the state"
    where = _name_places(is_wrong, length, noun)
    return replace(largest_error, where="all zeros" if not bool(result.any()) else where)


class Section(NamedTuple):
    """The exact values, eager's errors and the allowances of a result in one section of the sequence."""

    largest: float  # largest exact value
    rms: float  # root mean square of the exact values
    eager_largest: float  # largest error of eager attention
    eager_rms: float  # root mean square of eager's errors
    deviation_largest: float  # largest standard deviation of rounding.py
    deviation_rms: float
    expectation: float  # largest standard deviation of a kernel that keeps scores in the dtype
    maximum_largest: float  # largest standard deviation of a gradient through maxima of rows
    maximum_rms: float
    independent: float  # effective number of independent rows
    independent_of_maximum: float


@dataclass(frozen=True)
class Sections:
    """The `Section`s of one result, computed once for a reference."""

    sections: tuple[Section, ...]
    order: Tensor | None  # order of the positions of a ragged batch
    elements: float  # number of elements at each position
    total: float  # sum of the squares of the exact values
    floor: float  # allowance for float32 sums


def sections_of(reference: Reference, name: str) -> Sections:
    """Return the `Sections` of one result, from the reference's cache if they are known."""
    known: dict[str, Sections] = reference.kept
    if name not in known:
        known[name] = _sections(reference, name)
    return known[name]


def _sections(reference: Reference, name: str) -> Sections:
    import torch

    case, eager, size = reference.case, reference.eager[name], reference.size[name]
    elements = sum(part.exact[name].numel() for part in reference.parts) / len(size.largest)
    none = ErrorProfile(*(torch.zeros_like(t) for t in (size.largest, size.square, size.fourth)))
    rounding, expected = reference.rounding.get(name, none), reference.eager_rounding.get(name, none)
    of_maximum = reference.of_maximum.get(name, none)
    peaks = torch.stack([size.largest, eager.largest, rounding.largest, expected.largest, of_maximum.largest])
    squares = torch.stack([size.square, eager.square, rounding.square, of_maximum.square])
    order = _by_place_in_sequence(reference, name) if case.is_ragged else None
    if order is not None:
        peaks, squares = peaks[:, order], squares[:, order]
        size, expected, of_maximum = (profile.ordered(order) for profile in (size, expected, of_maximum))
    n = min(SECTIONS, max(1, peaks.shape[1] // 16))
    largest = torch.stack([section.amax(1) for section in peaks.tensor_split(n, dim=1)]).tolist()
    mean_squares = torch.stack([section.mean(1) for section in squares.tensor_split(n, dim=1)]).div(elements)
    counts = _effective_counts(size, n)
    if name in reference.eager_rounding:
        counts = [min(pair) for pair in zip(counts, _effective_counts(expected, n), strict=True)]
    sections = tuple(
        Section(
            largest=value,
            rms=rms,
            eager_largest=by_eager,
            eager_rms=rms_by_eager,
            deviation_largest=deviation,
            deviation_rms=rms_of_deviation,
            expectation=expectation,
            maximum_largest=maximum,
            maximum_rms=rms_of_maximum,
            independent=count,
            independent_of_maximum=count_of_maximum,
        )
        for (value, by_eager, deviation, expectation, maximum), (
            rms,
            rms_by_eager,
            rms_of_deviation,
            rms_of_maximum,
        ), count, count_of_maximum in zip(
            largest, mean_squares.sqrt().tolist(), counts, _effective_counts(of_maximum, n), strict=True
        )
    )
    floor = max(reference.cancelling_terms.get(name, 0.0), *(of.largest for of in sections))
    return Sections(sections, order, elements, float(squares[0].sum()), summation_error(case) * floor)


def _error_of_dsink(reference: Reference, result: Tensor) -> TensorError:
    """Return the error of the gradient of the sinks.

    It is a sum over all rows, of terms of both signs. Its error comes from the rounding of out in a fused kernel, and
    from the roundings of probabilities and of their gradient in eager attention. These terms are independent, so a head
    may be off by DEVIATIONS_LARGEST standard deviations of both, and by the rounding of the result.
    """
    import torch

    dtype, of = result.dtype, reference.dsink
    assert of is not None
    exact = of.exact.flatten()
    by_eager = (of.eager.flatten() - exact).square().mean().sqrt()
    by_out = rms_of_one_rounding(torch_dtype(reference.case)) * of.terms.flatten().sqrt()
    floor = summation_error(reference.case) * of.terms.flatten().sqrt()
    bound = DEVIATIONS_LARGEST * (by_eager.square() + by_out.square()).sqrt() + floor
    bound += torch.finfo(dtype).eps * exact.abs()
    error = (result.to(exact.dtype) - exact).abs()
    at = int((error / bound.clamp(min=math.ulp(0.0))).nan_to_num(math.inf).argmax())
    size = float(exact.square().sum().sqrt()) or 1.0
    relative = float(error.square().sum().sqrt()) / size
    where = f"head {at}" if float(error[at]) > float(bound[at]) else ""
    return TensorError(float(error[at]), float(by_eager), float(bound[at]), relative, where)


def _by_place_in_sequence(reference: Reference, name: str) -> Tensor:
    """Return the positions of a ragged batch in the order of their place in their sequence.

    So a section has rows of about one size, because early rows of a causal mask are larger. The positions of a sample
    are the first head's.
    """
    import torch

    case, rows = reference.case, reference.sample.rows[0, :, 0].contiguous()
    starts = cu_seqlens(case, rows.device)[0 if name in ROW_RESULTS else 1].long()
    places = rows if name in ROW_RESULTS else torch.arange(case.extent.seqlen_k, device=rows.device)
    return (places - starts[torch.searchsorted(starts, places, right=True) - 1]).argsort(stable=True)


def _name_places(is_wrong: Tensor, length: int, noun: str) -> str:
    """Return the wrong places of a result as text for a person who searches for the cause.

    `is_wrong` (positions,) covers the sequence of `length` from first to last. Where only some positions were compared,
    as in a sample, the places in the text are approximate.
    """
    n, at = len(is_wrong), is_wrong.nonzero().flatten().tolist()
    about = "" if n == length else "about "
    first, last = (about + str(index * length // n) for index in (at[0], at[-1]))
    if len(at) > NEARLY_ALL * n:
        return f"in {'' if len(at) == n else 'nearly '}every {noun}"
    if len(at) == 1:
        return f"in {noun} {first}"
    if len(at) < NEARLY_ALL * (at[-1] - at[0] + 1):
        return f"in {len(at)} of {n} {noun}s{' compared' if about else ''}, the first {first}"
    if at[-1] >= NEARLY_ALL * n:
        return f"from {noun} {first} on"
    return f"up to {noun} {last}" if at[0] == 0 else f"in {noun}s {first} to {last}"
