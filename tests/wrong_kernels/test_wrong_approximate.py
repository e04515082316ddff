"""Planted faults in approximate backends, each wrong by the method's own definition or scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import judge
from attnbench.backends.approximate import block_topk, streaming
from attnbench.backends.approximate.base import Approximate
from attnbench.backends.approximate.block_topk import BlockTopk
from attnbench.backends.approximate.linformer import Linformer
from attnbench.backends.approximate.reformer import Reformer
from attnbench.backends.approximate.streaming import Streaming
from attnbench.backends.base import autograd_prepared
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Record
from attnbench.judge import inputs
from attnbench.worker.serve import Worker

CASE = Case(Shape(1, 200, 200, 2, 1, 16, 16), "fp32", "fwd_bwd")
CAUSAL = replace(CASE, causal=True)


def checked(method: Approximate, case: Case) -> Accuracy:
    given = inputs.make(case, "cpu", seed=0)
    check = judge.make_check(case, given, 0, method)
    prepared = method.prepare(case, given)
    return check.check_first(prepared.canonical(prepared.launch()))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("method", [Linformer(), Streaming(), Reformer(), BlockTopk()], ids=lambda m: m.name)
def test_a_right_one_is_right(method: Approximate, dtype: Any) -> None:
    case = replace(CAUSAL if isinstance(method, Streaming) else CASE, dtype=dtype)
    accuracy = checked(method, case)
    assert accuracy.ok, accuracy.problem()
    assert {*accuracy.errors} == {"out", "dq", "dk", "dv"}


@pytest.mark.parametrize("method", [Linformer(), Streaming(), Reformer(), BlockTopk()], ids=lambda m: m.name)
def test_gradients_of_many_query_heads_are_summed_in_float32(method: Approximate) -> None:
    """Gradients of many query heads are summed in float32; torch's sums in bf16 are off by twice the tolerance."""
    case = Case(Shape(1, 320, 320, 16, 1, 32, 32), "bf16", "fwd_bwd", isinstance(method, Streaming))
    accuracy = checked(method, case)
    assert accuracy.ok, accuracy.problem()
    assert all(error.max_error < 0.8 * error.tolerance for error in accuracy.errors.values())


@pytest.mark.parametrize("method", [Reformer(), BlockTopk()], ids=lambda m: m.name)
def test_a_choice_of_another_query_head_is_wrong(method: Approximate, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = type(method).selected_for
    monkeypatch.setattr(type(method), "selected_for", lambda self, case, of_pair, head: plain(self, case, of_pair, 0))
    assert "out is off" in checked(method, CASE).problem()


def selects(change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> Approximate:
    """Return block top-k with changed results."""

    class Changed(BlockTopk):
        def prepare(self, case: Case, inputs: Inputs) -> Prepared:
            prepared = super().prepare(case, inputs)
            return replace(prepared, canonical=lambda raw: change(prepared.canonical(raw)))

    return Changed()


def renamed(change: Callable[[Tensor], Tensor]) -> Approximate:
    """Return block top-k that names another selection than its own."""
    return selects(lambda results: {**results, "selected": change(results["selected"])})


class NoScale(Streaming):
    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        return super().prepare(replace(case, scale=1.0), inputs)


class OtherProjection(Linformer):
    """A method whose definition projects by another matrix than its launch."""

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        return super().definition(case, q, k.flip(0), v.flip(0), selected)


class NoGradientOfKeys(Linformer):
    """A method whose backward ignores the projection of keys: dk is of the scores of the last queries only."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k = torch.cat([k[:, :-1], k[:, -1:].detach()], dim=1)
            by_head = (self.definition(case, of_head, k[0, :, 0], v[0, :, 0], None) for of_head in q[0].unbind(1))
            return torch.stack([*by_head], dim=1)[None]

        return autograd_prepared(case, inputs, call)


FAULTS = {
    "a selection that is not its own": (renamed(lambda chosen: (chosen + 1) % 4), CASE, "it selected a candidate"),
    "a block twice": (renamed(lambda chosen: chosen.repeat_interleave(2, -1)), CASE, "a candidate twice"),
    "no such block": (renamed(lambda chosen: chosen + 4), CASE, "but there are 4, counted from 0"),
    "no selection": (selects(lambda all: {n: t for n, t in all.items() if n != "selected"}), CASE, "does not name"),
    "no softmax scale": (NoScale(), CAUSAL, "out is off"),
    "a definition that disagrees": (OtherProjection(), CASE, "out is off"),
    "a backward without the last key": (NoGradientOfKeys(), CASE, "dk is off by .*, in key 199"),
}


@pytest.mark.parametrize(("method", "case", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(method: Approximate, case: Case, reason: str) -> None:
    accuracy = checked(method, case)
    assert not accuracy.ok
    assert re.search(reason, accuracy.problem()), accuracy.problem()


def test_the_blocks_of_the_lowest_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection of the lowest scores is wrong, whether it is named or the right one is named instead."""
    given = inputs.make(CASE, "cpu", seed=0)
    check = judge.make_check(CASE, given, 0, BlockTopk())
    right = BlockTopk().prepare(CASE, given)
    named = right.canonical(right.launch())
    assert check.check_first(named).ok
    scores = block_topk.block_scores
    monkeypatch.setattr(block_topk, "block_scores", lambda *args: -scores(*args))
    prepared = BlockTopk().prepare(CASE, given)
    wrong = prepared.canonical(prepared.launch())
    monkeypatch.undo()
    assert re.search("below that of one left out", check.check_first(wrong).problem())
    assert re.search("out is off", check.check_first({**wrong, "selected": named["selected"]}).problem())


LONG = Case(Shape(1, 2048, 2048, 2, 1, 16, 16), "fp32", "fwd")  # block top-k keeps 4 of 32 blocks, causal 5
LONG_CAUSAL = replace(LONG, causal=True)


@pytest.mark.parametrize("kept", [1, 5])
def test_another_number_of_blocks_than_the_definition_selects(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of blocks than the definition's is wrong, even with the largest scores and named truthfully."""
    given = inputs.make(LONG, "cpu", seed=0)
    right = BlockTopk().prepare(LONG, given)
    named = right.canonical(right.launch())
    monkeypatch.setattr(block_topk, "kept_blocks", lambda case: kept)
    prepared = BlockTopk().prepare(LONG, given)
    wrong = prepared.canonical(prepared.launch())
    monkeypatch.undo()
    check = judge.make_check(LONG, given, 0, BlockTopk())
    assert check.check_first(named).ok
    blocks = "1 candidate" if kept == 1 else f"{kept} candidates"
    assert f"it selected {blocks} for one query, but its definition selects 4" in check.check_first(wrong).problem()
    assert "out is off" in check.check_first({**wrong, "selected": named["selected"]}).problem()


class TopKeys(Approximate):
    """A person's own method, in which each query attends to the keys of the three largest scores."""

    name = "top-keys"
    what = "attention to three keys"

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        found = q.transpose(0, 1) @ k.T * case.softmax_scale
        after = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        return found.masked_fill(after, float("-inf")) if case.causal else found

    def selected_count(self, case: Case) -> int | None:
        return 3

    def selected_for(self, case: Case, selected: Tensor, head: int) -> Tensor:
        return selected[head]

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        assert selected is not None
        chosen = torch.zeros(len(q), len(k) + 1, dtype=torch.bool)
        return chosen.scatter(1, selected.masked_fill(selected < 0, len(k)), True)[rows, :-1]


class Undeclared(TopKeys):
    def selected_count(self, case: Case) -> int | None:
        return Approximate.selected_count(self, case)


def problem_of(method: Approximate, case: Case, change: Callable[[Tensor], Tensor]) -> str:
    """Return the fault of a launch that computes and names a changed selection."""
    given = inputs.make(case, "cpu", seed=0)
    q, k, v = given.q[0], given.k[0, :, 0], given.v[0, :, 0]
    scores = method.scores(case, q, k)
    assert scores is not None
    best = scores.topk(method.selected_count(case) or 3)
    chosen = change(best.indices.masked_fill(best.values.isneginf(), -1))
    heads = range(q.shape[1])
    outs = [method.definition(case, q[:, head], k, v, method.selected_for(case, chosen, head)) for head in heads]
    results = {"out": torch.stack(outs, dim=1)[None], "selected": chosen[None, None]}
    return judge.make_check(case, given, 0, method).check_first(results).problem()


def replaced(place: int, by: Callable[[Tensor], Tensor | int]) -> Callable[[Tensor], Tensor]:
    """Return a change of the last query's selection at a place."""

    def change(chosen: Tensor) -> Tensor:
        chosen = chosen.clone()
        chosen[..., -1, place] = by(chosen[..., -1, :])
        return chosen

    return change


def with_hidden(chosen: Tensor) -> Tensor:
    """Return a selection filled up with hidden candidates, like the indices of topk."""
    return torch.where(chosen < 0, torch.arange(20, 20 + chosen.shape[-1]), chosen)


def with_a_hidden_one_for_one_that_is_seen(chosen: Tensor) -> Tensor:
    chosen = chosen.clone()
    chosen[..., 9, -1] = 10
    return chosen


SELECTIONS = {
    "right": (lambda chosen: chosen, ""),
    "in another order": (lambda chosen: chosen.flip(-1), ""),
    "more room": (lambda chosen: torch.nn.functional.pad(chosen, (1, 2), value=-1), ""),
    "one alone": (lambda chosen: chosen[..., :1], "it selected 1 candidate for one query, but its definition selects"),
    "one too few, for one query": (replaced(-1, lambda _: -1), "for one query, but its definition selects"),
    "the first twice": (replaced(-1, lambda of_query: of_query[..., 0]), "it selected a candidate twice for one query"),
}
HIDDEN = {
    "hidden ones where there are fewer": with_hidden,
    "a hidden one for one that is seen": with_a_hidden_one_for_one_that_is_seen,
}


@pytest.mark.parametrize(("change", "reason"), SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize(
    ("method", "case"),
    [(BlockTopk(), LONG_CAUSAL), (TopKeys(), CASE)],
    ids=["block-topk causal", "own"],
)
def test_what_is_selected(method: Approximate, case: Case, change: Callable[[Tensor], Tensor], reason: str) -> None:
    problem = problem_of(method, replace(case, direction="fwd"), change)
    assert reason in problem if reason else not problem, problem


@pytest.mark.parametrize("change", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize(
    ("method", "case"), [(BlockTopk(), LONG_CAUSAL), (TopKeys(), CAUSAL)], ids=["block-topk", "own"]
)
def test_a_hidden_candidate(method: Approximate, case: Case, change: Callable[[Tensor], Tensor]) -> None:
    problem = problem_of(method, replace(case, direction="fwd"), change)
    assert "it selected a candidate that is hidden from the query" in problem


def test_a_method_that_does_not_say_how_many_it_selects() -> None:
    problem = problem_of(Undeclared(), replace(CASE, direction="fwd"), lambda chosen: chosen)
    assert "its definition does not say how many candidates it selects (selected_count)" in problem


def test_a_window_that_is_one_key_short(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs.make(CAUSAL, "cpu", seed=0)
    sinks, window = streaming.sinks_and_window(CAUSAL)
    monkeypatch.setattr(streaming, "sinks_and_window", lambda case: (sinks, window - 1))
    prepared = Streaming().prepare(CAUSAL, given)
    monkeypatch.undo()
    accuracy = judge.make_check(CAUSAL, given, 0, Streaming()).check_first(prepared.canonical(prepared.launch()))
    assert not accuracy.ok


POLICY = Policy(l2="warm", warmup_s=0.001, min_samples=4, min_seconds=0.0, max_seconds=0.01, target=1.0)


@pytest.mark.parametrize("method", [BlockTopk(), NoScale()], ids=["right", "wrong"])
def test_a_measured_cell(method: Approximate) -> None:
    """A whole measured cell is ok: after timing on other inputs, and on the old ones again."""
    worker, device = Worker(), Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
    worker.backend = method
    record = worker.run(Job(CAUSAL, "own", 0, Forecast(1.0, 0.1, 0)), POLICY, device)
    if isinstance(method, NoScale):
        assert record.status == "wrong"
        assert (record.reason or "").startswith("out is off")
        return
    assert record.status == "ok", record.reason
    assert record.approximation is not None
    assert record.approximation.what == method.what
    assert record.approximation.mass_kept is not None
    assert 0 < record.approximation.error < 2
    assert 0.2 < record.approximation.mass_kept < 1
    assert any("no hard inputs" in note for note in record.notes)
    assert from_json(Record, to_json(record)) == record


@pytest.mark.parametrize("case", [CASE, CAUSAL], ids=["full", "causal"])
def test_what_attends_to_every_key_keeps_all_mass(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_topk, "kept_blocks", lambda case: 4)
    given = inputs.make(case, "cpu", seed=0)
    check = judge.make_check(case, given, 0, BlockTopk())
    prepared = BlockTopk().prepare(case, given)
    assert check.check_first(prepared.canonical(prepared.launch())).ok
    assert check.approximation is not None
    assert check.approximation.mass_kept == pytest.approx(1.0)
    assert check.approximation.error < 1e-5
