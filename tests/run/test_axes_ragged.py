"""The axis --lengths: which cases it stands for, and what it refuses."""

from __future__ import annotations

import pytest

from attnbench.core.errors import UserError
from attnbench.run.axes import Axes, expand, matches


def test_a_ragged_batch_has_the_tokens_of_the_dense_one() -> None:
    dense, uniform, longtail = expand(Axes(seqlen="1k", lengths="none,uniform,longtail/descending"), "8k", None)
    assert [c.is_ragged for c in (dense, uniform, longtail)] == [False, True, True]
    for case in (uniform, longtail):
        assert (case.shape.batch, case.extent.seqlen_k, case.mean_seqlens) == (8, 8192, (1024, 1024))
    assert longtail.sequences[0].seqlen_k == longtail.shape.seqlen_k > 1024


def test_a_batch_of_a_pattern_has_two_sequences_at_least() -> None:
    (case,) = expand(Axes(seqlen="64k", lengths="uniform"), "16k", None)
    assert (case.shape.batch, case.extent.seqlen_k) == (2, 2**17)


def test_a_list_needs_no_seqlen_and_ignores_one() -> None:
    (alone,) = expand(Axes(lengths="2q2k_32q1s16k"), None, None)
    assert alone.lengths == ((2, 2048, 2048), (32, 1, 16384))
    assert [*dict.fromkeys(expand(Axes(lengths="2q2k_32q1s16k", seqlen="1k,2k"), None, None))] == [alone]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"lengths": "uniform"}, "seqlen is missing"),
        ({"lengths": "uniform", "seqlen": "1k", "batch": "1"}, "give --batch 2 or more"),
        ({"lengths": "uniform", "seqlen": "1", "batch": "8k"}, "8192 sequences; at most 4096"),
        ({"lengths": "uniform", "seqlen": "1k", "dropout": "0.1"}, "dropout 0.1 with a ragged batch"),
        ({"lengths": "uniform", "seqlen": "1k", "layout": "packed"}, "layout packed with a ragged batch"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(axes: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as told:
        expand(Axes.model_validate(axes), "8k", None)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_exclude_knows_ragged_cases() -> None:
    dense, uniform, listed = expand(Axes(seqlen="1k", lengths="none,uniform,1k+2*512"), "8k", None)
    for text, found in (("none", dense), ("uniform", uniform), ("1k+2*512", listed)):
        assert [matches(Axes(lengths=text), case) for case in (dense, uniform, listed)] == [
            case is found for case in (dense, uniform, listed)
        ]
    (alone,) = expand(Axes(seqlen="8k"), "8k", None)
    assert not matches(Axes(lengths="uniform"), alone), "one sequence has no pattern"
    assert matches(Axes(seqlen="1k"), uniform)
    assert not matches(Axes(seqlen="1k", lengths="longtail"), uniform)
