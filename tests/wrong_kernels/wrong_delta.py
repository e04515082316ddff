"""Gated delta rules, token by token, that are wrong in one way each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from measuring_device import Textbook
from torch import Tensor

from attnbench.backends.shared.delta import delta_prepared
from attnbench.core.backend import Inputs, Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.delta import EPS
from attnbench.core.machine import Device

CHUNK = 16  # tokens, after which `lost_state` forgets


@dataclass(frozen=True)
class Fault:
    """One fault of the recurrence; without one it is right."""

    lost_state: bool = False  # the state is not carried over the border of a chunk
    squared_gate: bool = False
    forgotten_beta: bool = False
    no_norm: bool = False  # q and k keep their length
    other_head: bool = False  # value head h takes q and k of head h % nheads_k
    ignored_state: bool = False  # the recurrence begins with zeros
    wrong_sign: bool = False  # a decay grows
    late_gate: bool = False  # the state decays after the token's row is added
    old_state: bool = False  # the state before the last token is returned
    last_token: bool = False  # the last token is left out of the state, and reads the state without it
    gate_of_first: bool = False  # all heads decay as the first
    stale_gate: bool = False  # the gate of the first call is used in later ones


@dataclass
class Delta(Textbook):
    """The recurrence with a fault."""

    fault: Fault = Fault()
    name = "delta"
    kinds = ("gdn", "kda")

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(float32=True)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        assert inputs.gate is not None
        first = inputs.gate.clone()

        def call(
            q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            used = gate + (first - gate).detach() if self.fault.stale_gate else gate
            return recurrence(self.fault, case.softmax_scale, q, k, v, used, beta, state)

        return delta_prepared(case, inputs, call)


def recurrence(
    fault: Fault, scale: float, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return out and the last state, by the definition of core/delta.py in float32 with a fault."""
    dtype, nheads, nheads_k = v.dtype, v.shape[2], q.shape[2]
    q, k, v, beta = (t.float() for t in (q, k, v, beta))
    if not fault.no_norm:
        q, k = (t / (t.square().sum(-1, keepdim=True) + EPS).sqrt() for t in (q, k))
    heads = torch.arange(nheads, device=q.device)
    heads = heads % nheads_k if fault.other_head else heads // (nheads // nheads_k)
    q, k = q[:, :, heads] * scale, k[:, :, heads]
    gate = gate if gate.dim() == 4 else gate[..., None]
    if fault.gate_of_first:
        gate = gate[:, :, :1].expand_as(gate)
    decay = (gate * (2 if fault.squared_gate else -1 if fault.wrong_sign else 1)).exp()
    zeros = q.new_zeros(q.shape[0], nheads, q.shape[-1], v.shape[-1])
    state = zeros if state is None or fault.ignored_state else state
    outs = []
    for t in range(q.shape[1]):
        if fault.lost_state and t and t % CHUNK == 0:
            state = zeros
        before, last = state, t == q.shape[1] - 1
        state = state if fault.late_gate else state * decay[:, t, :, :, None]
        seen = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        row = (0 * beta + 1 if fault.forgotten_beta else beta)[:, t, :, None] * (v[:, t] - seen)
        if not (fault.last_token and last):
            state = state + k[:, t, :, :, None] * row[:, :, None]
        state = state * decay[:, t, :, :, None] if fault.late_gate else state
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
        state = before if fault.old_state and last else state
    return torch.stack(outs, dim=1).to(dtype), state


def faults() -> dict[str, Fault]:
    """Return the faults by name."""
    return {name: replace(Fault(), **{name: True}) for name in Fault.__dataclass_fields__}
