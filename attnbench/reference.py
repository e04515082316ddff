"""The high-precision answer for a case, and the test that a kernel's results pass.

Attention is recomputed exactly: in float64 (on a GPU float32 without TF32 where the case is bf16 or fp16), in
chunks of query rows. Long sequences are checked on a sample, some (batch entry, key head) pairs and query rows, one
from each stretch of the sequence, first and last included. out and dq of a row depend on that row alone. dk and dv
sum over all rows, so for the check the rows outside the sample get dout = 0 (`check_inputs`): dk and dv of the
sampled heads are then exact for every key, at the cost of the sample. Every element of every result must be finite.

The criterion is flash-attention's (tests/test_flash_attn.py): the largest error is at most twice that of eager
attention in the case's dtype, plus a floor. Eager is the textbook's, softmax(q @ k.T * scale) @ v with every result
rounded and K and V repeated for grouped heads. The floor is twice the rounding of the largest value, as theirs, and
four times the error to expect of a float32 sum of n terms in any order, sqrt(n) units (Higham and Mary, "A new
approach to probabilistic rounding error analysis", 2019), for the arithmetic inside any kernel; it matters for fp32
alone. All this is applied to eight stretches of the sequence apart, since a causal mask makes early rows large and
would hide errors in late ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnbench.inputs import Inputs, torch_dtype
from attnbench.types import Accuracy, Case, TensorError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BUDGET = {"cuda": 2**28, "cpu": 2**23}  # score elements recomputed per check
CHUNK_BYTES = 2**28
STRETCHES = 8
FLOAT32_UNIT = 2.0**-24


@dataclass(frozen=True)
class Sample:
    """Which (batch entry, key head) pairs and which query rows are compared."""

    heads: tuple[tuple[int, int], ...]
    rows: Tensor  # int64, sorted
    all_rows: bool


@dataclass(frozen=True)
class Reference:
    """Per sampled head: results by name, "out"/"dq" (group, rows, d) and "dk"/"dv" (seqlen_k, d)."""

    case: Case
    sample: Sample
    exact: tuple[Mapping[str, Tensor], ...]
    eager: tuple[Mapping[str, Tensor], ...]
    terms: Mapping[str, float]  # size of what cancels in dq and dk, whose sum may be zero and its rounding not


def choose(case: Case, device: torch.device, seed: int = 0) -> Sample:
    """As many heads with all rows as the budget allows (at most 4), else two heads with one row per stretch."""
    import torch

    s = case.shape
    generator = torch.Generator().manual_seed(seed + 1)
    budget = BUDGET["cpu" if device.type == "cpu" else "cuda"]
    group = s.nheads // s.nheads_k
    pairs = s.batch * s.nheads_k
    per_head = group * s.seqlen_q * s.seqlen_k
    nheads = min(pairs, 4, budget // per_head)
    all_rows = nheads >= min(pairs, 2)
    if all_rows:
        rows = torch.arange(s.seqlen_q)
    else:
        nheads = min(pairs, 2)
        count = min(s.seqlen_q, max(64, budget // (nheads * group * s.seqlen_k)))
        edges = torch.linspace(0, s.seqlen_q, count + 1).long()
        rows = edges[:-1] + (torch.rand(count, generator=generator) * (edges[1:] - edges[:-1])).long()
        rows = torch.cat([torch.tensor([0, s.seqlen_q - 1]), rows]).unique()
    inner = torch.randperm(max(pairs - 2, 0), generator=generator)[: max(nheads - 2, 0)] + 1
    flat = sorted({0, pairs - 1, *inner.tolist()})[:nheads] if nheads > 1 else [pairs - 1]
    heads = tuple((i // s.nheads_k, i % s.nheads_k) for i in flat)
    return Sample(heads, rows.to(device), all_rows)


def warm(device: torch.device) -> None:
    """Loads what the check needs on the device, cuBLAS and autograd, so that no job pays for it."""
    import torch

    for dtype in (torch.float32, torch.float64):
        x = torch.ones(16, 16, device=device, dtype=dtype, requires_grad=True)
        out = torch.softmax(x @ x, -1)
        torch.autograd.grad(out, x, torch.ones_like(out))  # its first call imports sympy, for a second and a half


def check_inputs(case: Case, inputs: Inputs, sample: Sample) -> Inputs:
    """`inputs`, with dout = 0 in the sampled heads outside the sampled rows."""
    import torch

    if inputs.dout is None or sample.all_rows:
        return inputs
    group = case.shape.nheads // case.shape.nheads_k
    dout = inputs.dout.clone()
    hidden = torch.ones(case.shape.seqlen_q, dtype=torch.bool, device=dout.device)
    hidden[sample.rows] = False
    for b, h in sample.heads:
        dout[b, hidden, h * group : (h + 1) * group] = 0
    return replace(inputs, dout=dout)


def reference(case: Case, inputs: Inputs, sample: Sample) -> Reference:
    """The exact results on the sample, and those of eager attention in the case's dtype, for the same inputs."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # whatever the backend has set
    high = torch.float32 if inputs.q.device.type == "cuda" and case.dtype != "fp32" else torch.float64
    exact, eager = [], []
    for b, h in sample.heads:
        group = case.shape.nheads // case.shape.nheads_k
        heads = slice(h * group, (h + 1) * group)
        q = inputs.q[b, sample.rows, heads].transpose(0, 1)
        k, v = inputs.k[b, :, h], inputs.v[b, :, h]
        dout = inputs.dout[b, sample.rows, heads].transpose(0, 1) if inputs.dout is not None else None
        exact.append(_attend(case, sample.rows, q, k, v, dout, keep=high, accumulate=high))
        eager.append(_attend(case, sample.rows, q, k, v, dout, keep=torch_dtype(case), accumulate=torch.float32))
    torch.set_float32_matmul_precision(before)
    terms = {"dq": float(inputs.k.abs().max()), "dk": float(inputs.q.abs().max())}
    terms = {name: case.softmax_scale * size for name, size in terms.items()}
    return Reference(case, sample, tuple(exact), tuple(eager), terms)


def compare(reference: Reference, results: Mapping[str, Tensor], names: tuple[str, ...] | None = None) -> Accuracy:
    """Errors of `results`, (batch, seqlen, nheads, headdim) each, against the reference.

    Raises ValueError when a result is missing, has another shape or another dtype than the case's.
    """
    case, sample = reference.case, reference.sample
    group = case.shape.nheads // case.shape.nheads_k
    errors = {}
    for name in names or expected(case):
        result = _checked(case, name, results)
        parts = []
        for i, (b, h) in enumerate(sample.heads):
            heads = slice(h * group, (h + 1) * group)
            row_wise = name in ("out", "dq")
            ours = result[b, sample.rows, heads].transpose(0, 1) if row_wise else result[b, :, h].unsqueeze(0)
            exact, eager = reference.exact[i][name], reference.eager[i][name]
            parts.append((ours, exact.reshape(ours.shape), eager.reshape(ours.shape)))
        errors[name] = _worst(case, parts, reference.terms.get(name, 0.0))
    unwritten = tuple(name for name in expected(case) if not bool(results[name].isfinite().all()))
    return Accuracy(errors, rows=len(sample.rows), heads=len(sample.heads) * group, unwritten=unwritten)


def expected(case: Case) -> tuple[str, ...]:
    """The results that a pass must give. A backward's out comes from the forward it belongs to."""
    return ("out", "dq", "dk", "dv") if case.has_backward else ("out",)


def _checked(case: Case, name: str, results: Mapping[str, Tensor]) -> Tensor:
    s = case.shape
    d = s.headdim if name in ("dq", "dk") else s.headdim_v
    shape = (s.batch, s.seqlen_q, s.nheads, d) if name in ("out", "dq") else (s.batch, s.seqlen_k, s.nheads_k, d)
    if name not in results:
        raise ValueError(f"the backend returned no {name}")
    if type(results[name]).__module__.partition(".")[0] != "torch":  # a subclass may compare as it likes
        raise ValueError(f"{name} is a {type(results[name]).__name__}, expected a plain torch.Tensor")
    if tuple(results[name].shape) != shape:
        raise ValueError(f"{name} has shape {tuple(results[name].shape)}, expected {shape}")
    if results[name].dtype != torch_dtype(case):
        raise ValueError(f"{name} is {results[name].dtype}, expected {torch_dtype(case)}")
    return results[name]


def _worst(case: Case, parts: list[tuple[Tensor, Tensor, Tensor]], terms: float) -> TensorError:
    """The stretch of the sequence (dim 1) whose error is largest against its tolerance; NaN counts as largest."""
    import torch

    per_row: list[list[Tensor]] = [[], [], []]  # largest error, error of eager, value
    square_error, square = [], []
    for ours, exact, eager in parts:
        difference = ours.to(exact.dtype) - exact
        for rows, values in zip(per_row, (difference, eager.to(exact.dtype) - exact, exact), strict=True):
            rows.append(values.abs().amax(dim=(0, 2)))
        square_error.append(difference.double().square().sum())
        square.append(exact.double().square().sum())
    by_row = torch.stack([torch.stack(rows).amax(0) for rows in per_row])
    stretches = by_row.tensor_split(min(STRETCHES, max(1, by_row.shape[1] // 16)), dim=1)
    worst_by_stretch = torch.stack([stretch.amax(1) for stretch in stretches]).tolist()
    overall = max(terms, *(largest for _, _, largest in worst_by_stretch))
    ulp = torch.finfo(torch_dtype(case)).eps
    s = case.shape
    any_order = 4 * FLOAT32_UNIT * math.sqrt(max(s.seqlen_q, s.seqlen_k, s.headdim, s.headdim_v)) * overall
    found = []
    for error, eager_error, largest in worst_by_stretch:
        tolerance = 2 * eager_error + ulp * largest + any_order
        excess = math.inf if math.isnan(error) else error / max(tolerance, math.ulp(0.0))
        found.append((excess, error, eager_error, tolerance))
    _, error, eager_error, tolerance = max(found)
    total = float(torch.stack(square_error).sum()), float(torch.stack(square).sum())
    relative = math.sqrt(total[0] / total[1]) if total[1] else math.sqrt(total[0])
    return TensorError(max_error=error, eager_error=eager_error, tolerance=tolerance, relative=relative)


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
) -> dict[str, Tensor]:
    """Attention of one key head and its group of query heads, every intermediate rounded to `keep`.

    q: (group, rows, headdim), k: (seqlen_k, headdim), v: (seqlen_k, headdim_v), dout: (group, rows, headdim_v).
    Products are summed in `accumulate`, as tensor cores do, so keep=bf16 gives what eager attention gives in bf16.
    """
    import torch

    def mm(a: Tensor, b: Tensor) -> Tensor:
        return (a.to(accumulate) @ b.to(accumulate)).to(keep)

    q, k, v = q.to(keep), k.to(keep), v.to(keep)
    group = q.shape[0]
    dk = torch.zeros(group, *k.shape, dtype=accumulate, device=k.device)
    dv = torch.zeros(group, *v.shape, dtype=accumulate, device=v.device)
    outs, dqs = [], []
    step = max(1, CHUNK_BYTES // (group * k.shape[0] * 8))
    for start in range(0, len(rows), step):
        at = slice(start, start + step)
        q_rows = q[:, at]
        scores = mm(q_rows, k.T) * case.softmax_scale
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        hidden = ~visible(case, rows[at])
        p = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        p = p.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        outs.append(mm(p, v))
        if dout is None:
            continue
        do_rows = dout[:, at].to(keep)
        dp = mm(do_rows, v.T).to(accumulate)
        weights = p.to(accumulate)
        ds = (weights * (dp - (weights * dp).sum(-1, keepdim=True))).to(keep)
        if case.softcap:
            ds = ds * (1 - (scores / case.softcap) ** 2)
        ds = ds * case.softmax_scale
        dqs.append(mm(ds, k))
        dk += ds.transpose(1, 2).to(accumulate) @ q_rows.to(accumulate)
        dv += p.transpose(1, 2).to(accumulate) @ do_rows.to(accumulate)
    results = {"out": torch.cat(outs, dim=1)}
    if dout is not None:
        each = {"dk": dk.to(keep), "dv": dv.to(keep)}  # of each query head; then summed over the group
        results.update(dq=torch.cat(dqs, dim=1), **{n: t.to(accumulate).sum(0).to(keep) for n, t in each.items()})
    return results


def visible(case: Case, rows: Tensor) -> Tensor:
    """(rows, seqlen_k) bool: which keys each query row sees; causal and windows are aligned bottom-right."""
    import torch

    s = case.shape
    keys = torch.arange(s.seqlen_k, device=rows.device)
    middle = rows[:, None] + (s.seqlen_k - s.seqlen_q)
    left, right = case.window_size
    if case.causal:
        right = 0 if right is None else min(right, 0)
    seen = torch.ones(len(rows), s.seqlen_k, dtype=torch.bool, device=rows.device)
    if right is not None:
        seen &= keys <= middle + right
    if left is not None:
        seen &= keys >= middle - left
    return seen
