"""Check an approximate backend: its results against its own definition, and its error against exact attention.

The definition (core/backend.py: ApproximateBackend) is evaluated twice, for all rows of some (batch entry, key head)
pairs: in a reference's high precision, for the exact results, and in the case's dtype, for the errors that take the
place of eager attention's in the tolerance. Autograd computes its gradients. Each evaluation computes one query head,
so that its backward recomputes this head only. Heads do not depend on each other, so dout is not masked, and dk and dv
are compared for the dense dout. The launch after timing is checked on newly drawn pairs. Where the data has large
scores, the root mean square of an error may be twice the definition's: rounding.py, which estimates the effect of
rounded scores, holds for exact attention only. Where the method rounds computed values to 8 bits, the definition's
largest errors include the effect of this rounding; where the data has large scores, its root mean squares do, too.

Where a method selects, the definition gets the selection of the launch, because a right kernel may choose either of two
candidates with nearly equal scores. The selection is right if it has the method's number of candidates, none twice and
none hidden, and if no candidate that was left out has a score above a chosen one's by more than TIMES_ROUNDING times
the error of scores in the case's dtype.

The result has the error of out against exact attention on a sample of rows, and the share of exact attention's
probability on the pairs that the method attends to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core.backend import ApproximateBackend, Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, Approximation
from attnbench.core.renewed_inputs import Renewal
from attnbench.core.text import count
from attnbench.judge.exact_attention import (
    ErrorProfile,
    Reference,
    ReferencePart,
    compute_reference,
    probabilities,
    reference_dtype,
    scaled_scores,
)
from attnbench.judge.plain_torch import plain_torch
from attnbench.judge.result_check import ResultCheck
from attnbench.judge.row_sample import RowSample, choose_rows, draw_seed, rows_of
from attnbench.judge.tolerance import compare, expected_results

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCORES = {"cuda": 2**32, "cpu": 2**22}  # most score elements for which definitions are evaluated, by type of device
MOST_PAIRS = 8  # most (batch entry, key head) pairs, which are evaluated one after the other
TIMES_ROUNDING = 2.0  # allowed error of a score, in multiples of the error of scores in the case's dtype
# Allowed largest and root mean square error of a result, in multiples of the definition's own errors in the case's
# dtype, where the data has large scores.
LARGE_SCORES = 2.0
SHARE = 0.25  # share of row_sample.SCORE_BUDGET for the rows compared with exact attention


class ApproximateResultCheck(ResultCheck):
    """The check of a case on an approximate backend, with the comparisons of ResultCheck."""

    hard = False
    is_screened = False

    def __init__(self, case: Case, given: Inputs, method: ApproximateBackend) -> None:
        self.case = case
        self.inputs = given
        self.dout_masked = False
        self._method = method
        self._sample = choose_pairs(case, given.q.device, draw_seed())
        self._selected: Tensor | None = None  # the selection of the launch for which `_known` was computed
        self._known: Reference | str | None = None
        self.notes = ("approximations have no hard inputs: the first launch had the inputs of the cell",)
        if not self._sample.whole:
            heads = self._sample.heads
            of = case.shape.batch * case.shape.nheads
            self.notes += (f"its definition was evaluated for {heads} of {count(of, 'head')}, drawn at random",)

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        accuracy = self.check_restored(results)
        if self.approximation is None and accuracy.ok:
            self.approximation = approximation_of(self._method, self.case, self.inputs, results)
        return accuracy

    def check_renewed(self, renewal: Renewal, fresh: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        return self._compared(
            self._defined(fresh, choose_pairs(self.case, fresh.q.device, draw_seed()), results), results
        )

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        selected = selection_of(self._method, results)
        if self._known is None or not _is_same(self._selected, selected):
            self._known = self._defined(self.inputs, self._sample, results)
            self._selected = None if selected is None else selected.clone()  # a launch may write to it again
        return self._compared(self._known, results)

    def _defined(self, inputs: Inputs, sample: RowSample, results: Mapping[str, Tensor]) -> Reference | str:
        """Return the definition's results for the selection of a launch, or the fault of the selection."""
        selected = selection_of(self._method, results)
        with plain_torch():
            flaw = selection_flaw(self._method, self.case, inputs, sample, selected)
            return flaw or define(self._method, self.case, inputs, sample, selected)

    def _compared(self, known: Reference | str, results: Mapping[str, Tensor]) -> Accuracy:
        if isinstance(known, str):
            return Accuracy({}, rows=self.case.shape.seqlen_q, heads=self._sample.heads, flaws=(known,))
        large = LARGE_SCORES if has_large_scores(self.case) else 0.0
        return compare(known, results, wide=dict.fromkeys(expected_results(self.case), large) if large else None)


def has_large_scores(case: Case) -> bool:
    """Return whether few keys have most of the probability, so that few roundings decide an error."""
    return case.data in ("outliers", "decaying")


def choose_pairs(case: Case, device: torch.device, seed: int) -> RowSample:
    """Choose (batch entry, key head) pairs with all their rows: as many as SCORES allows, at least two."""
    import torch

    s = case.shape
    pairs, group = s.batch * s.nheads_k, s.nheads // s.nheads_k
    budget = SCORES["cpu" if device.type == "cpu" else "cuda"]
    chosen = min(pairs, MOST_PAIRS, max(2, budget // (s.seqlen_q * group * s.seqlen_k)))
    at = torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))[:chosen].sort().values
    rows = torch.arange(s.seqlen_q, device=device)[None, :, None].expand(chosen, -1, group)
    batch, head = (t.to(device) for t in (at // s.nheads_k, at % s.nheads_k))
    whole = chosen == pairs
    return RowSample(batch, head, rows, all_pairs=whole, all_rows=True, seed=None if whole else seed)


def define(
    method: ApproximateBackend, case: Case, inputs: Inputs, sample: RowSample, selected: Tensor | None
) -> Reference:
    """Return the results of the definition on a sample, and its errors in the case's dtype, as a reference."""
    import torch

    precise = reference_dtype(case, inputs.q.device)
    parts = []
    eager: dict[str, ErrorProfile] = {}
    size: dict[str, ErrorProfile] = {}
    for i in range(len(sample.batch)):
        one = slice(i, i + 1)
        batch, head, rows = sample.batch[one], sample.head[one], sample.rows[one]
        of_queries = [inputs.q] if inputs.dout is None else [inputs.q, inputs.dout]
        q, *dout = (rows_of(case, t, batch, head, rows)[0] for t in of_queries)
        k, v = (t[batch[0], :, head[0]] for t in (inputs.k, inputs.v))
        chosen = None if selected is None else selected[batch[0], head[0]].long()
        tensors = (q, k, v, *dout)
        exact, rounded = (_evaluate(method, case, dtype, tensors, chosen) for dtype in (precise, torch_dtype(case)))
        apart = _evaluate(unrounded, case, precise, tensors, chosen) if (unrounded := method.unrounded()) else {}
        for name, values in exact.items():
            errors = ErrorProfile.between(rounded[name], values)
            if name in apart:
                of_rounding = ErrorProfile.between(apart[name], values)
                errors = replace(errors, largest=errors.largest + of_rounding.largest)
                if has_large_scores(case):
                    errors = replace(errors, square=torch.maximum(errors.square, of_rounding.square))
            eager[name] = eager[name].combined(errors) if name in eager else errors
            profile = ErrorProfile.of(values)
            size[name] = size[name].combined(profile) if name in size else profile
        parts.append(ReferencePart(batch, head, rows, exact))
    terms = {}  # the largest terms of dq and dk, as for exact attention
    if case.has_backward:
        terms = {name: case.softmax_scale * float(t.abs().max()) for name, t in (("dq", inputs.k), ("dk", inputs.q))}
    return Reference(case, sample, tuple(parts), eager, size, terms, {}, {}, {})


def _evaluate(
    method: ApproximateBackend, case: Case, dtype: torch.dtype, tensors: tuple[Tensor, ...], selected: Tensor | None
) -> dict[str, Tensor]:
    """Return the definition's results in a dtype: each (1, rows, ...), with a backward "dq", "dk", "dv" too.

    dk and dv are rounded for each query head and then summed, as in eager attention with K and V repeated.
    """
    import torch

    q, k, v, *dout = (t.detach().to(dtype) for t in tensors)
    outs, dqs = [], []
    sums = [torch.zeros_like(t, dtype=torch.promote_types(dtype, torch.float32)) for t in (k, v)]
    for head in range(q.shape[1]):
        one, keys, values = (t.detach().requires_grad_(case.has_backward) for t in (q[:, head], k, v))
        chosen = None if selected is None else method.selected_for(case, selected, head)
        with torch.set_grad_enabled(case.has_backward):
            out = method.definition(case, one, keys, values, chosen)
        outs.append(out.detach())
        if case.has_backward:
            dq, *of_keys = torch.autograd.grad(out, (one, keys, values), dout[0][:, head])
            dqs.append(dq)
            for whole, part in zip(sums, of_keys, strict=True):
                whole += part
    found = {"out": torch.stack(outs, dim=1)[None]}
    if case.has_backward:
        dk, dv = (t.to(dtype)[None] for t in sums)
        found |= {"dq": torch.stack(dqs, dim=1)[None], "dk": dk, "dv": dv}
    return found


def selection_of(method: ApproximateBackend, results: Mapping[str, Tensor]) -> Tensor | None:
    """Return the indices that a launch selected, None where it names no selection."""
    selected = results.get("selected")
    return None if selected is None else method.selected_indices(selected)


def selection_flaw(
    method: ApproximateBackend, case: Case, inputs: Inputs, sample: RowSample, selected: Tensor | None
) -> str:
    """Return the fault of the selection of a launch, in one line; "" where rounding explains all differences."""
    import torch

    for batch, head, rows in zip(sample.batch, sample.head, sample.rows, strict=True):
        q = rows_of(case, inputs.q, batch[None], head[None], rows[None])[0]
        k = inputs.k[batch, :, head]
        exact = method.scores(case, q.to(reference_dtype(case, q.device)), k.to(reference_dtype(case, k.device)))
        if exact is None:
            return ""
        if selected is None:
            return "it does not name what it selected"
        most = method.selected_count(case)
        if most is None:
            return "its definition does not say how many candidates it selects (selected_count)"
        chosen, number = selected[batch, head].long(), exact.shape[-1]
        if chosen.shape[:-1] != exact.shape[:-1]:
            return f"what it selected has the shape {tuple(selected.shape)}"
        if flaw := candidates_flaw(chosen, exact, most):
            return flaw
        rounded = method.scores(case, q, k)
        assert rounded is not None
        apart = torch.where(exact.isfinite(), rounded.to(exact.dtype) - exact, 0.0)
        allowed = 2 * TIMES_ROUNDING * float(apart.abs().max())
        places = chosen.masked_fill(chosen < 0, number)
        with_none = torch.nn.functional.pad(exact, (0, 1), value=-math.inf)
        least = with_none.gather(-1, places).masked_fill(chosen < 0, math.inf).amin(-1)
        left = with_none.scatter(-1, places, -math.inf).amax(-1)
        gap = torch.where(left <= least, 0.0, left - least)
        if not float(gap.max()) <= allowed:
            return (
                f"it selected a candidate whose score is {float(gap.max()):.3g} below that of one left out, where "
                f"rounding explains {allowed:.3g}"
            )
    return ""


def candidates_flaw(chosen: Tensor, scores: Tensor, most: int) -> str:
    """Return why a definition that selects `most` candidates cannot have chosen these; "" if it can, by some scores.

    `scores` is (..., candidates). `chosen`, (..., any number), has indices into its last dimension; a negative index
    stands for no candidate.
    """
    number = scores.shape[-1]
    if bool((chosen >= number).any()):
        return f"it selected candidate {int(chosen.max())}, but there are {number}, counted from 0"
    places = chosen.sort(-1).values
    if bool(((places.diff(dim=-1) == 0) & (places[..., 1:] >= 0)).any()):
        return "it selected a candidate twice for one query"
    hidden = scores.isneginf()
    if bool((hidden.gather(-1, chosen.clamp(min=0)) & (chosen >= 0)).any()):
        return "it selected a candidate that is hidden from the query"
    found, expected = (chosen >= 0).sum(-1).flatten(), (~hidden).sum(-1).clamp(max=most).flatten()
    worst = int((found - expected).abs().argmax())
    if (other := int(found[worst])) != (due := int(expected[worst])):
        return f"it selected {count(other, 'candidate')} for one query, but its definition selects {due}"
    return ""


def approximation_of(
    method: ApproximateBackend, case: Case, inputs: Inputs, results: Mapping[str, Tensor]
) -> Approximation:
    """Return the error of `out` against exact attention, and the share of exact probability on attended pairs."""
    sample = choose_rows(case, inputs.q.device, draw_seed(), SHARE)
    forward, given = replace(case, direction="fwd"), replace(inputs, dout=None)
    reference = compute_reference(forward, given, sample)
    selected = selection_of(method, results)
    error = size = kept = 0.0
    pairs = 0
    with plain_torch():
        for part in reference.parts:
            exact = part.exact["out"]
            error += float((part.select(case, "out", results["out"]).to(exact.dtype) - exact).square().sum())
            size += float(exact.square().sum())
            for i in range(len(part.batch)):
                share = _mass_kept(method, case, inputs, part, i, selected)
                if share is not None:
                    kept, pairs = kept + share, pairs + 1
    relative = math.sqrt(error / size) if size else math.sqrt(error)
    mass = kept / pairs if pairs else None
    return Approximation(method.what, relative, mass, rows=sample.rows.shape[1], heads=sample.heads)


def _mass_kept(
    method: ApproximateBackend, case: Case, inputs: Inputs, part: ReferencePart, i: int, selected: Tensor | None
) -> float | None:
    """Return the mean over some rows of a (batch entry, key head) of exact attention's probability on attended keys.

    None where the method does not attend to keys themselves.
    """
    import torch

    batch, head, rows = part.batch[i], part.head[i], part.rows[i]
    by_head = inputs.q[batch].unflatten(1, (case.shape.nheads_k, -1))[:, head]  # (seqlen_q, group, headdim)
    k = inputs.k[batch, :, head]
    of_pair = None if selected is None else selected[batch, head].long()
    seen = []
    for j in range(by_head.shape[1]):
        chosen = None if of_pair is None else method.selected_for(case, of_pair, j)
        of_head = method.attended(case, by_head[:, j], k, rows[:, j], chosen)
        if of_head is None:
            return None
        seen.append(of_head)
    q = rows_of(case, inputs.q, batch[None], head[None], rows[None])
    precise = reference_dtype(case, q.device)
    scores = scaled_scores(case, q.to(precise) @ k.to(precise).mT)
    p = probabilities(case, rows[None], scores)[0]
    return float((p * torch.stack(seen, dim=1)).sum(-1).mean())


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    import torch

    return one is other or (one is not None and other is not None and torch.equal(one, other))
