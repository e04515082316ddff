"""Gated delta rules, the linear attention of hybrid models: definition, inputs, results (`Case.kind`).

`gdn` is the gated delta rule (Yang, Kautz and Hatamizadeh, "Gated delta networks", arXiv 2412.06464; Qwen3-Next), `kda`
Kimi Delta Attention (Kimi Team, "Kimi Linear", arXiv 2510.26692). Each value head has a state S, (headdim, headdim_v),
which is changed by each token t. q and k are first divided by their length, sqrt(sum of squares + EPS):

    S = exp(gate[t]) S
    S = S + k[t] (beta[t] (v[t] - k[t]' S))'
    out[t] = scale q[t]' S

with scale = 1 / sqrt(headdim). The gate of kda has an element for each row of S, the gate of gdn one for all. Value
head h has the q and k of head h // (nheads // nheads_k).

    q, k       (batch, seqlen, nheads_k, headdim)
    v, out     (batch, seqlen, nheads, headdim_v)
    gate       (batch, seqlen, nheads), of kda (batch, seqlen, nheads, headdim); float32, the logarithm of a decay
    beta       (batch, seqlen, nheads)
    state      (batch, nheads, headdim, headdim_v), float32

A forward, a part of a prompt or a step of decoding, takes a state and has the state after its last token as a result. A
backward, which is training, starts from a state of zeros; its results are out, dq, dk, dv, dgate and dbeta.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnbench.core.case import Case

EPS = 1e-6
DTYPES: Mapping[str, str] = dict.fromkeys(("gate", "state", "dgate"), "float32")  # the same in cases of every dtype


def shapes(case: Case) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the inputs and results of a delta rule by name; a gradient has the shape of its input."""
    s = case.shape
    found: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "k"), (s.batch, s.seqlen_k, s.nheads_k, s.headdim))
    found |= dict.fromkeys(("v", "out", "dout"), (s.batch, s.seqlen_k, s.nheads, s.headdim_v))
    found["beta"] = found["gate"] = (s.batch, s.seqlen_k, s.nheads)
    if case.kind == "kda":
        found["gate"] += (s.headdim,)
    found["state"] = (s.batch, s.nheads, s.headdim, s.headdim_v)
    return found


def result_shapes(case: Case) -> Mapping[str, tuple[int, ...]]:
    """Return the names of the results of a delta rule, with their shapes."""
    known = shapes(case)
    if not case.has_backward:
        return {name: known[name] for name in ("out", "state")}
    return {"out": known["out"], **{f"d{name}": known[name] for name in ("q", "k", "v", "gate", "beta")}}


def input_names(case: Case) -> tuple[str, ...]:
    """Return the names of the tensors that a delta rule reads."""
    return ("q", "k", "v", "gate", "beta", "dout" if case.has_backward else "state")
