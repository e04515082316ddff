"""Keys in pages: their places, and the definition of paged and latent cases."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.core import flops, pages
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.lengths import run_lengths
from attnbench.judge import inputs

DECODE = Case(Shape(3, 1, 100, 8, 2, 64, 64), "bf16", "fwd", page_size=16)
LATENT = Case(Shape(3, 1, 100, 128, 1, 576, 512), "bf16", "fwd", latent=True)


def case_of(lengths: list[int], page_size: int) -> Case:
    coded = run_lengths([(1, n) for n in lengths])
    sizes = sizes_of(coded) if coded else (len(lengths), 1, lengths[0])
    return Case(Shape(*sizes, 1, 1, 8, 8), "fp32", "fwd", lengths=coded, page_size=page_size)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8), st.sampled_from([1, 3, 16, 64]), st.integers(0, 9))
def test_every_key_has_a_place_of_its_own(lengths: list[int], page_size: int, seed: int) -> None:
    case = case_of(lengths, page_size)
    table = pages.make_page_table(case, torch.device("cpu"), seed)
    places = pages.key_places(case, table)
    expected = [
        int(table[i, j // page_size]) * page_size + j % page_size for i, n in enumerate(lengths) for j in range(n)
    ]
    assert places.flatten().tolist() == expected
    assert len({*expected}) == len(expected)
    assert case.pages == tuple(-(-n // page_size) for n in lengths)
    assert case.used_pages == sum(case.pages)
    assert 0 <= int(table.min()) <= int(table.max()) < pages.count_pages(case)
    assert pages.count_pages(case) > sum(case.pages), "no page belongs to no sequence"
    assert pages.seqlens_k(case, torch.device("cpu")).tolist() == lengths


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8), st.sampled_from([1, 3, 16]), st.integers(0, 4))
def test_sequences_share_the_pages_of_their_prefix_alone(own: list[int], page_size: int, shared: int) -> None:
    """The first pages of all rows are the same, and no other page belongs to two sequences."""
    case = case_of([shared * page_size + n for n in own], page_size)
    case = replace(case, shared_prefix=shared * page_size)
    table = pages.make_page_table(case, torch.device("cpu"), 0)
    assert (table[:, :shared] == table[0, :shared]).all()
    of_sequences = [row[shared:used].tolist() for row, used in zip(table, case.pages, strict=True)]
    used = [*table[0, :shared].tolist(), *itertools.chain(*of_sequences)]
    assert len({*used}) == len(used) == case.used_pages
    assert max(used) < pages.count_pages(case)
    assert pages.count_pages(case) > case.used_pages


def test_a_shared_prefix_is_read_one_time() -> None:
    """The least bytes have the keys and values of a prefix once, or those in a window; the FLOPs stay the same."""
    plain, case = DECODE, replace(DECODE, shared_prefix=64)
    row = 2 * 2 * 128  # bytes of the keys and values of a token
    assert flops.ideal_bytes(plain) - flops.ideal_bytes(case) == 2 * 64 * row
    assert flops.flops(plain) == flops.flops(case)
    windowed = replace(plain, window_size=(59, 0))  # keys 40 to 99
    assert flops.ideal_bytes(windowed) - flops.ideal_bytes(replace(windowed, shared_prefix=64)) == 2 * 24 * row
    assert flops.input_bytes(plain) - flops.input_bytes(case) == 2 * 64 * row
    lengths = run_lengths([(3, 80), (1, 70), (1, 100)])
    ragged = Case(Shape(*sizes_of(lengths), 8, 2, 64, 64), "bf16", "fwd", True, lengths=lengths, page_size=16)
    windows = replace(ragged, window_size=(47, 0))  # of the prefix 14, 42 and 12 keys are seen, the last ones
    for of, twice in ((ragged, 2 * 64), (windows, (34 + 42 + 12) - 42)):
        assert flops.ideal_bytes(of) - flops.ideal_bytes(replace(of, shared_prefix=64)) == twice * row


def test_bytes_of_a_batch_that_no_memory_holds_are_counted() -> None:
    """Bytes of a batch beyond any memory, which a run file can name, are counted without visiting each sequence."""
    many = replace(DECODE, shape=replace(DECODE.shape, batch=2**47))
    assert flops.input_bytes(many) == pytest.approx(2**47 / 3 * flops.input_bytes(DECODE))


@pytest.mark.parametrize("dtype", ["same", "fp8"])
def test_inputs_are_caches_and_latent_values_a_part_of_the_keys(dtype: Any) -> None:
    made = inputs.make(replace(DECODE, cache_dtype=dtype), "cpu", 0)
    count = pages.count_pages(DECODE)
    assert made.k.shape == made.v.shape == (count, 16, 2, 64)
    assert made.q.shape == (3, 1, 8, 64)
    assert (made.k.dtype == torch.float8_e4m3fn) == (dtype == "fp8") == (made.descale != (1.0, 1.0))
    latent = inputs.make(replace(LATENT, page_size=16, cache_dtype=dtype), "cpu", 0)
    assert latent.v.data_ptr() == latent.k.data_ptr()
    assert latent.v.shape[-1] == 512
    assert {*latent.values} == {"q", "k"}
    for each in (made, latent):
        copy = inputs.clone(each)
        assert inputs.first_changed(each, copy) is None
        assert (copy.v.data_ptr() == copy.k.data_ptr()) == (each is latent)
        assert inputs.find_flaw(each) is None
        copy.k.view(torch.uint8)[0, 0, 0, 5] ^= 1
        assert inputs.first_changed(each, copy) == "k"


def test_bytes_are_those_of_the_cache() -> None:
    """Bytes are q and out in bf16, and k and v once in the dtype of the cache; latent rows have one row a token."""
    q_and_out = 2 * 3 * 8 * (64 + 64)
    assert flops.ideal_bytes(DECODE) == flops.ideal_bytes(replace(DECODE, page_size=0)) == q_and_out + 2 * 2 * 300 * 128
    assert flops.ideal_bytes(replace(DECODE, cache_dtype="fp8")) == q_and_out + 2 * 300 * 128
    assert flops.ideal_bytes(LATENT) == 2 * (3 * 128 * (576 + 512) + 300 * 576)
    assert flops.flops(LATENT) == 2 * 3 * 128 * 100 * (576 + 512)
    fp8 = replace(LATENT, page_size=16, cache_dtype="fp8")
    assert flops.ideal_bytes(fp8) == 2 * 3 * 128 * (576 + 512) + 300 * 576


def test_what_is_appended_is_apart_and_comes_to_its_place() -> None:
    """Before a launch the cache lacks the values of new keys, so that a kernel that does not append is wrong."""
    lengths = run_lengths([(3, 40), (1, 17), (16, 16)])
    case = Case(Shape(*sizes_of(lengths), 4, 2, 32, 16), "fp16", "fwd", True, lengths=lengths, page_size=16)
    whole, made = inputs.make(case, "cpu", 0), inputs.make(replace(case, append=True), "cpu", 0)
    assert made.new_k is not None
    assert made.new_v is not None
    assert (made.new_k.shape, made.new_v.shape) == ((1, 20, 2, 32), (1, 20, 2, 16))
    assert inputs.first_changed(made, inputs.make(replace(case, append=True), "cpu", 0)) is None
    changed = (made.k != whole.k).any(-1).all(-1)
    assert int(changed.sum()) == 20
    with pages.appended(replace(case, append=True), made):
        assert torch.equal(made.k, whole.k)
        assert torch.equal(made.v, whole.v)
    assert torch.equal((made.k != whole.k).any(-1).all(-1), changed)
    pages.appender(replace(case, append=True), made)()
    pages.appender(case, whole)()
    assert torch.equal(made.k, whole.k)
    more = flops.ideal_bytes(replace(case, append=True)) - flops.ideal_bytes(case)
    assert more == 2 * 20 * 2 * (32 + 16), "the keys and values of 20 queries are written"


@pytest.mark.parametrize(
    ("case", "changes", "said"),
    [
        (DECODE, {"direction": "bwd"}, "forward only"),
        (DECODE, {"dropout_p": 0.1}, "dropout 0.1 with a cache of pages"),
        (DECODE, {"layout": "bshd"}, "layout bshd with a cache of pages"),
        (DECODE, {"page_size": -1}, "at least 1"),
        (DECODE, {"shape": Shape(3, 101, 100, 8, 2, 64, 64)}, "at most as many as keys"),
        (DECODE, {"page_size": 0, "cache_dtype": "fp8"}, "cache of pages"),
        (DECODE, {"dtype": "fp8", "cache_dtype": "fp8"}, "fp8 with a cache of another dtype"),
        (DECODE, {"page_size": 0, "shared_prefix": 16}, "shared-prefix: .* give --page-size too"),
        (DECODE, {"shared_prefix": 24}, "24 tokens are no whole pages of 16"),
        (DECODE, {"shared_prefix": -16}, "-16 is not at least 0"),
        (DECODE, {"shared_prefix": 112}, "come after the 112 tokens .* give a longer --seqlen"),
        (DECODE, {"shared_prefix": 96, "shape": Shape(3, 5, 100, 8, 2, 64, 64)}, "come after the 96 tokens"),
        (
            replace(LATENT, causal=True, page_size=16, mask="topk:16"),
            {"shared_prefix": 16},
            "mask topk:16 with a shared prefix cannot be measured",
        ),
        (LATENT, {"append": True}, "latent with appended keys and values"),
        (LATENT, {"shape": Shape(3, 1, 100, 8, 2, 576, 512)}, "leave out --nheads-k 2"),
        (LATENT, {"direction": "fwd_bwd"}, "forward only"),
        (DECODE, {"scale": -0.1}, "positive"),
    ],
)
def test_what_no_case_can_be(case: Case, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(case, **changes)
