"""FLOPs, pairs and ideal bytes against brute force and against counts made by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnbench.core.case import Case, Shape
from attnbench.core.flops import Roofline, exps, flops, ideal_bytes, input_bytes, pairs, visible_pairs

lengths = st.integers(1, 24)
side = st.none() | st.integers(0, 30)


def mask(seqlen_q, seqlen_k, causal, window_size):
    """Return the mask of visible pairs by its definition in flash-attn's documentation."""
    offset = seqlen_k - seqlen_q
    left, right = window_size
    return {
        (i, j)
        for i, j in itertools.product(range(seqlen_q), range(seqlen_k))
        if (not causal or j <= i + offset)
        and (left is None or j >= i + offset - left)
        and (right is None or j <= i + offset + right)
    }


def case(seqlen_q=4, seqlen_k=4, direction="fwd", batch=1, nheads=1, nheads_k=1, headdim=8, headdim_v=8, **more):
    shape = Shape(batch, seqlen_q, seqlen_k, nheads, nheads_k, headdim, headdim_v)
    return Case(shape, more.pop("dtype", "bf16"), direction, **more)


@given(lengths, lengths, st.booleans(), st.tuples(side | st.integers(-40, -1), side | st.integers(-40, -1)))
@example(5, 2, True, (None, None))  # the first three queries see no key
@example(9, 3, False, (1, 0))
@example(3, 9, True, (2, 5))  # causal limits the right side to 0
@example(1, 24, True, (None, None))  # a decode step sees every key
def test_pairs_match_brute_force(seqlen_q, seqlen_k, causal, window_size):
    assert visible_pairs(seqlen_q, seqlen_k, causal, window_size) == len(mask(seqlen_q, seqlen_k, causal, window_size))


def test_flops_of_a_square_case_are_those_of_the_papers():
    c = case(1024, 1024, batch=2, nheads=16, headdim=128, headdim_v=128)
    forward = 4 * 1024**2 * 128 * 16 * 2
    assert flops(c) == forward
    assert flops(replace(c, direction="bwd")) == 2.5 * forward
    assert flops(replace(c, direction="fwd_bwd")) == 3.5 * forward
    assert flops(c, "fa") == forward


def test_flops_by_convention():
    c = case(1024, 1024, headdim=64, headdim_v=64, causal=True)
    assert flops(c) == 4 * 64 * (1024 * 1025 // 2)
    assert flops(c, "fa") == 4 * 64 * 1024 * 1024 / 2
    windowed = replace(c, window_size=(0, None))
    assert flops(windowed) == 4 * 64 * 1024
    assert flops(windowed, "fa") == flops(c, "fa")  # the window has no effect
    assert flops(replace(windowed, causal=False, window_size=(0, 0)), "fa") == 4 * 64 * 1024
    decode = case(1, 4096, headdim=64, headdim_v=64, causal=True)
    assert flops(decode) == 2 * flops(decode, "fa") == 4 * 64 * 4096


def test_flops_with_different_head_dimensions_and_shared_keys():
    c = case(2, 3, batch=5, nheads=8, nheads_k=2, headdim=192, headdim_v=128)
    pairs = 2 * 3 * 5 * 8  # query heads count; shared key heads do not multiply
    assert flops(c) == 2 * (192 + 128) * pairs
    assert flops(replace(c, direction="bwd")) == 2 * (3 * 192 + 2 * 128) * pairs
    assert flops(replace(c, shape=replace(c.shape, nheads_k=8))) == flops(c)


def test_bytes_by_hand():
    c = case(2, 3, batch=5, nheads=8, nheads_k=2, headdim=192, headdim_v=128)
    q, k, v, out = 5 * 8 * 2 * 192, 5 * 2 * 3 * 192, 5 * 2 * 3 * 128, 5 * 8 * 2 * 128
    forward = (q + k + v + out) * 2
    backward = (q + k + v + out + out + q + k + v) * 2
    assert ideal_bytes(c) == forward
    assert ideal_bytes(replace(c, direction="bwd")) == backward
    assert ideal_bytes(replace(c, direction="fwd_bwd")) == forward + backward
    assert ideal_bytes(replace(c, dtype="fp32")) == 2 * forward
    assert ideal_bytes(replace(c, dtype="fp16")) == forward
    assert ideal_bytes(replace(c, dtype="fp8")) == q + k + v + 2 * out  # out is bf16
    assert ideal_bytes(replace(c, causal=True)) == forward  # every key is seen by some query


@given(lengths, lengths, st.booleans(), st.tuples(side, side))
def test_bytes_match_brute_force(seqlen_q, seqlen_k, causal, window_size):
    seen = mask(seqlen_q, seqlen_k, causal, window_size)
    queries, keys = len({i for i, _ in seen}), len({j for _, j in seen})
    c = case(seqlen_q, seqlen_k, nheads=2, headdim=3, headdim_v=5, causal=causal, window_size=window_size)
    forward = 2 * queries * 3 + keys * 8 + 2 * seqlen_q * 5
    backward = 2 * queries * (3 + 5 + 5) + keys * 8 + 2 * seqlen_q * 3 + seqlen_k * 8
    assert ideal_bytes(c) == forward * 2
    assert ideal_bytes(replace(c, direction="fwd_bwd")) == (forward + backward) * 2


def test_one_exp_for_each_pair_and_head_and_again_in_the_backward():
    c = case(4, 4, nheads=3, headdim=64, headdim_v=64, causal=True)
    assert exps(c) == 3 * 10
    assert exps(replace(c, direction="bwd")) == 3 * 10
    assert exps(replace(c, direction="fwd_bwd")) == 2 * 3 * 10


@pytest.mark.parametrize(
    ("headdim", "seqlen_q", "exp_rate", "bound"),
    [
        (64, 4096, 1e12, "exp"),  # 256 FLOPs for each exp, and 1000 FLOPs in its time
        (512, 4096, 1e12, "compute"),
        (64, 4096, 0.0, "compute"),  # an unknown rate
        (64, 1, 1e12, "memory"),
    ],
)
def test_the_longest_of_three_bounds_a_call(headdim, seqlen_q, exp_rate, bound):
    c = case(seqlen_q, 4096, nheads=8, headdim=headdim, headdim_v=headdim)
    found = Roofline.of(c, 1e15, 1e12, exp_rate=exp_rate)
    assert found.bound == bound
    assert found.seconds == max(found.compute_seconds, found.memory_seconds, found.exp_seconds)
    assert found.exp_seconds == (exps(c) / exp_rate if exp_rate else 0)


def test_a_delta_rule_is_counted_by_its_recurrence():
    c = case(1024, 1024, batch=2, nheads=32, nheads_k=16, headdim=128, headdim_v=64, causal=True, kind="gdn")
    tokens, state = 2 * 1024, 128 * 64
    assert flops(c) == flops(c, "fa") == 6 * tokens * 32 * state
    assert flops(replace(c, direction="bwd")) == 2 * flops(c)
    assert flops(replace(c, direction="fwd_bwd")) == 3 * flops(c)
    assert exps(c) == tokens * 32
    qk, v, gate, beta = 2 * tokens * 16 * 128, tokens * 32 * 64, tokens * 32, tokens * 32
    read = 2 * (qk + v + beta) + 4 * gate
    assert ideal_bytes(c) == read + 2 * v + 2 * 4 * 2 * 32 * state
    assert ideal_bytes(replace(c, direction="bwd")) == read + 2 * v + read
    assert ideal_bytes(replace(c, direction="fwd_bwd")) == read + 2 * v + ideal_bytes(replace(c, direction="bwd"))
    of_kda = replace(c, kind="kda")
    assert exps(of_kda) == 128 * exps(c)
    assert ideal_bytes(of_kda) == ideal_bytes(c) + 4 * 127 * gate


def test_a_token_with_a_state_is_decoding():
    token = case(1, 1, causal=True, kind="gdn")
    assert token.is_decode
    assert not replace(token, direction="bwd").is_decode
    assert not case(100, 100, causal=True, kind="gdn").is_decode
    assert not case(1, 1, causal=True).is_decode


def test_an_indexer_has_one_product_over_all_keys_that_causal_leaves():
    c = case(100, 400, batch=2, nheads=64, headdim=128, headdim_v=128, causal=True, kind="indexer", mask="topk:16")
    seen = 2 * sum(300 + i for i in range(1, 101))
    assert pairs(c) == seen
    assert flops(c) == flops(c, "fa") == 2 * 64 * 128 * seen
    assert exps(c) == 0
    q, k, weights, indices = 2 * 100 * 64 * 128, 2 * 400 * 128, 2 * 100 * 64, 2 * 100 * 16
    assert input_bytes(c) == 2 * (q + k) + 4 * weights
    assert ideal_bytes(c) == input_bytes(c) + 4 * indices
    of_fp8 = replace(c, dtype="fp8")
    assert ideal_bytes(of_fp8) == q + k + 4 * (2 * 400 + weights + indices)
    assert case(1, 400, causal=True, kind="indexer", mask="topk:16").is_decode
