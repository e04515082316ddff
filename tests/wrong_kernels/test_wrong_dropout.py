"""Lies about dropout. Caught by the mask that is read off the launches, and by the exact answer for that mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import wrong_dropout
from measuring_device import MeasuringDevice, case

from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.worker import reference

QUICK = Policy(l2="warm", warmup_s=0.0, min_samples=4, max_samples=4, min_seconds=0.0)
SAMPLED = 2**12  # score elements that the check may recompute: 16 rows of each head
BUDGETS = pytest.mark.parametrize("budget", [2**23, SAMPLED], ids=["all rows", "sampled"])
DIRECTIONS = pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])


def dropping(direction: str = "fwd", p: float = 0.5, **sizes: Any) -> Case:
    return replace(case(direction, **{"seqlen": 128, "batch": 1, **sizes}), dropout_p=p)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda budget: monkeypatch.setitem(reference.SCORE_BUDGET, "cpu", budget)


def judged(steady_cpu: MeasuringDevice, attention: wrong_dropout.Attention, which: Case) -> Any:
    return steady_cpu.measure(wrong_dropout.Dropping(attention), which, QUICK)


@BUDGETS
@DIRECTIONS
@pytest.mark.parametrize("how", [wrong_dropout.torch_dropout, wrong_dropout.in_bytes])
def test_the_honest_one_passes(steady_cpu: MeasuringDevice, limit: Any, budget: int, direction: str, how: Any) -> None:
    """No lie: torch's random numbers, or bytes of them as flash-attn has them; exact, and nothing to say."""
    limit(budget)
    record = judged(steady_cpu, how, dropping(direction, p=0.1, causal=True, dtype="bf16"))
    assert record.status == "ok", record.reason
    assert not any("dropout" in note for note in record.notes)


@DIRECTIONS
def test_numbers_of_its_own(steady_cpu: MeasuringDevice, direction: str) -> None:
    """No lie: a mask that cannot be drawn again. Right by its statistics, which is said; a backward alone is exact."""
    record = judged(steady_cpu, wrong_dropout.OwnNumbers(), dropping(direction, p=0.1))
    assert record.status == "ok", record.reason
    assert any("checked by their statistics" in note for note in record.notes) == (direction != "bwd")


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (wrong_dropout.ignored, "keeps 100.00% of the probabilities where 50.00% are asked for"),
        (wrong_dropout.wrong_p, "where 50.00% are asked for"),
        (wrong_dropout.wrong_share, "where 50.00% are asked for"),
        (wrong_dropout.no_rescale, "out is off by"),
        (wrong_dropout.before_softmax, "out is off by"),
        (wrong_dropout.on_output, "out is off by"),
        (wrong_dropout.one_for_all_heads, "the same probabilities in several heads"),
        (wrong_dropout.one_for_all_rows, "the same probabilities in several query rows"),
        (wrong_dropout.one_for_all_tiles, "the same probabilities every 64 keys"),
        (wrong_dropout.one_for_all_calls, "the same probabilities in every call"),
    ],
)
def test_another_dropout(steady_cpu: MeasuringDevice, kernel: Any, says: str) -> None:
    """Lie: it drops nothing, too many, other things, or the same again and again. Caught as wrong, with the reason."""
    record = judged(steady_cpu, kernel, dropping(seqlen=256, nheads=2, nheads_k=2))
    assert record.status == "wrong"
    assert says in str(record.reason)


@BUDGETS
@pytest.mark.parametrize("own", [False, True], ids=["drawn anew", "always one"])
@pytest.mark.parametrize("direction", ["bwd", "fwd_bwd"])
def test_a_backward_with_another_mask(
    steady_cpu: MeasuringDevice, limit: Any, budget: int, own: bool, direction: str
) -> None:
    """Lie: the forward drops some probabilities, the backward others. Caught as wrong: out is not dv's."""
    limit(budget)
    record = judged(steady_cpu, wrong_dropout.AnotherBackward(own=own), dropping(direction))
    assert record.status == "wrong"
    assert "out is off by" in str(record.reason)


@pytest.mark.parametrize("kernel", [wrong_dropout.ignored, wrong_dropout.no_rescale, wrong_dropout.wrong_share])
def test_another_dropout_in_a_backward(steady_cpu: MeasuringDevice, kernel: Any) -> None:
    """Lie: as above, in the gradients too. Caught as wrong."""
    assert judged(steady_cpu, kernel, dropping("bwd")).status == "wrong"


@pytest.mark.parametrize("direction", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ({"rescale": 1.0}, "is off by"),
        ({"wrong_p": 0.15}, "where 90.00% are asked for"),
    ],
    ids=str,
)
def test_numbers_of_its_own_that_are_wrong(steady_cpu: MeasuringDevice, kernel: Any, says: str, direction: str) -> None:
    """Lie: the same, where the mask cannot be drawn again. Caught as wrong: one launch shows its own mask."""
    record = judged(steady_cpu, wrong_dropout.OwnNumbers(**kernel), dropping(direction, p=0.1))
    assert record.status == "wrong"
    assert says in str(record.reason)


def test_more_keys_than_launches_show(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lie, and a lie about the keys that no launch shows: right, and wrong by the variance of its output."""
    monkeypatch.setattr("attnbench.worker.reference.dropout_mask.LAUNCHES", 4)
    which = dropping(p=0.1)
    record = judged(steady_cpu, wrong_dropout.torch_dropout, which)
    assert record.status == "ok", record.reason
    assert any("8 launches would show it" in note for note in record.notes)

    def only_the_first(q: Any, k: Any, v: Any, given: Case) -> Any:
        kept = torch.rand(wrong_dropout.shape(given)) >= given.dropout_p
        factor = kept / (1 - given.dropout_p)
        factor[..., 16:] = 1.0
        return wrong_dropout.attend(q, k, v, given, factor, rescale=1.0)

    record = judged(steady_cpu, only_the_first, which)
    assert record.status == "wrong"
    assert "times the standard deviation that dropout gives it" in str(record.reason)
