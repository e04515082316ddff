"""`flex` and `compile` with torch.compile replaced: their functions are right, and how torch.compile is prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config

from attnbench.backends.shared import masks
from attnbench.backends.shared.masks import (
    block_mask,
    effective_window,
    flash_window,
    paged_block_mask,
    pairs_of_blocks,
    visibility_mask,
)
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.machine import Device
from attnbench.judge import inputs
from attnbench.judge import visible_keys as exactly
from standins import flash_attn, install
from standins.contract import AMPERE, BLACKWELL, CASES, CPU, HOPPER, backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture
def compile_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Replace torch.compile by one that compiles nothing, and return the options of each call of it.

    FlexAttention is replaced too, since it has no backward on a CPU.
    """
    from torch.nn.attention import flex_attention

    found: list[dict[str, Any]] = []

    def compile(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        found.append(options)
        return fn

    monkeypatch.setattr(flex_attention, "flex_attention", _flex)
    monkeypatch.setattr(torch, "compile", compile)
    with torch._functorch.config.patch(donated_buffer=True):
        yield found


def _flex(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    enable_gqa: bool,
    return_lse: bool = False,
    kernel_options: Any = None,
) -> Any:
    """Compute FlexAttention by its definition, over the blocks that the block mask visits."""
    if kernel_options == {"BACKEND": "FLASH"}:
        assert not return_lse
        assert block_mask is None or block_mask.BLOCK_SIZE == (128, 128)
    else:
        assert kernel_options in (None, {"FORCE_USE_FLEX_ATTENTION": True})
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert len(key) in (1, len(query)), "sequences with a mask each share the keys of a cache"
    batch, heads, rows, _ = query.shape
    keys, values = (t.float().repeat_interleave(heads // t.shape[1], dim=1) for t in (key, value))
    b, h, i = torch.arange(batch).view(-1, 1, 1, 1), torch.arange(heads).view(-1, 1, 1), torch.arange(rows)[:, None]
    j = torch.arange(keys.shape[2])
    scores = query.float() @ keys.mT * scale
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if block_mask is not None:
        (size_q, size_k), blocks = block_mask.BLOCK_SIZE, block_mask.to_dense().bool()
        visited = blocks.repeat_interleave(size_q, 2).repeat_interleave(size_k, 3)[:, :, :rows, : len(j)]
        scores = scores.masked_fill(~(block_mask.mask_mod(b, h, i, j) & visited), float("-inf"))
    lse = scores.logsumexp(-1)
    empty = lse == float("-inf")
    out = (scores - lse.masked_fill(empty, 0.0)[..., None]).exp().to(value.dtype) @ values.to(value.dtype)
    return (out, lse) if return_lse else out


@pytest.mark.usefixtures("compile_calls")
@cases(("flex", "flex-flash"), "compile")
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.parametrize("name", ["flex", "flex-flash", "compile"])
def test_compiled_for_one_shape(name: str, compile_calls: list[dict[str, Any]]) -> None:
    backend(name).prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0))
    assert compile_calls == [{"dynamic": False, "fullgraph": True}]


@pytest.mark.usefixtures("compile_calls")
@pytest.mark.parametrize("name", ["flex", "compile", "hf-flex_attention"])
def test_compiled_code_of_other_cases_is_discarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the same case must stay: copies of one case are timed in turns."""
    resets: list[None] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(None))
    compiler: Any = backend(name)
    for case, count in ((PLAIN, 1), (PLAIN, 1), (replace(PLAIN, causal=True), 2), (PLAIN, 3)):
        compiler.reset_for(case)
        assert len(resets) == count


@pytest.mark.usefixtures("compile_calls")
@pytest.mark.parametrize(("direction", "donated"), [("fwd", True), ("bwd", False), ("fwd_bwd", True)])
def test_the_graph_of_a_timed_backward_keeps_its_buffers(direction: str, donated: bool) -> None:
    backend("compile").reset_for(replace(PLAIN, direction=direction))  # type: ignore[attr-defined, arg-type]
    assert torch._functorch.config.donated_buffer == donated


def test_what_they_refuse() -> None:
    for name in ("flex", "compile"):
        made = backend(name)
        assert made.unsupported(PLAIN, CPU) == "needs a CUDA GPU"
        assert made.unsupported(replace(PLAIN, dropout_p=0.1), HOPPER) == "no dropout"
        assert made.unsupported(replace(PLAIN, softcap=30.0, window_size=(8, None)), HOPPER) is None
    assert "outside 16" in str(backend("flex").unsupported(replace(PLAIN, shape=Shape(1, 8, 8, 1, 1, 8, 8)), HOPPER))
    small = replace(PLAIN, shape=Shape(1, 8, 8, 1, 1, 8, 8))
    assert backend("compile").unsupported(small, HOPPER) is None


@pytest.mark.parametrize(
    ("change", "device", "reason"),
    [
        ({}, HOPPER, None),
        ({}, AMPERE, "9.0 or newer"),
        ({}, BLACKWELL, "below 10.0"),
        ({"dtype": "fp32"}, HOPPER, "no fp32"),
        ({"sink": True}, HOPPER, "its log-sum-exp, of which a sink is made, has no gradient"),
        ({"page_size": 64}, HOPPER, "no cache of pages"),
        ({"shape": Shape(1, 64, 64, 2, 2, 256, 256)}, HOPPER, None),
        ({"shape": Shape(1, 64, 64, 2, 2, 256, 256), "causal": True}, HOPPER, "headdim 256 with a mask"),
        ({"shape": Shape(1, 64, 64, 2, 1, 64, 128), "direction": "bwd"}, HOPPER, "its backward of grouped heads"),
        ({"mask": "mine.py:documents@0"}, HOPPER, "reads tensors is asked for queries beyond the last"),
        ({"mask": "random:0.1"}, HOPPER, "reads tensors"),
        ({"mask": "random:0.1", "shape": Shape(1, 128, 200, 2, 2, 64, 64)}, HOPPER, None),
        ({"mask": "strided:16"}, HOPPER, None),
    ],
)
def test_what_flex_flash_refuses(change: dict[str, Any], device: Device, reason: str | None) -> None:
    said = backend("flex-flash").unsupported(replace(PLAIN, **change), device)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_flex_flash_needs_flash_attn_4_and_its_option_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    install(monkeypatch, {"flash_attn": None}, {"torch": "2.13.0"})
    assert "flash_attn.cute" in str(backend("flex-flash").probe().reason)
    install(monkeypatch, flash_attn.version_4(), {**flash_attn.VERSIONS_4, "torch": "2.13.0"})
    assert backend("flex-flash").probe().version == "torch 2.13.0, flash-attn-4 4.0.0b36"
    monkeypatch.delattr(flex_attention, "_Backend")
    assert backend("flex-flash").probe().reason == "this torch's flex_attention has no BACKEND='FLASH'"


@pytest.mark.parametrize("lengths", [(1, 9), (7, 7), (5, 9), (9, 5)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(None, None), (2, None), (None, 1), (2, 1), (0, 0)])
def test_masks_are_those_of_the_reference(
    lengths: tuple[int, int], causal: bool, window: tuple[int | None, int | None]
) -> None:
    case = Case(Shape(1, *lengths, 1, 1, 16, 16), "bf16", "fwd", causal, window)
    exact = exactly(case, torch.arange(lengths[0]))
    ours = visibility_mask(case, torch.device("cpu"))
    assert bool(exact.all()) if ours is None else torch.equal(ours, exact)
    assert (effective_window(case) == (None, None)) == (ours is None)
    assert flash_window(case) == tuple(-1 if side is None else side for side in window)


@pytest.mark.parametrize("lengths", [((2, 5, 5), (1, 9, 9)), ((1, 7, 7), (3, 1, 9), (1, 4, 8)), ((2, 1, 9), (1, 1, 4))])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(None, None), (2, None), (2, 1), (0, 0)])
def test_masks_of_ragged_batches_are_those_of_the_reference(
    lengths: Any, causal: bool, window: tuple[int | None, int | None]
) -> None:
    case = Case(Shape(*sizes_of(lengths), 1, 1, 16, 16), "bf16", "fwd", causal, window, lengths=lengths)
    exact = exactly(case, torch.arange(case.extent.seqlen_q))
    ours, blocks = visibility_mask(case, torch.device("cpu")), block_mask(case, torch.device("cpu"))
    assert ours is not None
    assert blocks is not None
    assert torch.equal(ours, exact)
    i, j = (torch.arange(n) for n in exact.shape)
    assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), i[:, None], j[None]), exact)


@pytest.mark.parametrize("mask", ["prefix:100", "sink_tokens:4", "strided:64", "dilated:3", "random:0.3"])
@pytest.mark.parametrize("lengths", [(300, 300), (40, 300)])
def test_masks_by_name_are_those_of_the_reference(mask: str, lengths: tuple[int, int]) -> None:
    window = (20, 0) if mask.startswith("sink") else (None, None)
    case = Case(Shape(1, *lengths, 1, 1, 16, 16), "bf16", "fwd", True, window, mask=mask)
    exact = exactly(case, torch.arange(lengths[0]))
    ours, blocks = visibility_mask(case, torch.device("cpu")), block_mask(case, torch.device("cpu"))
    assert ours is not None
    assert blocks is not None
    assert torch.equal(ours, exact)
    i, j = (torch.arange(n) for n in exact.shape)
    assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), i[:, None], j[None]), exact)
    rows, keys = (range(0, n, 128) for n in lengths)
    touched = sum(bool(exact[row : row + 128, key : key + 128].any()) for row in rows for key in keys)
    assert pairs_of_blocks(blocks) == touched * 128 * 128


def test_a_block_mask_that_is_built_compiled_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Shape(1, 200, 300, 1, 1, 16, 16), "bf16", "fwd", True, mask="random:0.3")
    plain = block_mask(case, torch.device("cpu"))
    monkeypatch.setattr(masks, "COMPILED_FROM", 0)
    calls = []
    monkeypatch.setattr(torch, "compile", lambda fn, **options: calls.append(options) or fn)
    compiled = block_mask(case, torch.device("cpu"))
    assert calls == [{"dynamic": False}]
    assert plain is not None
    assert compiled is not None
    assert torch.equal(plain.to_dense(), compiled.to_dense())
    assert masks.block_mask_workspace(case).nbytes < 2**20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"page_size": 32}, None),
        ({"page_size": 192}, None),
        ({"page_size": 8}, "no pages of 8 tokens, only multiples of 16"),
        ({"page_size": 48}, "pages of 48 tokens: 16, 32 or multiples of 64, and of 128 for 128 queries and more"),
        ({"shape": Shape(3, 1, 600, 6, 2, 64, 64)}, "pages of 16 tokens: 16, 32"),
        ({"shape": Shape(3, 1, 600, 6, 2, 64, 64), "page_size": 256}, None),
        ({"shape": Shape(1, 200, 600, 4, 2, 64, 64)}, "pages of 16 tokens: 16, 32"),
        ({"shape": Shape(1, 200, 600, 4, 2, 64, 64), "page_size": 128}, None),
        ({"append": True}, "its call does not append to the cache"),
        ({"cache_dtype": "fp8"}, "no fp8 cache for bf16 queries"),
    ],
)
def test_pages_of_flex(change: dict[str, Any], reason: str | None) -> None:
    said = backend("flex").unsupported(replace(CASES["pages-16-decode"], **change), HOPPER)
    assert (said is None) if reason is None else (said is not None and reason in said)
    assert backend("flex").unsupported(CASES["pages-256-beside"], HOPPER) == (
        "its pages are read with as many queries in each sequence only"
    )


@pytest.mark.parametrize("key", ["decode", "unlike", "speculative"])
def test_the_mask_of_pages_is_exact(key: str) -> None:
    """Blocks and mask together show each query the keys of its sequence up to its own, and nothing else."""
    case = CASES[f"pages-16-{key}"]
    table = inputs.make(case, "cpu", seed=0).page_table
    assert table is not None
    mask = paged_block_mask(case, table)
    assert mask.kv_num_blocks.max() <= max(case.pages)
    keys = torch.arange(mask.shape[-1])
    lengths = [of.seqlen_k for of in case.sequences for _ in range(of.number)]
    dense = mask.to_dense()[:, 0].repeat_interleave(16, -1).bool()
    for b, length in enumerate(lengths):
        for i in range(case.shape.seqlen_q):
            places = table[b, torch.arange(length) // 16].long() * 16 + torch.arange(length) % 16
            wanted = torch.zeros(len(keys), dtype=torch.bool)
            wanted[places[: length - case.shape.seqlen_q + 1 + i]] = True
            assert torch.equal(mask.mask_mod(b, 0, i, keys) & dense[b, 0], wanted)


@pytest.mark.usefixtures("compile_calls")
@pytest.mark.parametrize("fault", ["order", "neighbour"])
@pytest.mark.parametrize("key", ["decode", "unlike", "speculative"])
def test_a_mask_of_other_pages_is_wrong(key: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.backends.pytorch import compiled

    right = compiled.paged_block_mask
    turned = {"order": lambda t: t.flip(1), "neighbour": lambda t: t.roll(1, 0)}[fault]
    monkeypatch.setattr(compiled, "paged_block_mask", lambda case, table: right(case, turned(table)))
    with pytest.raises(AssertionError):
        check(backend("flex"), CASES[f"pages-16-{key}"])
