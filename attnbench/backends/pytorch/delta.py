"""`delta-torch`: gated delta rules in torch's operators, in float32, as transformers computes them without a library.

A prompt is computed in chunks of 64 tokens: within a chunk the rows that the tokens add to the state are the solution
of a triangular system (Yang et al., "Parallelizing linear transformers with the delta rule", arXiv 2406.06484). One
token, a step of decoding, is the definition itself (core/delta.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import BackendBase
from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.paste import Paste
from attnbench.backends.shared.delta import delta_prepared
from attnbench.core.backend import Prepared, Signature, Workspace
from attnbench.core.case import Case, Kind
from attnbench.core.delta import EPS
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

CHUNK = 64  # tokens
CODE = """\
# q, k: (batch, seqlen, nheads_k, headdim); v: (batch, seqlen, nheads, headdim_v); beta: (batch, seqlen, nheads)
# gate, a logarithm: (batch, seqlen, nheads, SIZE); state: (batch, nheads, headdim, headdim_v)
def delta_rule(q, k, v, gate, beta, state, scale=None):
    scale = scale or q.size(-1) ** -0.5
    q, k = (t.float() / (t.float().square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    q, k = (t.repeat_interleave(v.size(2) // q.size(2), dim=2) for t in (q, k))
    outs = []
    for t in range(q.size(1)):
        state = state * gate[:, t, :, :, None].exp()
        row = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, None] @ state)[:, :, 0])
        state = state + k[:, t, :, :, None] * row[:, :, None]
        outs.append(scale * (q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outs, dim=1).to(v.dtype), state


out, state = delta_rule(q, k, v, gate, beta, state{options})"""


class DeltaTorch(BackendBase):
    name = "delta-torch"
    kinds: ClassVar[tuple[Kind, ...]] = ("gdn", "kda")
    limits: ClassVar = TORCH_LIMITS
    paste = Paste(
        ("import torch",),
        {"gdn": CODE.replace("SIZE", "1"), "kda": CODE.replace("SIZE", "headdim")},
        scale="scale={scale}",
    )
    efficiency = 0.02

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        elements = s.batch * s.nheads * s.seqlen_k * (2 * s.headdim + 2 * s.headdim_v)
        kept = s.batch * s.nheads * -(-s.seqlen_k // CHUNK) * s.headdim * s.headdim_v if case.has_backward else 0
        return Workspace(nbytes=4 * (elements + kept), what="float32 copies of q, k and v", passes=3.0)

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(("(?i)mm|gem[mv]",), float32=True)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        def call(
            q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            return delta_rule(q, k, v, gate, beta, state, case.softmax_scale)

        return delta_prepared(case, inputs, call)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return out and the last state of a delta rule; the arguments have the shapes of core/delta.py."""
    import torch

    group = v.shape[2] // q.shape[2]
    normal = (t.float() * (t.float().square().sum(-1, keepdim=True) + EPS).rsqrt() for t in (q, k))
    of_q, of_k = (t.repeat_interleave(group, dim=2).transpose(1, 2) for t in normal)
    of_v, of_gate, of_beta = (
        (t if t.dim() == 4 else t[..., None]).transpose(1, 2).float() for t in (v, gate, beta)
    )  # (batch, nheads, seqlen, d)
    of_q = of_q * scale
    if state is None:
        state = of_v.new_zeros(*of_v.shape[:2], of_k.shape[-1], of_v.shape[-1])
    step = _token if q.shape[1] == 1 else _chunk
    outs = []
    parts = (t.split(CHUNK, dim=2) for t in (of_q, of_k, of_v, of_gate, of_beta))
    for q_part, k_part, v_part, gate_part, beta_part in zip(*parts, strict=True):
        out, state = step(q_part, k_part, v_part, gate_part, beta_part, state)
        outs.append(out)
    return torch.cat(outs, dim=2).transpose(1, 2).to(v.dtype), state


def _token(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return out of one token, and the state after it."""
    state = state * gate.exp().transpose(-1, -2)
    state = state + k.transpose(-1, -2) @ (beta * (v - k @ state))
    return q @ state, state


def _chunk(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return out of a chunk of tokens, and the state after it."""
    import torch

    total = gate.cumsum(-2)
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    if gate.shape[-1] == 1:
        decay = (total - total.transpose(-1, -2)).masked_fill(hidden, float("-inf")).exp()
        of_keys, of_queries = (t @ k.transpose(-1, -2) * decay for t in (k, q))
    else:  # one decay for each column: the differences of gates are taken first, as exp(-total) may be infinite
        between = (total.unsqueeze(-2) - total.unsqueeze(-3)).masked_fill(hidden[..., None], float("-inf")).exp()
        keys = k.unsqueeze(-3) * between
        of_keys, of_queries = ((keys @ t.unsqueeze(-1)).squeeze(-1) for t in (k, q))
    system = beta * of_keys.tril(-1)
    rows = torch.linalg.solve_triangular(
        system, beta * (v - (k * total.exp()) @ state), upper=False, unitriangular=True
    )
    out = (q * total.exp()) @ state + of_queries @ rows
    left = (total[..., -1:, :] - total).exp()
    return out, state * total[..., -1:, :].exp().transpose(-1, -2) + (k * left).transpose(-1, -2) @ rows
