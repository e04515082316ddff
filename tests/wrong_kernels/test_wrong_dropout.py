"""Faults in dropout. They are found by the mask that is read from launches, and by the exact result for that mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import wrong_dropout
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, case

from attnbench import backends
from attnbench.core.case import Case
from pairs import pairs

SAMPLED = 2**12  # score elements that the check may recompute: 16 rows of each head
BUDGETS = (ALL_ROWS, SAMPLED)
DIRECTIONS = ("fwd", "bwd", "fwd_bwd")


def dropout_case(direction: str = "fwd", p: float = 0.5, **sizes: Any) -> Case:
    """Return a small case with dropout."""
    return replace(case(direction, **{"seqlen": 128, "batch": 1, **sizes}), dropout_p=p)


def measured(
    steady_cpu: MeasuringDevice, attention: wrong_dropout.Attention, which: Case, budget: int | None = None
) -> Any:
    return steady_cpu.measure(wrong_dropout.DropoutBackend(attention), which, QUICK, budget)


@pairs(how=[wrong_dropout.torch_dropout, wrong_dropout.byte_dropout], direction=DIRECTIONS, budget=BUDGETS)
def test_right_kernels_pass(steady_cpu: MeasuringDevice, budget: int, direction: str, how: Any) -> None:
    """No fault: a mask from torch's random numbers, or from bytes as in flash-attn, is checked exactly and without a
    note.
    """
    record = measured(steady_cpu, how, dropout_case(direction, p=0.1, causal=True, dtype="bf16"), budget)
    assert record.status == "ok", record.reason
    assert not any("dropout" in note for note in record.notes)


@pairs(name=["eager", "sdpa-math"], direction=DIRECTIONS, seqlen=[128, 4], budget=BUDGETS)
def test_right_kernels_that_read_copies_pass(
    steady_cpu: MeasuringDevice, name: str, direction: str, seqlen: int, budget: int
) -> None:
    """No fault: the copies that a launch reads get the values by which a mask shows, also where heads are as many as
    rows, so that shapes do not tell their order.
    """
    which = dropout_case(direction, p=0.1, seqlen=seqlen)
    record = steady_cpu.measure(backends.load(name, backends.BACKENDS[name]), which, QUICK, budget)
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_random_numbers_of_its_own(steady_cpu: MeasuringDevice, direction: str) -> None:
    """No fault: a mask that cannot be drawn again is checked by statistics, with a note; a backward alone is exact."""
    record = measured(steady_cpu, wrong_dropout.OwnRandomNumbers(), dropout_case(direction, p=0.1))
    assert record.status == "ok", record.reason
    assert any("checked by statistics" in note for note in record.notes) == (direction != "bwd")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (wrong_dropout.drops_nothing, "keeps 100.00% of the probabilities where 50.00% are asked for"),
        (wrong_dropout.wrong_p, "where 50.00% are asked for"),
        (wrong_dropout.wrong_share, "where 50.00% are asked for"),
        (wrong_dropout.no_rescale, "out is off by"),
        (wrong_dropout.before_softmax, "out is off by"),
        (wrong_dropout.on_output, "out is off by"),
        (wrong_dropout.same_mask_in_all_heads, "the same probabilities in several heads"),
        (wrong_dropout.same_mask_in_all_rows, "the same probabilities in several query rows"),
        (wrong_dropout.same_mask_in_all_tiles, "the same probabilities every 64 keys"),
        (wrong_dropout.same_mask_in_all_calls, "the same probabilities in every call"),
    ],
)
def test_wrong_dropout(steady_cpu: MeasuringDevice, kernel: Any, expected: str) -> None:
    """Fault: it drops nothing, too many, other things, or the same each time. Found: wrong, with the reason."""
    record = measured(steady_cpu, kernel, dropout_case(seqlen=256, nheads=2, nheads_k=2))
    assert record.status == "wrong"
    assert expected in str(record.reason)


@pytest.mark.parametrize(
    ("seqlen", "budget", "direction", "causal"),
    [
        (128, ALL_ROWS, "fwd", False),
        (128, SAMPLED, "bwd", False),
        (512, SAMPLED, "fwd_bwd", True),
    ],
)
def test_one_mask_in_adjacent_rows(
    steady_cpu: MeasuringDevice, budget: int, direction: str, seqlen: int, causal: bool
) -> None:
    """Fault: four of eight adjacent rows have one mask. Found: wrong, with the distance, at each length."""
    which = dropout_case(direction, p=0.1, seqlen=seqlen, causal=causal, nheads=8)
    record = measured(steady_cpu, wrong_dropout.same_mask_in_every_second_row, which, budget)
    assert record.status == "wrong"
    assert "dropout drops the same probabilities in several query rows (2 apart, as rows " in str(record.reason)


@pairs(own=[False, True], direction=["bwd", "fwd_bwd"], budget=BUDGETS)
def test_a_backward_with_another_mask(steady_cpu: MeasuringDevice, budget: int, own: bool, direction: str) -> None:
    """Fault: the forward drops some probabilities and the backward others. Found: wrong, since out has another mask
    than dv.
    """
    record = measured(steady_cpu, wrong_dropout.OtherMaskInBackward(own=own), dropout_case(direction), budget)
    assert record.status == "wrong"
    assert "out is off by" in str(record.reason)


@pytest.mark.parametrize("kernel", [wrong_dropout.drops_nothing, wrong_dropout.no_rescale, wrong_dropout.wrong_share])
def test_wrong_dropout_in_a_backward(steady_cpu: MeasuringDevice, kernel: Any) -> None:
    """Fault: dropout is wrong in the gradients too. Found: wrong."""
    assert measured(steady_cpu, kernel, dropout_case("bwd")).status == "wrong"


@pytest.mark.parametrize("direction", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ({"rescale": 1.0}, "is off by"),
        ({"wrong_p": 0.15}, "where 90.00% are asked for"),
    ],
    ids=str,
)
def test_wrong_dropout_with_random_numbers_of_its_own(
    steady_cpu: MeasuringDevice, kernel: Any, expected: str, direction: str
) -> None:
    """Fault: the mask cannot be drawn again, and its use is wrong. Found: wrong, as a single launch shows its mask."""
    record = measured(steady_cpu, wrong_dropout.OwnRandomNumbers(**kernel), dropout_case(direction, p=0.1))
    assert record.status == "wrong"
    assert expected in str(record.reason)


def test_more_keys_than_launches_show(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward has more keys than launches can show.

    No fault: ok, with a note. Fault: the keys that no launch shows are not dropped. Found: wrong, by the variance of
    the output.
    """
    monkeypatch.setattr("attnbench.judge.dropout_mask.LAUNCHES", 4)
    which = dropout_case(p=0.1)
    record = measured(steady_cpu, wrong_dropout.torch_dropout, which)
    assert record.status == "ok", record.reason
    assert any("reading it takes 8 launches" in note for note in record.notes)

    def only_the_first(q: Any, k: Any, v: Any, given: Case) -> Any:
        kept = torch.rand(wrong_dropout.shape(given)) >= given.dropout_p
        factor = kept / (1 - given.dropout_p)
        factor[..., 16:] = 1.0
        return wrong_dropout.attend(q, k, v, given, factor, rescale=1.0)

    record = measured(steady_cpu, only_the_first, which)
    assert record.status == "wrong"
    assert "times the standard deviation that dropout gives it" in str(record.reason)
