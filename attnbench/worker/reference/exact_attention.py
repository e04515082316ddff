"""Attention recomputed on a sample: exactly, and as eager attention computes it in the case's dtype.

Eager is the textbook's, softmax(q @ k.T * scale) @ v with every result rounded and K and V repeated for grouped heads.
Of eager only the errors are kept, by position in the sequence.

A fused backward knows one thing less well than eager. What softmax's gradient subtracts from each row of dP, the sum of
P dP, it takes as dout out' (Dao et al., "FlashAttention", 2022, appendix B.2), with out as the forward rounded it. The
row's D is then off by about rounding * |dout * out|, and dq and dk by what follows from that (`doubt`). It is largest
for a query with one key. There out is v itself without dropout, and nothing is rounded; with dropout it is v / (1 - p),
while eager's dq is exactly zero: so `doubt` is computed for cases with dropout, and allowed for.

No eager attention is done in fp8. In its place stands what honest fp8 attention cannot do without: q, k and v rounded
to e4m3 with one scale per tensor, and the probabilities as kernels round them (fp8.py); all else in float32. Of
standard normal inputs that leaves an error of 4 to 6 % of the output, root mean square, of which q and k cause up to
3.7 and v 2.6, as the probabilities do. The exact answer is of the inputs before they were rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnbench.core import fp8
from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.worker.reference.row_sample import RowSample, rows_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 2**25  # score elements computed at once
SUM_STRETCH = 2048  # terms of a sum
ROW_RESULTS = ("out", "dq")


@dataclass(frozen=True)
class ReferencePart:
    """Some of the pairs. `exact`: "out" and "dq" (pairs, count, group, d), "dk" and "dv" (pairs, seqlen_k, d)."""

    batch: Tensor
    head: Tensor
    rows: Tensor
    exact: Mapping[str, Tensor]

    def select(self, case: Case, name: str, result: Tensor) -> Tensor:
        """What corresponds to `exact[name]` in a result (batch, seqlen, heads, d)."""
        if name in ROW_RESULTS:
            return rows_of(case, result, self.batch, self.head, self.rows)
        return result[self.batch, :, self.head]


@dataclass(frozen=True)
class ErrorProfile:
    """How far one result is off, at each of its positions (rows of the sample in turn, or keys), over all heads."""

    largest: Tensor  # (positions,)
    square: Tensor  # (positions,) float64, summed

    @classmethod
    def between(cls, ours: Tensor, exact: Tensor) -> ErrorProfile:
        """Of tensors (pairs, positions, ...); NaN stays NaN."""
        return cls.of((ours.to(exact.dtype) - exact).flatten(2))

    @classmethod
    def of(cls, t: Tensor) -> ErrorProfile:
        import torch

        t = t.flatten(2)
        return cls(t.abs().amax((0, 2)), t.square().sum(2, dtype=t.dtype).sum(0, dtype=torch.float64))

    def combined(self, other: ErrorProfile) -> ErrorProfile:
        import torch

        return ErrorProfile(torch.maximum(self.largest, other.largest), self.square + other.square)


@dataclass(frozen=True)
class Reference:
    """The exact results on the sample, and per result the errors of eager attention and the exact values' size."""

    case: Case
    sample: RowSample
    parts: tuple[ReferencePart, ...]
    eager: Mapping[str, ErrorProfile]
    size: Mapping[str, ErrorProfile]
    cancelling_terms: Mapping[
        str, float
    ]  # size of what cancels in dq and dk, whose sum may be zero and its rounding not
    out_rounding: Mapping[
        str, ErrorProfile
    ]  # with dropout, the standard deviations that the rounding of out leaves in dq and dk

    def relative_eager_error(self, name: str) -> float:
        """Eager's error over the result's size, both root mean squares."""
        error, size = float(self.eager[name].square.sum()), float(self.size[name].square.sum())
        return math.sqrt(error / size) if size else 0.0

    def without_dk_dv(self) -> Reference:
        """Without dk and dv, which hold for the masked dout only and take as much memory as k and v."""
        parts = (replace(p, exact={n: t for n, t in p.exact.items() if n in ROW_RESULTS}) for p in self.parts)
        return replace(self, parts=tuple(parts))


def warm_up(device: torch.device) -> None:
    """Loads what the check needs on the device, cuBLAS and autograd, so that no job pays for it."""
    import torch

    for dtype in (torch.float32, torch.float64):
        x = torch.ones(16, 16, device=device, dtype=dtype, requires_grad=True)
        out = torch.softmax(x @ x, -1)
        torch.autograd.grad(out, x, torch.ones_like(out))  # its first call imports sympy, for a second and a half


def long_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of (batch, m, n) and (batch, n, x); a long sum over n in stretches, which a GPU then computes side by side.

    cuBLAS gives each (128, 128) of a batched result to one multiprocessor, however long its sum is.
    """
    n = a.shape[-1]
    if n <= SUM_STRETCH or n % SUM_STRETCH:
        return a @ b
    stretches: Tensor = a.unflatten(-1, (-1, SUM_STRETCH)).transpose(1, 2) @ b.unflatten(1, (-1, SUM_STRETCH))
    return stretches.sum(1)


def reference_dtype(case: Case, device: torch.device) -> torch.dtype:
    """In which exact results are computed: beyond the case's dtype by far, at the device's speed."""
    import torch

    return torch.float32 if device.type == "cuda" and case.dtype != "fp32" else torch.float64


def compute_reference(
    case: Case, inputs: Inputs, sample: RowSample, *, rows_only: bool = False, kept: Tensor | None = None
) -> Reference:
    """The exact results on the sample, and eager's errors for the same inputs; with `by_row` not dk and dv.

    `kept`: what dropout leaves, (pairs, count, group, seqlen_k) bool; without it nothing is dropped.
    """
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # whatever the backend has set
    s, precise = case.shape, reference_dtype(case, inputs.q.device)
    scales = [fp8.descale(t) for t in (inputs.q, inputs.k, inputs.v)] if case.dtype == "fp8" else []
    group, count = s.nheads // s.nheads_k, sample.rows.shape[1]
    step = max(1, CHUNK // (group * s.seqlen_k * max(count, s.headdim, s.headdim_v)))
    parts = []
    eager: dict[str, ErrorProfile] = {}
    size: dict[str, ErrorProfile] = {}
    doubt: dict[str, ErrorProfile] = {}
    for pairs in torch.arange(len(sample.batch), device=sample.batch.device).split(step):
        batch, head, rows = sample.batch[pairs], sample.head[pairs], sample.rows[pairs]
        q = rows_of(case, inputs.q, batch, head, rows)
        k, v = inputs.k[batch, :, head], inputs.v[batch, :, head]
        dout = rows_of(case, inputs.dout, batch, head, rows) if inputs.dout is not None else None
        options: dict[str, Any] = {"rows_only": rows_only, "kept": None if kept is None else kept[pairs]}
        exact, doubts = _attend(
            case,
            rows,
            q,
            k,
            v,
            dout,
            keep=precise,
            accumulate=precise,
            with_out_rounding=None not in (kept, dout),
            **options,
        )
        keep = torch_dtype(case)
        if scales:
            q, k, v = (fp8.round_to_e4m3(t, scale) for t, scale in zip((q, k, v), scales, strict=True))
            keep, options["round_probabilities"] = torch.float32, fp8.round_probabilities
        rounded, _ = _attend(case, rows, q, k, v, dout, keep=keep, accumulate=torch.float32, **options)
        for name, values in exact.items():
            _add_profile(eager, name, ErrorProfile.between(rounded[name], values))
            _add_profile(size, name, ErrorProfile.of(values))
        for name, values in doubts.items():
            _add_profile(doubt, name, ErrorProfile.of(values * rms_of_one_rounding(keep)))
        parts.append(ReferencePart(batch, head, rows, exact))
    torch.set_float32_matmul_precision(before)
    terms = {"dq": float(inputs.k.abs().max()), "dk": float(inputs.q.abs().max())}
    terms = {name: case.softmax_scale * value for name, value in terms.items()}
    return Reference(case, sample, tuple(parts), eager, size, terms, doubt)


def rms_of_one_rounding(dtype: torch.dtype) -> float:
    """Root mean square of the relative error of one rounding to it, at most."""
    import torch

    return torch.finfo(dtype).eps / math.sqrt(12)


def _add_profile(found: dict[str, ErrorProfile], name: str, errors: ErrorProfile) -> None:
    found[name] = found[name].combined(errors) if name in found else errors


def _attend(
    case: Case,
    rows: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None,
    *,
    keep: torch.dtype,
    accumulate: torch.dtype,
    rows_only: bool,
    kept: Tensor | None,
    with_out_rounding: bool = False,
    round_probabilities: Callable[[Tensor], Tensor] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Attention of some key heads and their groups of query heads, every intermediate rounded to `keep`.

    q: (pairs, count, group, headdim), k: (pairs, seqlen_k, headdim), v: (pairs, seqlen_k, headdim_v),
    dout: (pairs, count, group, headdim_v). Products are summed in `accumulate`, as tensor cores do, so keep=bf16 gives
    what eager attention gives in bf16. `weigh` rounds the probabilities further before they multiply v.

    Beside the results, with `doubtful`, the `doubt` of dq and dk for a relative error of 1 in out.
    """
    import torch

    q, k, v = (t.to(keep).to(accumulate) for t in (q, k, v))
    raised = 1 / (1 - case.dropout_p)  # what dropout leaves, so that the mean stays
    pairs, count, group, _ = q.shape
    keys = k.shape[1]

    def times(a: Tensor, b: Tensor) -> Tensor:
        """(pairs, count, group, x) by (pairs, x, y), rounded."""
        product: Tensor = long_product(a.to(accumulate).flatten(1, 2), b).to(keep).unflatten(1, (-1, group))
        return product

    def summed(a: Tensor, b: Tensor) -> Tensor:
        """(pairs, count, group, keys) and (pairs, count, group, x) over the count: (pairs, group, keys, x)."""
        return a.to(accumulate).permute(0, 2, 3, 1) @ b.transpose(1, 2)

    dk = torch.zeros(pairs, group, *k.shape[1:], dtype=accumulate, device=k.device) if not rows_only else None
    dv = torch.zeros(pairs, group, *v.shape[1:], dtype=accumulate, device=v.device) if not rows_only else None
    dk_doubt = torch.zeros_like(dk) if dk is not None and with_out_rounding else None
    outs, dqs, doubts = [], [], []
    step = max(1, CHUNK // (pairs * group * keys))
    for start in range(0, count, step):
        at = slice(start, start + step)
        scores = scaled_scores(case, times(q[:, at], k.transpose(1, 2)))
        p = probabilities(case, rows[:, at], scores)
        dropped = None if kept is None else ~kept[:, at]
        weights = p if dropped is None else (p * raised).masked_fill(dropped, 0.0)
        outs.append(times(round_probabilities(weights) if round_probabilities else weights, v))
        if dout is None:
            continue
        do_rows = dout[:, at].to(keep).to(accumulate)
        dp = times(do_rows, v.transpose(1, 2)).to(accumulate)
        if dropped is not None:
            dp = (dp * raised).masked_fill(dropped, 0.0)
        p = p.to(accumulate)
        slope = case.softmax_scale * (1 - (scores / case.softcap) ** 2 if case.softcap else 1)
        ds = (p * (dp - (p * dp).sum(-1, keepdim=True))).to(keep) * slope
        dqs.append(times(ds, k))
        if dk is not None and dv is not None:
            dk += summed(ds, q[:, at])
            dv += summed(weights, do_rows)
        if with_out_rounding:
            off = (do_rows * outs[-1]).norm(dim=-1, keepdim=True) * p * slope
            doubts.append(times(off, k).abs())
            if dk_doubt is not None:
                dk_doubt += summed(off.square(), q[:, at].square())
    results = {"out": torch.cat(outs, dim=1)}
    if dout is not None:
        results["dq"] = torch.cat(dqs, dim=1)
        for name, each in (("dk", dk), ("dv", dv)):
            if each is not None:  # of each query head; then summed over the group
                results[name] = each.to(keep).to(accumulate).sum(1).to(keep)
    doubt = {"dq": torch.cat(doubts, dim=1)} if doubts else {}
    if dk_doubt is not None:
        doubt["dk"] = dk_doubt.sum(1).sqrt()
    return results, doubt


def scaled_scores(case: Case, compare_checksums: Tensor) -> Tensor:
    """The scores of q k'."""
    import torch

    scores = compare_checksums * case.softmax_scale
    return case.softcap * torch.tanh(scores / case.softcap) if case.softcap else scores


def probabilities(case: Case, rows: Tensor, scores: Tensor) -> Tensor:
    """Of scores (pairs, count, group, seqlen_k), those of `rows` (pairs, count); 0 for a query that sees no key."""
    import torch

    hidden = ~visible_keys(case, rows)[:, :, None]
    p = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return p.masked_fill(hidden.all(-1, keepdim=True), 0.0)


def visible_keys(case: Case, rows: Tensor) -> Tensor:
    """(..., seqlen_k) bool: which keys each query row sees; causal and windows are aligned bottom-right."""
    import torch

    s = case.shape
    keys = torch.arange(s.seqlen_k, device=rows.device)
    middle = rows[..., None] + (s.seqlen_k - s.seqlen_q)
    left, right = case.window_size
    if case.causal:
        right = 0 if right is None else min(right, 0)
    seen = torch.ones(*rows.shape, s.seqlen_k, dtype=torch.bool, device=rows.device)
    if right is not None:
        seen &= keys <= middle + right
    if left is not None:
        seen &= keys >= middle - left
    return seen
