"""attnbench's Gluon attention on a Hopper GPU, compared with float64."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from plain_attention import Tensors, check, make, results
from torch import Tensor

from attnbench.backends.gluon.backward_tiles import query_parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
    ),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: Gluon has no interpreter"
    ),
]
if torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")
    attention = pytest.importorskip("attnbench.backends.gluon.attention").attention

# (seqlen_q, seqlen_k, nheads, nheads_k, headdim, headdim_v, causal, dtype)
CASES = (
    (1000, 1000, 4, 4, 64, 64, True, "bfloat16"),
    (1000, 1300, 4, 1, 64, 64, False, "bfloat16"),
    (333, 500, 32, 1, 64, 64, True, "float16"),
    (1024, 1024, 4, 4, 128, 128, True, "bfloat16"),
    (1300, 1000, 4, 1, 128, 128, True, "float16"),
    (1000, 1300, 32, 1, 128, 128, False, "bfloat16"),
    (1, 7, 2, 2, 128, 128, False, "bfloat16"),
    (300, 300, 2, 2, 40, 40, True, "bfloat16"),
    (500, 333, 4, 2, 80, 80, False, "float16"),
    (333, 500, 4, 4, 96, 96, True, "bfloat16"),
    (777, 900, 4, 2, 128, 64, True, "bfloat16"),
    (777, 900, 4, 2, 64, 128, False, "bfloat16"),
    (500, 777, 2, 1, 160, 160, True, "bfloat16"),
    (1000, 1300, 4, 4, 192, 128, False, "bfloat16"),
    (1300, 1000, 4, 1, 192, 128, True, "float16"),
    (1000, 1300, 4, 4, 256, 256, True, "bfloat16"),
    (1300, 1000, 4, 1, 256, 256, False, "float16"),
    # Several blocks of queries for each program: with three groups of consumers, as for headdim 64 above 2048 queries,
    # and with the queries of only one block in shared memory.
    (4100, 4100, 8, 8, 64, 64, True, "bfloat16"),
    (2500, 2700, 8, 2, 64, 64, False, "bfloat16"),
    (1000, 1300, 16, 4, 192, 128, True, "float16"),
    (1300, 1000, 16, 2, 256, 256, True, "bfloat16"),
)
Case = tuple[int, int, int, int, int, int, bool, str]


def inputs_of(case: Case) -> Tensors:
    return make(*case[:6], getattr(torch, case[7]), batch=2)


def run(case: Case) -> None:
    """Compute a case, to fill Triton's cache with its kernels."""
    results(attention, *inputs_of(case), causal=case[6])
    torch.cuda.synchronize()


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compile for all cases first, in several processes; one after the other they would take minutes."""
    with ProcessPoolExecutor(min(len(CASES), os.cpu_count() or 1), get_context("spawn")) as pool:
        for future in [pool.submit(run, case) for case in CASES]:
            future.exception()  # the test of the case raises it again


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_matches_the_reference(case: Case) -> None:
    inputs = inputs_of(case)
    check(results(attention, *inputs, causal=case[6]), inputs, case[6])


@pytest.mark.parametrize("case", [CASES[2], CASES[5], CASES[-1]], ids=["64", "128", "256"])
def test_split_query_heads_and_others_agree(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Query heads of a key head that are split over programs, with summed parts of dk and dv, agree with others."""
    from attnbench.backends.gluon import backward

    chosen: list[int] = []

    def noted(*sizes: int) -> int:
        chosen.append(query_parts(*sizes))
        return chosen[-1]

    inputs = inputs_of(case)
    monkeypatch.setattr(backward, "query_parts", noted)
    split = results(attention, *inputs, causal=case[6])
    assert chosen[0] > 1
    monkeypatch.setattr(backward, "query_parts", lambda *_: 1)
    whole = results(attention, *inputs, causal=case[6])
    check(whole, inputs, case[6])
    for a, b in zip(split, whole, strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2)


def test_sections_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are right with sections of heads, as where the keys and values of all heads do not fit L2."""
    from attnbench.backends.gluon import backward, forward

    for module in (forward, backward):
        monkeypatch.setattr(module, "heads_per_section", lambda *_: 3)
    inputs = inputs_of(CASES[0])  # has 8 heads in the batch
    check(results(attention, *inputs, causal=True), inputs, True)


def test_a_captured_call_keeps_its_lists() -> None:
    """A captured call keeps its lists of blocks, which each replay reads, although their cache drops them."""
    from attnbench.backends.gluon import forward

    q, k, v, _ = inputs_of(CASES[0])
    with torch.no_grad():
        expected = attention(q, k, v, causal=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attention(q, k, v, causal=True)
    forward.work_lists.cache_clear()
    junk = [torch.full((1 << i,), -1, dtype=torch.int32, device="cuda") for i in range(8, 17) for _ in range(64)]
    graph.replay()
    assert torch.equal(out, expected)
    del junk


def test_dk_and_dv_are_deterministic_and_dq_nearly() -> None:
    inputs = inputs_of(CASES[0])
    first = results(attention, *inputs, causal=True)
    for _ in range(5):
        out, dq, dk, dv = results(attention, *inputs, causal=True)
        assert all(torch.equal(a, b) for a, b in zip((out, dk, dv), (first[0], *first[2:]), strict=True))
        assert torch.allclose(dq.float(), first[1].float(), rtol=1e-2, atol=1e-3)


def test_every_element_is_written() -> None:
    """Every element is written, shown by torch's deterministic mode, which fills new tensors with NaN."""
    case = CASES[4]  # the first 300 queries see no key
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4, device="cuda").isnan().all()
        out, dq, dk, dv = results(attention, *inputs_of(case), causal=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.isfinite(t).all() for t in (out, dq, dk, dv))
    assert torch.all(out[:, :300] == 0)
    assert torch.all(dq[:, :300] == 0)


def heads_first(t: Tensor) -> Tensor:
    """Return the same values with (batch, nheads, seqlen, headdim) in memory."""
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def test_strides_are_free() -> None:
    q, k, v, dout = inputs_of(CASES[0])
    check(results(attention, *map(heads_first, (q, k, v, dout)), causal=True), (q, k, v, dout), True)
    packed = torch.stack((q, k, v), 2).unbind(2)
    assert not packed[0].is_contiguous()
    check(results(attention, *packed, dout, causal=True), (q, k, v, dout), True)


@pytest.mark.parametrize("kind", ["one value", "one row", "columns first", "odd address"])
def test_gradients_of_any_strides(kind: str) -> None:
    q, k, v, dout = inputs_of(CASES[0])
    dout = {
        "one value": lambda: dout[:1, :1, :1, :1].expand_as(dout),
        "one row": lambda: dout[:, :1].expand_as(dout),
        "columns first": lambda: dout.transpose(1, 3).contiguous().transpose(1, 3),
        "odd address": lambda: torch.cat((dout, dout), 3)[..., 1:65],
    }[kind]()
    check(results(attention, q, k, v, dout, causal=True), (q, k, v, dout), True)


def test_only_the_gradients_that_are_needed() -> None:
    q, k, v, dout = inputs_of(CASES[0])
    _, dq, dk, dv = results(attention, q, k, v, dout, causal=True)
    for wanted, expected in (("q", (dq,)), ("kv", (dk, dv))):
        tensors = {name: t.detach().requires_grad_(name in wanted) for name, t in zip("qkv", (q, k, v), strict=True)}
        attention(**tensors, causal=True).backward(dout)
        assert all((t.grad is not None) == (name in wanted) for name, t in tensors.items())
        for name, want in zip(wanted, expected, strict=True):
            assert torch.allclose(tensors[name].grad.float(), want.float(), rtol=1e-2, atol=1e-3)


def test_lse() -> None:
    q, k, v, _ = inputs_of(CASES[4])
    with torch.no_grad():
        _, lse = attention(q, k, v, causal=True, return_lse=True)
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double().repeat_interleave(4, dim=2)) * 128**-0.5
    seen = torch.ones(1300, 1000, dtype=torch.bool, device="cuda").tril(-300)
    want = scores.masked_fill(~seen, float("-inf")).logsumexp(-1)
    assert torch.equal(lse.isinf(), want.isinf())
    assert torch.allclose(lse[..., 300:].double(), want[..., 300:], rtol=1e-4, atol=1e-4)


def _columns(q: Tensor, first: int) -> Tensor:
    return torch.cat((q, q), 3)[..., first : first + q.shape[3]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q, k, v: (q.float(), k.float(), v.float()), "bfloat16 or float16"),
        (lambda q, k, v: (q.half(), k, v), "share dtype"),
        (lambda q, k, v: (q.cpu(), k.cpu(), v.cpu()), "capability 9.0, q is on cpu"),
        (lambda q, k, v: (_columns(q, 4), k, v), "multiples of 16 bytes"),  # its address is not a multiple
        (lambda q, k, v: (q, k[:, :1].expand_as(k), v), "multiples of 16 bytes"),  # a stride of 0
        (lambda q, k, v: (q.transpose(1, 3).contiguous().transpose(1, 3), k, v), "contiguous"),
        (lambda q, k, v: (q, k, v[..., :20]), "multiple of 8"),
        (lambda q, k, v: (q, k[:, :, :3], v[:, :, :3]), "multiple of nheads_k"),
    ],
)
def test_refusals(change: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        attention(*change(*inputs_of(CASES[0])[:3]))
