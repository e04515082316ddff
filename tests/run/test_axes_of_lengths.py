"""Pages, latent rows, the softmax scale and ragged batches: their cases and their refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.run.axes import Axes, expand, matching
from attnbench.run.suite import load_suite, parse_options, resolve


def cases(**axes: Any) -> list[Case]:
    return expand(Axes(**{"seqlen": "1k", "batch": "4", **axes}), None, None)


def test_pages_multiply_and_leave_out_the_backward() -> None:
    found = cases(page_size="none,16", direction="fwd,bwd", seqlen_q="1")
    assert [(case.page_size, case.direction) for case in found] == [(0, "fwd"), (0, "bwd"), (16, "fwd")]
    assert [case.page_size for case in found if matching(Axes(page_size="16"))(case)] == [16]


def test_chunks_longer_than_the_sequence_are_left_out() -> None:
    found = cases(page_size="16", seqlen="1k,4k", seqlen_q="2k", causal=True)
    assert [(case.shape.seqlen_q, case.shape.seqlen_k) for case in found] == [(2048, 4096)]


def test_patterns_of_lengths_with_one_query_each() -> None:
    (case,) = cases(page_size="16", lengths="longtail", seqlen_q="1", batch="16")
    assert {of[1] for of in case.lengths} == {1}
    assert case.shape.batch == 16
    assert matching(Axes(lengths="longtail"))(case)
    assert not matching(Axes(lengths="uniform"))(case)


def test_latent_has_the_sizes_of_deepseek() -> None:
    settings = parse_options({"axes": {"latent": True, "seqlen": "1k", "seqlen_q": "1"}})
    (case,) = expand(settings.axes, None, None)
    s = case.shape
    assert (s.nheads, s.nheads_k, s.headdim, s.headdim_v) == (128, 1, 576, 512)
    assert case.softmax_scale == 192**-0.5
    other = parse_options({"axes": {"latent": True, "seqlen": "1k", "nheads": "16", "softmax_scale": "0.1"}})
    assert [(c.shape.nheads, c.scale) for c in expand(other.axes, None, None)] == [(16, 0.1)]


def test_softmax_scales() -> None:
    assert [case.softmax_scale for case in cases(softmax_scale="none,0.25")] == [pytest.approx(128**-0.5), 0.25]


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"direction": "bwd"}, "page-size: forward only; give --pass fwd"),
        ({"seqlen_q": "2k"}, "page-size: the queries are the last of their sequence; give at most as many as keys"),
        ({"seqlen_q": "1", "shared_prefix": "8k"}, "shared-prefix: the queries come after the 8192 tokens .*"),
    ],
)
def test_a_suite_of_which_no_case_is_left_says_why(axes: dict[str, Any], why: str) -> None:
    given = parse_options({"axes": {"page_size": "16", "seqlen": "1k", **axes}})
    with pytest.raises(UserError) as told:
        resolve(load_suite("quick"), "cuda", given)
    assert re.fullmatch(why, str(told.value))


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


def test_exclude_knows_ragged_cases() -> None:
    dense, uniform, listed = expand(Axes(seqlen="1k", lengths="none,uniform,1k+2*512"), "8k", None)
    for text, found in (("none", dense), ("uniform", uniform), ("1k+2*512", listed)):
        assert [matching(Axes(lengths=text))(case) for case in (dense, uniform, listed)] == [
            case is found for case in (dense, uniform, listed)
        ]
    (alone,) = expand(Axes(seqlen="8k"), "8k", None)
    assert not matching(Axes(lengths="uniform"))(alone), "one sequence has no pattern"
    assert matching(Axes(seqlen="1k"))(uniform)
    assert not matching(Axes(seqlen="1k", lengths="longtail"))(uniform)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"lengths": "uniform", "seqlen": None}, "seqlen is missing"),
        ({"lengths": "uniform", "batch": "1"}, "give --batch 2 or more"),
        ({"lengths": "uniform", "seqlen": "1", "batch": "8k"}, "8192 sequences; at most 4096"),
        ({"lengths": "uniform", "dropout": "0.1"}, "dropout 0.1 with a ragged batch"),
        ({"lengths": "uniform", "layout": "packed"}, "layout packed with a ragged batch"),
        ({"page_size": "0"}, "page-size: 0 is not at least 1"),
        ({"page_size": "x"}, "'x' is not a size"),
        ({"page_size": "16", "dropout": "0.1"}, "dropout 0.1 with a cache of pages"),
        ({"latent": True, "layout": "bhsd"}, "layout bhsd with latent rows"),
        ({"latent": True, "nheads": "8", "nheads_k": "2", "headdim": "576-512"}, "leave out --nheads-k 2"),
        ({"latent": True, "headdim": "64-128"}, "--headdim 576-512"),
        ({"cache_dtype": "fp8"}, "give --page-size too"),
        ({"cache_dtype": "fp8", "page_size": "16", "dtype": "fp8"}, "fp8 with a cache of another dtype"),
        ({"append": True}, "give --page-size"),
        ({"sink": True, "dropout": "0.1"}, "dropout 0.1 with an attention sink"),
        ({"sink": True, "dtype": "fp8"}, "fp8 with an attention sink"),
        ({"append": True, "page_size": "16", "cache_dtype": "fp8"}, "append with a cache of another dtype"),
        ({"cache_dtype": "int8", "page_size": "16"}, "unknown cache-dtype 'int8'"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(axes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as told:
        cases(**axes)
    assert said in str(told.value)
    assert "\n" not in str(told.value)
