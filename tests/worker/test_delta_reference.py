"""The reference of delta rules is their definition, and its inputs are as models make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import judge
from attnbench.core import delta
from attnbench.core.case import Case, Shape
from attnbench.core.renewed_inputs import Renewal
from attnbench.judge import delta_check, inputs

CASE = Case(Shape(2, 150, 150, 4, 2, 16, 8), "fp32", "fwd", True, kind="gdn")
CASES = {
    f"{kind}-{direction}": replace(CASE, kind=kind, direction=direction)
    for kind in ("gdn", "kda")
    for direction in ("fwd", "fwd_bwd")
}


def by_definition(case: Case, given: Any) -> dict[str, Tensor]:
    """Return the results by the formula of core/delta.py, token by token in float64, one head after the other."""
    names = ("q", "k", "v", "gate", "beta")
    leaves = {name: given.values[name].double().requires_grad_(case.has_backward) for name in names}
    s = case.shape
    outs, states = {}, {}
    for b in range(s.batch):
        for h in range(s.nheads):
            group = s.nheads // s.nheads_k
            state = torch.zeros(s.headdim, s.headdim_v, dtype=torch.float64)
            state = state if case.has_backward else given.state[b, h].double()
            for t in range(s.seqlen_k):
                q, k = (x / (x.square().sum() + 1e-6).sqrt() for x in (leaves[n][b, t, h // group] for n in "qk"))
                v, gate, beta = (leaves[name][b, t, h] for name in names[2:])
                state = gate.exp().reshape(-1, 1) * state
                state = state + torch.outer(k, beta * (v - k @ state))
                outs[b, h, t] = (q * case.softmax_scale) @ state
            states[b, h] = state
    out = torch.stack([*outs.values()]).view(s.batch, s.nheads, s.seqlen_k, -1).transpose(1, 2)
    if not case.has_backward:
        return {"out": out, "state": torch.stack([*states.values()]).view(s.batch, s.nheads, s.headdim, -1)}
    found = torch.autograd.grad(out, list(leaves.values()), given.dout.double())
    return {"out": out.detach(), **{f"d{name}": t for name, t in zip(names, found, strict=True)}}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reference_is_the_recurrence(case: Case) -> None:
    """In float64 the chunks, of which the last has 22 tokens, give the results of the recurrence."""
    given = inputs.make(case, "cpu", seed=0)
    expected = by_definition(case, given)
    reference = delta_check.delta_reference(case, given, delta_check.choose_heads(case, given.q.device))
    assert reference.sample.whole
    assert expected.keys() == {*judge.expected_results(case)}
    for name, exact in reference.parts[0].exact.items():
        ours = reference.parts[0].select(case, name, expected[name])
        assert exact.shape == ours.shape
        torch.testing.assert_close(exact, ours, rtol=1e-9, atol=1e-11)


def test_a_sample_has_the_first_and_the_last_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", 3 * 2 * 150 * delta_check.CHUNK)
    sample = delta_check.choose_heads(CASE, torch.device("cpu"))
    assert sample.heads == 6
    assert (sample.batch[0], sample.head[0], sample.batch[-1], sample.head[-1]) == (0, 0, 1, 1)
    assert not sample.whole
    assert sample.seed is not None


@pytest.mark.parametrize("kind", ["gdn", "kda"])
def test_gates_and_beta_are_as_models_make_them(kind: Any) -> None:
    """Decays and beta are within 0 and 1; some heads forget within ten tokens, and others do not in fifty."""
    case = replace(CASE, kind=kind, shape=Shape(1, 2000, 2000, 32, 16, 16, 16), dtype="bf16")
    given = inputs.make(case, "cpu", seed=0)
    assert given.gate is not None
    assert given.beta is not None
    assert given.state is not None
    sizes = delta.shapes(case)
    for name, t in given.values.items():
        assert tuple(t.shape) == sizes[name]
        assert t.dtype == (torch.float32 if name in delta.DTYPES else torch.bfloat16)
    assert given.gate.max() < 0
    assert 0 <= given.beta.min() <= given.beta.max() <= 1
    memory = 1 / -given.gate.mean((0, 1)).flatten()  # tokens
    assert memory.min() < 10
    assert memory.max() > 50
    assert inputs.find_flaw(given) is None


def test_renewed_gates_are_the_same_in_another_order() -> None:
    """A renewal reverses tokens and heads of gates and beta, changes signs in the state, and is undone by a second."""
    given = inputs.make(CASE, "cpu", seed=0)
    before = inputs.clone(given)
    with Renewal(seed=3, count=1).of(CASE, given):
        for name, t in given.values.items():
            assert not torch.equal(t, before.values[name]), name
        assert given.gate is not None
        assert before.gate is not None
        assert torch.equal(given.gate, before.gate.flip(1, 2))
    assert inputs.first_changed(given, before) is None
