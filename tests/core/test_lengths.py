"""The lengths of ragged batches: patterns, lists, vLLM's grammar, and their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.core import flops
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.lengths import ORDERS, PATTERNS, describe, parse_lengths, run_lengths

PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=6)


def each(lengths: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    return [of[1:] for of in lengths for _ in range(of[0])]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("batch", "mean"), [(2, 1), (7, 3), (16, 1024), (1000, 17)])
def test_a_pattern_has_as_many_tokens_as_the_dense_batch(pattern: str, batch: int, mean: int) -> None:
    for order in ORDERS:
        (asked,) = parse_lengths(f"{pattern}/{order}")
        assert asked is not None
        found = asked.resolve(batch, mean)
        if not found:
            assert mean < 4  # rounding makes all sequences alike
            continue
        keys = [k for _, k in each(found)]
        assert (len(keys), sum(keys), min(keys) >= 1) == (batch, batch * mean, True)
        assert order == "shuffled" or keys == sorted(keys, reverse=order == "descending")
        assert asked.resolve(batch, mean) == found


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("2q2k_32q1s16k", ((2, 2048, 2048), (32, 1, 16384))),
        ("q512_q1S4K", ((1, 512, 512), (1, 1, 4096))),
        ("4k+2*1k+1x16k", ((1, 4096, 4096), (2, 1024, 1024), (1, 1, 16384))),
        ("1k+1k+2k", ((2, 1024, 1024), (1, 2048, 2048))),
    ],
)
def test_lists_and_vllms_grammar(text: str, lengths: tuple[tuple[int, ...], ...]) -> None:
    (asked,) = parse_lengths(text)
    assert asked is not None
    assert asked.resolve(5, 5) == lengths


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("longtial", 'did you mean "longtail"?'),
        ("uniform/sorted", "an order is one of shuffled, ascending, descending"),
        ("4*1k", "is a dense batch; give --batch 4 --seqlen 1024"),
        ("32q1s16k", "give --batch 32 --seqlen 16384 --seqlen-q 1"),
        ("4097*1+2", "4098 sequences; at most 4096 in a batch"),
        ("2*0+1", "lengths: 0 is not at least 1"),
        ("1k", "is none of uniform, "),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"^lengths: [^\n]+$") as told:
        parse_lengths(text)
    assert said in str(told.value)


@pytest.mark.parametrize("text", [*PATTERNS, "longtail/ascending", "zipf/descending"])
def test_a_pattern_has_its_name(text: str) -> None:
    (asked,) = parse_lengths(text)
    assert asked is not None
    assert describe(asked.resolve(16, 1024)) == text


def test_other_lengths_are_spelled_or_summed_up() -> None:
    assert describe(((2, 2048, 2048), (32, 1, 16384))) == "2*2k+32*1x16k"
    assert describe(run_lengths([(n, n) for n in (5, 900, 17, 8, 33, 4096, 2)])) == "7 of 2 to 4k #f146"
    assert describe(run_lengths([(n, n) for n in (5, 900, 8, 17, 33, 4096, 2)])) != "7 of 2 to 4k #f146"


@given(PAIRS)
def test_lengths_are_coded_and_read_back(pairs: list[tuple[int, int]]) -> None:
    coded = run_lengths(pairs)
    assert coded == () if len({*pairs}) == 1 else each(coded) == pairs
    assert len(coded) <= len(pairs)


@given(PAIRS, st.booleans(), st.sampled_from([(None, None), (2, 0), (1, 3)]))
def test_work_is_the_sum_over_the_sequences(
    pairs: list[tuple[int, int]], causal: bool, window: tuple[int, int]
) -> None:
    lengths = run_lengths(pairs)
    if not lengths:
        return
    whole = Case(Shape(*sizes_of(lengths), 4, 2, 8, 4), "bf16", "fwd_bwd", causal, window, lengths=lengths)
    parts = [Case(Shape(1, q, k, 4, 2, 8, 4), "bf16", "fwd_bwd", causal, window) for q, k in pairs]
    for of in (flops.flops, lambda c: flops.flops(c, "fa"), flops.ideal_bytes):
        assert of(whole) == sum(map(of, parts))
    extent = whole.extent
    assert (extent.batch, extent.seqlen_q, extent.seqlen_k) == (1, *map(sum, zip(*pairs, strict=True)))
    assert from_json(Case, to_json(whole)) == whole


@pytest.mark.parametrize(
    "lengths",
    [
        ((3, 8, 8),),
        ((1, 8, 8), (2, 8, 8)),
        ((1, 8, 8), (1, 4, 4)),
        ((1, 8, 8), (2, 9, 4)),
        ((0, 8, 8), (3, 4, 4)),
        ((3, 8),),
    ],
)
def test_lengths_that_are_not_of_the_shape_are_refused(lengths: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        Case(Shape(3, 8, 8, 1, 1, 8, 8), "bf16", "fwd", lengths=lengths)


def test_lengths_of_a_hostile_file_are_named_without_being_spelled_out() -> None:
    assert describe(((2**40, 8, 8), (1, 4, 4))) == f"{2**40}*8+4"
