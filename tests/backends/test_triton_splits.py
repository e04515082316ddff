"""attnbench's Triton attention with split heads for dk and dv, and with a headdim in parts; interpreted or on a GPU.

Split means that several programs share the query heads of a key head.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from triton_attention import (
    DEVICE,
    attention_varlen,
    block_sizes,
    check,
    interpreter,  # noqa: F401  a fixture for every test here
    kernels,
    make,
    ours,
    poisoned,
    triton,
)

from attnbench.backends.triton import backward
from attnbench.backends.triton.backend import Triton
from attnbench.core.case import Case, Shape

OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (20, 7)},
    "softcap": {"causal": True, "softcap": 3.0},
}


def split_in(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split the query heads of each key head into `parts`, for all sizes."""
    monkeypatch.setattr(backward, "query_splits", lambda *_: parts)


@pytest.mark.parametrize(
    ("splits", "heads", "tma", "mask"),
    [
        (2, (4, 1), False, "full"),
        (2, (8, 2), True, "window"),
        (4, (4, 1), False, "softcap"),
        (4, (4, 1), True, "causal"),
    ],
)
def test_split_query_heads(
    splits: int, heads: tuple[int, int], tma: int, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_in(splits, monkeypatch)
    inputs = make(45, 60, *heads, 24, 40, torch.float16, batch=1)
    with kernels(32, 16, tma=bool(tma)), poisoned() as fresh:
        first, *others = (ours(*inputs, **OPTIONS[mask]) for _ in range(2 if mask == "causal" else 1))
    parts = [t for t in fresh if t.shape in [(1, 60, heads[1] * splits, d) for d in (24, 40)]]
    assert [t.dtype for t in parts] == [torch.float32] * 2 * (1 + len(others))  # parts of dk and dv in each call
    assert not any(t.isnan().any() for t in parts)
    check(first, inputs, **OPTIONS[mask])
    assert all(torch.equal(a, b) for again in others for a, b in zip(first, again, strict=True))


def test_split_query_heads_of_sequences_of_different_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    split_in(2, monkeypatch)
    lengths = [(30, 45), (0, 9), (41, 20)]
    cu_q, cu_k = ([0, *itertools.accumulate(n)] for n in zip(*lengths, strict=True))
    inputs = tuple(t[0] for t in make(cu_q[-1], cu_k[-1], 4, 1, 16, 16, torch.float32))
    q, k, v = (t.detach().requires_grad_() for t in inputs[:3])
    ends = (torch.tensor(cu, dtype=torch.int32, device=DEVICE) for cu in (cu_q, cu_k))
    with kernels(16, 32), poisoned():
        out, lse = attention_varlen(q, k, v, *ends, 41, 45, causal=True, return_lse=True)
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), inputs[3])
    assert torch.all(torch.cat([dk[45:54].flatten(), dv[45:54].flatten()]) == 0)  # a sequence without queries
    for (q0, q1), (k0, k1) in (((0, 30), (0, 45)), ((30, 71), (54, 74))):
        one = (t[None] for t in (out.detach()[q0:q1], lse[:, q0:q1], dq[q0:q1], dk[k0:k1], dv[k0:k1]))
        own = tuple(t[None, a:b] for t, (a, b) in zip(inputs, [(q0, q1), (k0, k1), (k0, k1), (q0, q1)], strict=True))
        check(tuple(one), tuple(own), causal=True)


@pytest.mark.parametrize(
    ("programs", "group", "blocks_of_queries", "expected"),
    [
        (64, 8, 32, 1),  # already enough programs: 8 of 8 warps for each of the interpreter's 8 multiprocessors
        (8, 8, 32, 8),
        (10, 8, 32, 4),
        (1, 8, 32, 8),  # at most one program for each query head
        (10, 6, 32, 6),
        (13, 7, 32, 1),  # 4 does not divide 7
        (1, 8, 1, 2),  # a program needs four blocks of queries
        (1, 1, 32, 1),
        (1, 2, 1, 1),
        (1000, 8, 32, 1),
    ],
)
def test_number_of_splits(programs: int, group: int, blocks_of_queries: int, expected: int) -> None:
    assert block_sizes.query_splits(torch.empty(1), programs, group, blocks_of_queries, 8) == expected
    assert block_sizes.query_splits(torch.empty(1), 2 * programs, group, blocks_of_queries, 4) == expected


@pytest.mark.parametrize("batch", [1, 3, 8, 64])
@pytest.mark.parametrize(("heads", "heads_k"), [(32, 1), (32, 8), (6, 2), (16, 16)])
def test_workspace_holds_the_parts(heads: int, heads_k: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sizes, "multiprocessors", lambda _: 132)
    case = Case(Shape(batch, 2000, 2000, heads, heads_k, 64, 128), "bf16", "bwd", True)
    q, v = torch.empty(1, 1, 1, 64), torch.empty(1, 1, 1, 128)
    for block_n, num_warps in ((32, 4), (64, 4), (128, 8)):
        programs = triton.cdiv(2000, block_n) * batch * heads_k
        splits = block_sizes.query_splits(q, programs, heads // heads_k, 2000 // 64, num_warps)
        parts = splits * batch * heads_k * 2000 * 4 * (q.shape[3] + v.shape[3]) if splits > 1 else 0
        assert Triton().workspace(case).nbytes >= parts + 3 * 4 * batch * heads * 2000


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("d", "d_v", "blocks"),
    [(192, 128, {}), (136, 160, {"tma": True, "ahead": True}), (192, 128, {"tma": True, "resident": True})],
    ids=str,
)
def test_a_headdim_in_parts(d: int, d_v: int, blocks: dict[str, bool], options: dict[str, Any]) -> None:
    inputs = make(40, 50, 2, 1, d, d_v, torch.float16)
    with kernels(32, 16, **blocks):
        result = ours(*inputs, **options)
    check(result, inputs, **options)


@pytest.mark.parametrize(
    ("headdim", "expected"), [(64, (64, 1)), (128, (128, 1)), (129, (64, 3)), (192, (64, 3)), (193, (256, 1))]
)
def test_tiles_of_a_headdim(headdim: int, expected: tuple[int, int]) -> None:
    q, v = torch.empty(1, 1, 1, headdim), torch.empty(1, 1, 1, 128)
    constants = block_sizes.tile_constants(q, v)
    assert (constants["BLOCK_D"], constants["PARTS"]) == expected
    assert block_sizes.padded_head_dims(q, v) == (expected[0] * expected[1], 128)
