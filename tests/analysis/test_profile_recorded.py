"""The rules of `profile --counters` on counters that ncu read on an H200 (2026-11-24) and an H100 (2026-11-25).

Driver 580.159.04, torch 2.11. counters_*.jsonl.gz have the planted kernels of tests/gpu/planted_kernels.py, and one
call each of six backends: 16k, causal, bf16, headdim 64 and 128 (2048 / headdim heads; eager 4), forward and backward,
and decoding of batch 32 over 16k keys (32 heads, 8 key heads, headdim 128).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.profile.bounds import NOT_TOLD, sentence
from attnbench.core.json import from_json
from attnbench.run.profile.counters import KernelCounters, longest

SMS = 132
CARDS = ("h100", "h200")
RECORDED = {
    card: [
        json.loads(line)
        for line in gzip.decompress(Path(__file__).with_name(f"counters_{card}.jsonl.gz").read_bytes()).splitlines()
    ]
    for card in CARDS
}
PLANTED = {  # words of the expected sentence
    "spills": "of spilled registers are read back; bound by ",
    "few_blocks": "busy: 8 blocks for 132 multiprocessors: the other multiprocessors idle",
    "memory": "busy: bound by HBM",
    "exp": "busy: bound by exp",
    "products": "busy: bound by tensor cores",
    "multiplies": "busy: bound by FMA",
    "shares": "busy: bound by shared memory",
    "chases": "wait for long scoreboard (99%)",
    "tail": "the last leaves 44% of the time idle; bound by ",
}
TENSOR_PER_EXP = {"fwd": 64.0, "bwd": 25.6}  # headdim at which both take the same time: 2 or 5 products for each exp


def longest_kernel(found: Any) -> KernelCounters:
    (kernel,) = longest([from_json(KernelCounters, one) for one in found["counters"]], 1)
    return kernel


def attention(card: str, backend: str, headdim: int, direction: str, decode: bool = False) -> KernelCounters:
    wanted = {"backend": backend, "headdim": headdim, "direction": direction, "decode": decode}
    (found,) = (one for one in RECORDED[card] if wanted.items() <= one.items())
    return longest_kernel(found)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_kernels(name: str, card: str) -> None:
    (found,) = (one for one in RECORDED[card] if one.get("planted") == name)
    assert PLANTED[name] in sentence(longest_kernel(found), SMS)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("backend", ["sdpa-cudnn", "fa3", "fa4"])
def test_tensor_cores_and_exp_are_busy_as_the_arithmetic_says(
    backend: str, headdim: int, direction: str, card: str
) -> None:
    """Shares agree with the arithmetic: for each score 2 or 5 products at 4096 FLOPs a cycle, and an exp at 16."""
    kernel = attention(card, backend, headdim, direction)
    ratio = kernel.values["tensor"] / kernel.values["exp"]
    assert ratio == pytest.approx(headdim / TENSOR_PER_EXP[direction], rel=0.05)


@pytest.mark.parametrize(
    ("backend", "headdim", "direction", "said"),
    [
        ("fa4", 128, "fwd", "bound by tensor cores"),
        ("sdpa-cudnn", 128, "fwd", "work at once in at least 13%"),
        ("triton", 128, "fwd", "take turns"),
        ("sdpa-flash", 128, "fwd", "no unit is busy 60%"),
        ("fa3", 64, "fwd", "work at once in at least 25%"),
        ("fa4", 64, "fwd", "work at once in at least 26%"),
        ("sdpa-cudnn", 64, "fwd", "take turns"),
        ("triton", 64, "fwd", "take turns"),
        ("fa3", 128, "bwd", "bound by shared memory"),
        ("fa4", 128, "bwd", "bound by shared memory"),
        ("sdpa-cudnn", 128, "bwd", NOT_TOLD),
        ("triton", 128, "bwd", NOT_TOLD),
        ("fa3", 64, "bwd", NOT_TOLD),
        ("eager", 128, "bwd", "no unit is busy 60%"),
    ],
)
@pytest.mark.parametrize("card", CARDS)
def test_attention(card: str, backend: str, headdim: int, direction: str, said: str) -> None:
    assert said in sentence(attention(card, backend, headdim, direction), SMS)


def test_the_share_of_l2_is_not_what_bounds_a_kernel_whose_products_and_exp_fill_its_time() -> None:
    """L2's share (81 % on the H100, 70 % on the H200) bounds no kernel whose products and exp fill its time."""
    h100, h200 = (attention(card, "triton", 64, "fwd") for card in CARDS)
    assert h100.values["l2"] > 0.8 > 0.72 > h200.values["l2"]
    assert h100.values["seconds"] == pytest.approx(h200.values["seconds"], rel=0.015)
    assert all("busy: tensor cores and exp take turns" in sentence(one, SMS) for one in (h100, h200))


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("backend", ["sdpa-cudnn", "triton", "fa3", "fa4", "eager"])
def test_decoding_is_bound_by_memory(backend: str, card: str) -> None:
    assert "bound by HBM" in sentence(attention(card, backend, 128, "fwd", decode=True), SMS)


def test_a_flash_kernel_that_repeats_the_keys_of_grouped_heads_is_bound_by_the_slower_memory_alone() -> None:
    assert NOT_TOLD in sentence(attention("h200", "sdpa-flash", 128, "fwd", decode=True), SMS)
    assert "bound by HBM" in sentence(attention("h100", "sdpa-flash", 128, "fwd", decode=True), SMS)
