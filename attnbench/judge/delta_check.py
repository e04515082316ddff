"""The check of delta rules: the exact recurrence, the errors of a chunked computation in the dtype, and comparisons.

The recurrence of core/delta.py is computed in chunks of CHUNK tokens, which is exact algebra. With S the state before a
chunk, G[t] the sum of the gates of its tokens up to t, and u[t] the row that token t adds to the state:

    u[t] = beta[t] (v[t] - S' (exp(G[t]) k[t]) - sum over j < t of (k[t]' exp(G[t] - G[j]) k[j]) u[j])
    out[t] = scale (S' (exp(G[t]) q[t]) + sum over j <= t of (q[t]' exp(G[t] - G[j]) k[j]) u[j])

The u of a chunk are the solution of a triangular system. All exponents are at most 0. The same computation, with values
rounded to the dtype where kernels store them (q and k of length 1, the inverse of the system, the rows u, the state for
a product), has the place of eager attention in the tolerance (tolerance.py). Its error is about as large as a right
kernel's own, and eager attention's is two to three times a fused kernel's. So the root mean square may here be
TIMES_ROUNDED times as large, plus one rounding.

Every token depends on all earlier ones, so all tokens of a head are compared, and heads are left out where there are
many. Hard inputs, sums cut off by tensor cores and the search for wrong rows belong to a softmax, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.core.delta import EPS, result_shapes
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import Renewal
from attnbench.judge import row_sample
from attnbench.judge.exact_attention import ErrorProfile, Reference, ReferencePart, reference_dtype
from attnbench.judge.plain_torch import plain_torch
from attnbench.judge.result_check import SECOND_SHARE, ResultCheck
from attnbench.judge.row_sample import RowSample, draw_seed
from attnbench.judge.tolerance import compare

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 64  # tokens
TIMES_ROUNDED = 2.0
TOGETHER = 2**27  # most elements of the largest intermediate tensor that are computed at once


class DeltaResultCheck(ResultCheck):
    """The check of a delta rule: `compare` on the case's inputs, on renewed inputs, and on the case's inputs again."""

    hard = False
    is_screened = False

    def __init__(self, case: Case, given: Inputs, seed: int) -> None:
        """Compute the reference."""
        self.case, self.seed, self.inputs, self.dout_masked = case, seed, given, False
        self._reference = self._compute(given, choose_heads(case, given.q.device))

    def _compute(self, given: Inputs, sample: RowSample, *, rows_only: bool = False) -> Reference:
        return delta_reference(self.case, given, sample)

    def check_first(self, results: Mapping[str, Tensor]) -> Accuracy:
        return _compare(self._reference, results)

    def check_renewed(self, renewal: Renewal, fresh: Inputs, results: Mapping[str, Tensor]) -> Accuracy:
        return _compare(self.prepare_renewed(renewal, fresh)[1], results)

    def check_restored(self, results: Mapping[str, Tensor]) -> Accuracy:
        return _compare(self._reference, results)

    def prepare_renewed(self, renewal: Renewal, fresh: Inputs) -> tuple[RowSample, Reference]:
        if self._renewed is None or self._renewed[0] != renewal:
            sample = choose_heads(self.case, fresh.q.device, SECOND_SHARE)
            self._renewed = renewal, sample, self._compute(fresh, sample)
        return self._renewed[1:]


def _compare(reference: Reference, results: Mapping[str, Tensor]) -> Accuracy:
    return compare(reference, results, wide=dict.fromkeys(result_shapes(reference.case), TIMES_ROUNDED))


@dataclass(frozen=True)
class DeltaPart(ReferencePart):
    """The exact results of some (batch entry, key head) pairs, all tokens; `group` is value heads of a key head.

    out, dv, dgate and dbeta: (pairs, seqlen, group, d), d = 1 where there is one value; dq and dk: (pairs, seqlen,
    headdim); the state: (pairs, headdim, group, headdim_v).
    """

    def select(self, case: Case, name: str, result: Tensor) -> Tensor:
        return _select(case, name, result, self.batch, self.head)


def _select(case: Case, name: str, t: Tensor, batch: Tensor, head: Tensor) -> Tensor:
    """Return the part of an input or result that belongs to (batch entry, key head) pairs, as in `DeltaPart`."""
    nheads_k, part = case.shape.nheads_k, t
    if name.removeprefix("d") in ("q", "k"):
        part = t[batch, :, head]
    elif name == "state":
        part = t.unflatten(1, (nheads_k, -1))[batch, head].transpose(1, 2)
    else:
        wide = t if t.dim() == 4 else t[..., None]
        part = wide.unflatten(2, (nheads_k, -1))[batch, :, head]
    return part


def choose_heads(case: Case, device: torch.device, share: float = 1.0) -> RowSample:
    """Return all (batch entry, key head) pairs, or as many as `share` of SCORE_BUDGET allows, the first and the last.

    A pair costs as many score elements as its value heads have in chunks.
    """
    import torch

    s, seed = case.shape, draw_seed()
    pairs, group = s.batch * s.nheads_k, s.nheads // s.nheads_k
    budget = int(share * row_sample.SCORE_BUDGET["cpu" if device.type == "cpu" else "cuda"])
    count = min(pairs, max(2, budget // (group * max(s.seqlen_k, CHUNK) * CHUNK)))
    at = torch.arange(pairs)
    if count < pairs:
        drawn = torch.randperm(pairs - 2, generator=torch.Generator().manual_seed(seed))[: count - 2] + 1
        at = torch.cat([at[:1], drawn.sort().values, at[-1:]])
    rows = torch.arange(s.seqlen_q, device=device)[None, :, None].expand(count, -1, group)
    all_pairs = count == pairs
    batch, head = (at // s.nheads_k).to(device), (at % s.nheads_k).to(device)
    return RowSample(batch, head, rows, all_pairs, all_rows=True, seed=None if all_pairs else seed)


def delta_reference(case: Case, given: Inputs, sample: RowSample) -> Reference:
    """Compute the exact results of a delta rule on the sample, and the errors of a computation in the dtype."""
    import torch

    s, precise = case.shape, reference_dtype(case, given.q.device)
    group = s.nheads // s.nheads_k
    columns = s.headdim if case.kind == "kda" else 1
    largest = max(CHUNK**2 * columns, -(-s.seqlen_k // CHUNK) * s.headdim * s.headdim_v if case.has_backward else 0)
    parts, eager, size = [], dict[str, ErrorProfile](), dict[str, ErrorProfile]()
    with plain_torch():
        for pairs in torch.arange(len(sample.batch), device=given.q.device).split(max(1, TOGETHER // largest // group)):
            batch, head = sample.batch[pairs], sample.head[pairs]
            mine = {name: _select(case, name, t, batch, head) for name, t in given.values.items()}
            exact = _compute_results(case, mine, precise, lambda t: t)
            rounded = _compute_results(case, mine, torch.float32, lambda t: t.to(torch_dtype(case)).float())
            for name, values in exact.items():
                for found, profile in (
                    (eager, ErrorProfile.between(rounded[name], values)),
                    (size, ErrorProfile.of(values)),
                ):
                    found[name] = found[name].combined(profile) if name in found else profile
            parts.append(DeltaPart(batch, head, sample.rows[pairs], exact))
    return Reference(case, sample, tuple(parts), eager, size, {}, {}, {}, {})


def _compute_results(
    case: Case, given: Mapping[str, Tensor], dtype: torch.dtype, kept: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the results of some (batch entry, key head) pairs, in the form of `DeltaPart`.

    `given` has the inputs in this form. They are computed in `dtype`, and `kept` rounds values that a kernel stores.
    """
    import torch

    names = ("q", "k", "v", "gate", "beta")
    leaves = {name: given[name].to(dtype).requires_grad_(case.has_backward) for name in names}
    pairs, _, group, _ = leaves["v"].shape

    def of_heads(t: Tensor) -> Tensor:
        """Return a tensor (pairs, seqlen, group, d) as (pairs * group, seqlen, d)."""
        return t.transpose(1, 2).flatten(0, 1)

    def of_group(t: Tensor) -> Tensor:
        """Undo `of_heads`."""
        by_group: Tensor = t.unflatten(0, (pairs, group)).transpose(1, 2)
        return by_group

    with torch.enable_grad() if case.has_backward else torch.no_grad():
        q, k = (_unit(leaves[name]) for name in "qk")
        q, k = (kept(t).repeat_interleave(group, dim=0) for t in (q, k))
        v, gate, beta = (of_heads(leaves[name]) for name in names[2:])
        if case.has_backward:
            state = v.new_zeros(len(v), k.shape[-1], v.shape[-1])
        else:
            state = of_heads(given["state"].to(dtype))
        out, state = chunked(q * case.softmax_scale, k, v, gate, beta, state, kept)
        out = kept(of_group(out))
    if not case.has_backward:
        return {"out": out, "state": of_group(state)}
    found = torch.autograd.grad(out, list(leaves.values()), given["dout"].to(dtype))
    named = {f"d{name}": t if name == "gate" else kept(t) for name, t in zip(names, found, strict=True)}
    results = {"out": out.detach(), **named}
    return {name: results[name] for name in result_shapes(case)}


def _unit(t: Tensor) -> Tensor:
    """Return vectors divided by their length."""
    length: Tensor = (t.square().sum(-1, keepdim=True) + EPS).sqrt()
    return t / length


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    state: Tensor,
    kept: Callable[[Tensor], Tensor] = lambda t: t,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return out and the last state of the recurrence over tokens, computed in chunks.

    q (with its scale), k: (heads, seqlen, headdim), v: (heads, seqlen, headdim_v), gate: (heads, seqlen, 1 or headdim),
    beta: (heads, seqlen, 1), state: (heads, headdim, headdim_v). `kept` rounds values that a kernel stores.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    outs = []
    for parts in zip(*(t.split(chunk, dim=1) for t in (q, k, v, gate, beta)), strict=True):
        if torch.is_grad_enabled():  # the state alone is kept for the backward
            out, state = checkpoint(_chunk, parts, state, kept, use_reentrant=False, preserve_rng_state=False)
        else:
            out, state = _chunk(parts, state, kept)
        outs.append(out)
    return torch.cat(outs, dim=1), state


def _chunk(parts: tuple[Tensor, ...], state: Tensor, kept: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return out of one chunk, and the state after it; `parts` are its q, k, v, gate and beta."""
    import torch

    q, k, v, gate, beta = parts
    tokens = q.shape[1]
    total = gate.cumsum(1)
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)[..., None]
    decay = (total[:, :, None] - total[:, None]).masked_fill(later, float("-inf")).exp()  # (heads, t, j, 1 or headdim)

    def products(t: Tensor) -> Tensor:
        """Return t[i]' decay k[j] where j <= i, else 0."""
        if decay.shape[-1] == 1:
            return t @ k.transpose(1, 2) * decay[..., 0]
        return torch.einsum("hid,hjd,hijd->hij", t, k, decay)

    one = torch.eye(tokens, dtype=q.dtype, device=q.device)
    system = one + beta * products(k).tril(-1)
    inverse = kept(torch.linalg.solve_triangular(system, one.expand_as(system), upper=False, unitriangular=True))
    of_v, of_state = kept(inverse @ kept(beta * v)), kept(inverse @ kept(beta * k * total.exp()))
    u = of_v - of_state @ kept(state)
    out = (q * total.exp()) @ kept(state) + kept(products(q)) @ kept(u)
    left = (total[:, -1:] - total).exp()
    added = k.transpose(1, 2) @ kept(left * u) if left.shape[-1] == 1 else kept(left * k).transpose(1, 2) @ kept(u)
    return out, total[:, -1:].exp().transpose(1, 2) * state + added
