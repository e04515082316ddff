"""Compute the reference on a sample of rows: exact attention, and the errors of eager attention in the case's dtype.

Eager attention is the textbook's: softmax(q @ k.T * scale) @ v, with every intermediate result rounded to the case's
dtype, and K and V repeated for grouped heads. Only its errors are kept, by position in the sequence.

Rounding. In some places a right fused kernel is less exact than eager. The tolerance includes these errors
(`Reference.rounding`, rounding.py), for large scores and for cases with dropout.

fp8. There is no eager attention in fp8. The error that no fp8 attention can avoid takes its place: q, k and v rounded
to e4m3 with one scale per tensor, and the probabilities rounded as kernels do (core/fp8.py), with everything else in
float32. For standard normal inputs this error is 4 to 6 % of the output in root mean square, of which q and k cause up
to 3.7 %, v 2.6 % and the probabilities 2.6 %. In a backward dout and the gradient of the scores are rounded to e5m2,
which costs 5.2 % each. The exact results are of the inputs before rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.core import fp8, masks, pages
from attnbench.core.alibi import alibi_slopes
from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.band import diagonals
from attnbench.core.case import Case
from attnbench.judge.plain_torch import plain_torch
from attnbench.judge.rounding import Rows, maximum_variances, rounding_variances
from attnbench.judge.row_sample import RowSample, rows_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 2**25  # most score elements computed at once
SUM_SECTION = 2048  # terms of a sum that one multiprocessor adds
ROW_RESULTS = ("out", "dq")  # results in which a row depends on its query row alone
OF_MAXIMUM = "_of_maximum"  # suffix of a result's name: its variances from a gradient through the maxima of rows


@dataclass(frozen=True)
class ReferencePart:
    """The exact results of some (batch entry, key head) pairs of the sample."""

    batch: Tensor  # (pairs,)
    head: Tensor  # (pairs,)
    rows: Tensor  # (pairs, count, group) query rows
    exact: Mapping[str, Tensor]  # "out" and "dq": (pairs, count, group, d); "dk" and "dv": (pairs, seqlen_k, d)

    def select(self, case: Case, name: str, result: Tensor) -> Tensor:
        """Return the part of a result (batch, seqlen, heads, d) that corresponds to `exact[name]`."""
        if name in ROW_RESULTS:
            return rows_of(case, result, self.batch, self.head, self.rows)
        return result[self.batch, :, self.head]


@dataclass(frozen=True)
class ErrorProfile:
    """The largest and the summed squared values at each position, over all heads.

    A position is a row of the sample, in its order, or a key.
    """

    largest: Tensor  # (positions,)
    square: Tensor  # (positions,) float64, sum of squares
    fourth: Tensor  # (positions,) float64, sum over rows, of headdim elements each, of the fourth power of their norm

    @classmethod
    def between(cls, ours: Tensor, exact: Tensor) -> ErrorProfile:
        """Return the profile of the difference of two tensors (pairs, positions, ...), NaN where either is NaN."""
        return cls.of(ours.to(exact.dtype) - exact)

    @classmethod
    def of(cls, t: Tensor) -> ErrorProfile:
        """Return the profile of the absolute values of a tensor (pairs, positions, ..., headdim)."""
        import torch

        rows = t.square().sum(-1, keepdim=True).flatten(2).to(torch.float64)
        return cls(t.abs().flatten(2).amax((0, 2)), rows.sum((0, 2)), rows.square().sum((0, 2)))

    def ordered(self, order: Tensor) -> ErrorProfile:
        """Return the profile with its positions in another order."""
        return ErrorProfile(self.largest[order], self.square[order], self.fourth[order])

    def combined(self, other: ErrorProfile) -> ErrorProfile:
        """Return the profile over the pairs of this profile and the other."""
        import torch

        largest = torch.maximum(self.largest, other.largest)
        return ErrorProfile(largest, self.square + other.square, self.fourth + other.fourth)


@dataclass(frozen=True)
class SinkGradient:
    """The gradient of the sinks over all rows of the sample, (nheads_k, group) each."""

    exact: Tensor
    eager: Tensor  # as eager attention computes it
    terms: Tensor  # the sum of squares by which the rounding of out changes it

    @classmethod
    def zeros(cls, nheads_k: int, group: int, dtype: torch.dtype, device: torch.device) -> SinkGradient:
        import torch

        exact, eager, terms = (torch.zeros(nheads_k, group, dtype=dtype, device=device) for _ in range(3))
        return cls(exact, eager, terms)

    def add(self, head: Tensor, exact: Tensor, eager: Tensor, terms: Tensor) -> None:
        """Add the parts (pairs, group) of key heads (pairs,)."""
        for whole, part in ((self.exact, exact), (self.eager, eager), (self.terms, terms)):
            whole.index_add_(0, head, part.to(whole.dtype))

    def moved_to(self, exact: Tensor) -> SinkGradient:
        """Return the gradient with another exact value; eager's error stays the same."""
        return SinkGradient(exact, exact + self.eager - self.exact, self.terms)


@dataclass(frozen=True)
class Reference:
    """The exact results on a sample, with eager's errors and the size of the exact values, for the tolerance."""

    case: Case
    sample: RowSample
    parts: tuple[ReferencePart, ...]
    eager: Mapping[str, ErrorProfile]
    size: Mapping[str, ErrorProfile]
    cancelling_terms: Mapping[str, float]  # size of the terms of dq and dk; terms may cancel, their roundings do not
    rounding: Mapping[str, ErrorProfile]  # standard deviations from roundings that eager's errors do not include
    eager_rounding: Mapping[str, ErrorProfile]  # standard deviations for a kernel that keeps large scores in the dtype
    of_maximum: Mapping[str, ErrorProfile]  # standard deviations of dq and dk, from a gradient through maxima of rows
    dsink: SinkGradient | None = None
    kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False)  # cache of tolerance.py, by result

    def relative_eager_error(self, name: str) -> float:
        """Return eager's error over the size of the exact values, as root mean squares; 0 for a result of zeros."""
        error, size = float(self.eager[name].square.sum()), float(self.size[name].square.sum())
        return math.sqrt(error / size) if size else 0.0

    def with_exact_of(self, other: Reference) -> Reference:
        """Return the reference with the exact results of another reference of the same inputs; eager's errors stay."""
        dsink = None if self.dsink is None or other.dsink is None else self.dsink.moved_to(other.dsink.exact)
        return replace(self, parts=other.parts, dsink=dsink)

    def without_dk_dv(self) -> Reference:
        """Return the reference without dk and dv, which hold for the masked dout only and are as large as k and v."""
        parts = (replace(p, exact={n: t for n, t in p.exact.items() if n in ROW_RESULTS}) for p in self.parts)
        return replace(self, parts=tuple(parts))


def warm_up(device: torch.device) -> None:
    """Load cuBLAS on the device before the first job, so that its time does not include this."""
    import torch

    for dtype in (torch.float32, torch.float64):
        x = torch.ones(16, 16, device=device, dtype=dtype)
        torch.softmax(x @ x, -1)


def long_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for (batch, m, n) and (batch, n, x), with a long sum over n split into sections.

    A GPU computes the sections in parallel. Without them cuBLAS computes each (128, 128) block of a batched result on
    one multiprocessor, whatever the length of the sum.
    """
    n = a.shape[-1]
    if n <= SUM_SECTION or n % SUM_SECTION:
        return a @ b
    sections: Tensor = a.unflatten(-1, (-1, SUM_SECTION)).transpose(1, 2) @ b.unflatten(1, (-1, SUM_SECTION))
    return sections.sum(1)


def reference_dtype(case: Case, device: torch.device) -> torch.dtype:
    """Return the dtype of exact results: float64, or float32 for bf16, fp16 and fp8 on a GPU, where float64 is slow."""
    import torch

    return torch.float32 if device.type == "cuda" and case.dtype != "fp32" else torch.float64


def compute_reference(
    case: Case,
    inputs: Inputs,
    sample: RowSample,
    *,
    rows_only: bool = False,
    kept: Tensor | None = None,
    hard: bool = False,
    out: Tensor | None = None,
) -> Reference:
    """Compute the exact results on the sample, and eager's errors for the same inputs.

    With `rows_only` dk and dv are left out. `kept` is the dropout mask, (pairs, count, group, seqlen_k) bool, True
    where a probability stays; without it nothing is dropped. `rounding` is computed with dropout and where scores are
    large, with outliers in the case's data or with `hard` inputs (rounding.py).

    With the `out` of a kernel, (batch, seqlen_q, nheads, headdim_v), the gradients are the exact results of a fused
    backward that starts from this out: it uses dout out' as the row sums of P dP, which is right for the exact out
    only. Then eager's errors are not computed, and the reference is for `with_exact_of` only.
    """
    with pages.appended(case, inputs), plain_torch():
        return _compute_reference(case, inputs, sample, rows_only=rows_only, kept=kept, hard=hard, out=out)


def _compute_reference(
    case: Case,
    inputs: Inputs,
    sample: RowSample,
    *,
    rows_only: bool,
    kept: Tensor | None,
    hard: bool,
    out: Tensor | None,
) -> Reference:
    import torch

    s, precise = case.extent, reference_dtype(case, inputs.q.device)
    scores_in: tuple[torch.dtype | None, ...] = () if kept is None else (None,)
    if large := hard or case.data in ("outliers", "decaying"):
        scores_in = tuple(dict.fromkeys((torch.float32, torch_dtype(case))))
    scales = [fp8.descale(t) for t in (inputs.q, inputs.k, inputs.v)] if case.dtype == "fp8" else []
    places = None if inputs.page_table is None else pages.key_places(case, inputs.page_table)
    group, count = s.nheads // s.nheads_k, sample.rows.shape[1]
    step = max(1, CHUNK // (group * s.seqlen_k * max(count, s.headdim, s.headdim_v)))
    parts = []
    dsink = SinkGradient.zeros(s.nheads_k, group, precise, inputs.q.device)
    eager: dict[str, ErrorProfile] = {}
    size: dict[str, ErrorProfile] = {}
    rounding: list[dict[str, ErrorProfile]] = [{} for _ in scores_in] or [{}]
    of_maximum: dict[str, ErrorProfile] = {}
    for pairs in torch.arange(len(sample.batch), device=sample.batch.device).split(step):
        batch, head, rows = sample.batch[pairs], sample.head[pairs], sample.rows[pairs]
        q = rows_of(case, inputs.q, batch, head, rows)
        of_keys = zip((inputs.k, inputs.v), inputs.descale, strict=True)
        k, v = (_keys_of(t, places, batch, head, factor) for t, factor in of_keys)
        dout = rows_of(case, inputs.dout, batch, head, rows) if inputs.dout is not None else None
        options: dict[str, Any] = {"rows_only": rows_only, "kept": None if kept is None else kept[pairs]}
        if inputs.sink is not None:
            options["sink"] = inputs.sink.unflatten(0, (s.nheads_k, group))[head]
        if case.alibi:
            slopes = torch.tensor(alibi_slopes(s.nheads), dtype=torch.float64, device=head.device)
            options["slopes"] = slopes.unflatten(0, (s.nheads_k, group))[head]
        exact, deviations = _attend(
            case,
            rows,
            q,
            k,
            v,
            dout,
            _Arithmetic(precise, precise),
            scores_in=scores_in,
            found_out=None if out is None else rows_of(case, out, batch, head, rows),
            of_maximum=out is None and not scales,
            **options,
        )
        rounded = dict(exact)
        if out is None:
            at = _Arithmetic(torch_dtype(case), torch.float32)
            if scales:
                q, k, v = (fp8.round_to_e4m3(t, scale) for t, scale in zip((q, k, v), scales, strict=True))
                dout = None if dout is None else fp8.round_to_e5m2(dout)
                at = _Arithmetic(torch.float32, torch.float32, fp8_out=scales[2])  # in fp8, out has the scale of v
            rounded, _ = _attend(case, rows, q, k, v, dout, at, **options)
        if "dsink" in exact:
            dsink.add(head, exact.pop("dsink"), rounded["dsink"], exact.pop("dsink_terms"))
        for name in ("dq", "dk"):
            if (variance := exact.pop(f"{name}{OF_MAXIMUM}", None)) is not None:
                _add_profile(of_maximum, name, ErrorProfile.of(variance.sqrt()))
        for name, values in exact.items():
            _add_profile(eager, name, ErrorProfile.between(rounded[name], values))
            _add_profile(size, name, ErrorProfile.of(values))
        for added, found in zip(rounding, deviations, strict=False):
            for name, values in found.items():
                _add_profile(added, name, ErrorProfile.of(values))
        parts.append(ReferencePart(batch, head, rows, exact))
    in_dtype = {name: profile for name, profile in rounding[-1].items() if large and name != "dq"}
    terms = {}  # the largest terms of each result
    if case.has_backward:
        terms = {name: case.softmax_scale * float(t.abs().max()) for name, t in (("dq", inputs.k), ("dk", inputs.q))}
    of_dsink = dsink if case.sink else None
    return Reference(case, sample, tuple(parts), eager, size, terms, rounding[0], in_dtype, of_maximum, of_dsink)


def _keys_of(t: Tensor, places: Tensor | None, batch: Tensor, head: Tensor, factor: float) -> Tensor:
    """Return the keys or values of (batch entry, key head) pairs, (pairs, seqlen_k, d).

    `t` is (batch, seqlen_k, nheads_k, d), or a paged cache in which `places` (batch, seqlen_k) are the keys' indices.
    Values of an e4m3 cache are multiplied by `factor`, and returned in float32.
    """
    if places is None:
        return t[batch, :, head]
    rows: Tensor = t.flatten(0, 1)[places[batch], head[:, None]]
    return rows if rows.dtype.itemsize > 1 else rows.float() * factor


def _add_profile(found: dict[str, ErrorProfile], name: str, errors: ErrorProfile) -> None:
    found[name] = found[name].combined(errors) if name in found else errors


@dataclass(frozen=True)
class _Arithmetic:
    """The dtypes of a computation: results are rounded to `storage`, and products are summed in `accumulate`.

    Tensor cores compute in this way, and storage=bf16 gives the results of eager attention in bf16. With `fp8_out`, the
    factor of out in e4m3, the probabilities and the gradient of the scores are rounded to 8 bits before they are
    multiplied, and so is out where a backward reads it (core/fp8.py).
    """

    storage: torch.dtype
    accumulate: torch.dtype
    fp8_out: Tensor | None = None

    def kept(self, t: Tensor) -> Tensor:
        """Return a tensor rounded to `storage`, ready for a product."""
        return t.to(self.storage).to(self.accumulate)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """Return (pairs, count, group, x) times (pairs, x, y), rounded to `storage`."""
        product = long_product(a.to(self.accumulate).flatten(1, 2), b).to(self.storage)
        rows: Tensor = product.unflatten(1, (-1, a.shape[2]))
        return rows

    def summed(self, a: Tensor, b: Tensor) -> Tensor:
        """Return (pairs, group, keys, x), a product summed over count.

        The factors are (pairs, count, group, keys) and (pairs, count, group, x).
        """
        return a.to(self.accumulate).permute(0, 2, 3, 1) @ b.transpose(1, 2)


class _Chunks:
    """Results of chunks of rows, by name: ROW_RESULTS are joined in dimension 1, the others are summed."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Tensor]] = {}
        self._sums: dict[str, Tensor] = {}

    def add(self, found: Mapping[str, Tensor]) -> None:
        """Add the results of a chunk, whose tensors this may change in place."""
        for name, t in found.items():
            if name.removesuffix(OF_MAXIMUM) in ROW_RESULTS:
                self._rows.setdefault(name, []).append(t)
            else:
                self._sums[name] = self._sums[name].add_(t) if name in self._sums else t

    def together(self) -> dict[str, Tensor]:
        """Return the results of all chunks."""
        import torch

        return {**{name: torch.cat(parts, dim=1) for name, parts in self._rows.items()}, **self._sums}


def _attend(
    case: Case,
    rows: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None,
    at: _Arithmetic,
    *,
    rows_only: bool,
    kept: Tensor | None,
    sink: Tensor | None = None,
    slopes: Tensor | None = None,
    scores_in: Sequence[torch.dtype | None] = (),
    found_out: Tensor | None = None,
    of_maximum: bool = False,
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Compute attention of some key heads and their groups of query heads, in the dtypes of `at`.

    q: (pairs, count, group, headdim), k: (pairs, seqlen_k, headdim), v: (pairs, seqlen_k, headdim_v), dout and
    found_out: (pairs, count, group, headdim_v), sink and ALiBi's slopes: (pairs, group). `found_out` is the out of a
    kernel.

    Return (results, standard deviations from roundings for each of `scores_in`, see rounding.py). Results are "out";
    with dout also "dq", and "dk" and "dv" unless `rows_only`; with a sink also "dsink", (pairs, group), of these rows,
    and "dsink_terms", the squares by which the rounding of out enters it; with `of_maximum` also the variances of dq
    and dk from `maximum_variances`, by names with the suffix OF_MAXIMUM.
    """
    q, k, v = map(at.kept, (q, k, v))
    dropout_scale = 1 / (1 - case.dropout_p)  # factor on the probabilities that dropout keeps
    pairs, count, group, _ = q.shape
    found, variances = _Chunks(), [_Chunks() for _ in scores_in]
    step = max(1, CHUNK // (pairs * group * k.shape[1]))
    for start in range(0, count, step):
        part = slice(start, start + step)
        scores = scaled_scores(case, at.times(q[:, part], k.transpose(1, 2)))
        if slopes is not None:
            scores = scores - alibi_bias(case, rows[:, part], slopes).to(at.storage)
        p = probabilities(case, rows[:, part], scores, sink)
        p, of_sink = (p, None) if sink is None else (p[..., :-1], p[..., -1].to(at.accumulate))
        dropped = None if kept is None else ~kept[:, part]
        weights = p if dropped is None else (p * dropout_scale).masked_fill(dropped, 0.0)
        factors = weights if at.fp8_out is None else fp8.round_probabilities(weights)
        out = at.times(factors, v)
        found.add({"out": out})
        computed = Rows(q[:, part], scores, p, weights, out)
        if dout is not None:
            do_rows = at.kept(dout[:, part])
            dp = at.times(do_rows, v.transpose(1, 2)).to(at.accumulate)
            if dropped is not None:
                dp = (dp * dropout_scale).masked_fill(dropped, 0.0)
            computed = replace(computed, dout=do_rows, dp=dp)
            ds, pdp = _of_scores(case, computed, at, None if found_out is None else found_out[:, part])
            dq = at.times(ds, k)
            found.add({"dq": dq})
            computed = replace(computed, dq=dq)
            if not rows_only:
                found.add({"dk": at.summed(ds, computed.q), "dv": at.summed(factors, do_rows)})
            if of_sink is not None:
                terms = (of_sink * (do_rows * out).square().sum(-1).sqrt()).square()
                found.add({"dsink": (-of_sink * pdp).sum(1), "dsink_terms": terms.sum(1)})
            if of_maximum:
                by_maximum = maximum_variances(case, computed, k, rows_only=rows_only)
                found.add({f"{name}{OF_MAXIMUM}": t for name, t in by_maximum.items()})
        if scores_in:
            of_parts = rounding_variances(case, computed, k, v, scores_in=scores_in, rows_only=rows_only)
            for of_dtype, of_part in zip(variances, of_parts, strict=True):
                of_dtype.add(of_part)
    results = found.together()
    for name in results.keys() & {"dk", "dv"}:  # round for each query head, then sum over the group
        results[name] = at.kept(results[name]).sum(1).to(at.storage)
    if "dsink" in results:
        results["dsink"] = results["dsink"].to(at.storage)
    return results, [{name: t.clamp(min=0).sqrt() for name, t in of.together().items()} for of in variances]


def _of_scores(case: Case, rows: Rows, at: _Arithmetic, found_out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient of the products q k', (pairs, count, group, keys), and the row sums of P dP.

    With the out of a kernel the row sums are dout out', as in a fused backward.
    """
    assert rows.dout is not None
    assert rows.dp is not None
    p = rows.p.to(at.accumulate)
    if found_out is not None:
        pdp = (rows.dout * found_out.to(at.accumulate)).sum(-1)
    elif at.fp8_out is not None:
        pdp = (rows.dout * fp8.round_to_e4m3(rows.out, at.fp8_out)).sum(-1)
    else:
        pdp = (p * rows.dp).sum(-1)
    slope = case.softmax_scale * (1 - (rows.scores / case.softcap) ** 2 if case.softcap else 1)
    ds = (p * (rows.dp - pdp[..., None])).to(at.storage) * slope
    return ds if at.fp8_out is None else fp8.round_to_e5m2(ds), pdp


def scaled_scores(case: Case, products: Tensor) -> Tensor:
    """Return the scores of products q k', with the case's scale and softcap."""
    import torch

    scores = products * case.softmax_scale
    return case.softcap * torch.tanh(scores / case.softcap) if case.softcap else scores


def alibi_bias(case: Case, rows: Tensor, slopes: Tensor) -> Tensor:
    """Return ALiBi's bias, to subtract from the scores of query rows (pairs, count, group): (..., seqlen_k).

    `slopes` (pairs, group) are of the query heads; their dtype is the dtype of the computation.
    """
    import torch

    keys = torch.arange(case.extent.seqlen_k, device=rows.device)
    distance = (_key_bounds(case, rows.device).place[rows][..., None] - keys).abs_()
    bias: Tensor = slopes[:, None, :, None] * distance
    return bias


def probabilities(case: Case, rows: Tensor, scores: Tensor, sink: Tensor | None = None) -> Tensor:
    """Return the softmax over the keys that each query row sees, zeros for a row that sees no key.

    `scores` are (pairs, count, group, seqlen_k), `rows` (pairs, count, group) the numbers of the query rows. A `sink`
    (pairs, group) is one more score of each row; its probability comes last.
    """
    import torch

    bounds = _key_bounds(case, rows.device)
    if bounds.hide or case.mask:
        hidden = ~visible_keys(case, rows)
        scores = scores.masked_fill(hidden, float("-inf"))
    if sink is not None:
        beside = sink.to(scores)[:, None, :, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, beside], dim=-1), dim=-1)
    p = torch.softmax(scores, dim=-1)
    return p.masked_fill_(hidden.all(-1, keepdim=True), 0.0) if bounds.hide_all or case.mask else p


def visible_keys(case: Case, rows: Tensor) -> Tensor:
    """Return (..., seqlen_k) bool, True where a query row of `rows` (...), an index into the tensors, sees a key.

    Causal masks, windows and masks by name are aligned bottom-right in each sequence.
    """
    import torch

    keys = torch.arange(case.extent.seqlen_k, device=rows.device)
    bounds = _key_bounds(case, rows.device)
    seen = (keys >= bounds.first[rows][..., None]) & (keys <= bounds.last[rows][..., None])
    if not case.mask:
        return seen
    mask, blocks = masks.find(case.mask), masks.kept_blocks(case.mask, case.shape.seqlen_k, rows.device)
    by_name: Tensor = masks.sees(mask, seen, bounds.place[rows][..., None], keys, blocks)
    return by_name


def count_visible(case: Case, rows: Tensor) -> Tensor:
    """Return the number of keys that each query row of `rows` (...) sees."""
    import torch

    chunks = rows.flatten().split(max(1, CHUNK // case.extent.seqlen_k))
    return torch.cat([visible_keys(case, chunk).sum(-1) for chunk in chunks]).view_as(rows)


def count_pairs(case: Case, device: torch.device) -> int:
    """Return the number of visible (query, key) pairs in one head of a dense batch."""
    import torch

    return int(count_visible(case, torch.arange(case.shape.seqlen_q, device=device)).sum())


class _KeyBounds(NamedTuple):
    """The keys of each query, (seqlen_q,) int64 each; first > last where it sees none."""

    first: Tensor
    last: Tensor
    place: Tensor  # the key at the query's own position
    hide: bool  # whether any key is hidden from any query
    hide_all: bool  # whether any query sees no key


@lru_cache(maxsize=4)
def _key_bounds(case: Case, device: torch.device) -> _KeyBounds:
    """Return the bounds of the keys that each query sees, and the key at its position, as indices into the tensors."""
    import torch

    firsts, lasts, middles = [], [], []
    start = 0  # first key of the sequence
    for count, seqlen_q, seqlen_k in case.sequences if case.is_ragged else [(1, *case.sequences[0][1:])]:
        low, high = diagonals(seqlen_q, seqlen_k, case.causal, case.window_size)
        row = torch.arange(seqlen_q)
        starts = start + seqlen_k * torch.arange(count)[:, None]
        firsts.append((starts + (row + low).clamp(min=0)).flatten())
        lasts.append((starts + (row + high).clamp(max=seqlen_k - 1)).flatten())
        middles.append((starts + row + seqlen_k - seqlen_q).flatten())
        start += count * seqlen_k
    first, last, place = (torch.cat(found) for found in (firsts, lasts, middles))
    hide = bool((first > 0).any() or (last < case.extent.seqlen_k - 1).any())
    return _KeyBounds(
        first.to(device), last.to(device), place.to(device), hide=hide, hide_all=bool((first > last).any())
    )
