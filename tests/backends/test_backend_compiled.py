"""`flex` and `compile` with torch.compile replaced: results of their functions, and options of torch.compile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

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
from attnbench.judge import inputs
from attnbench.judge import visible_keys as exactly
from standins import flash_attn, install
from standins.contract import CASES, backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture
def compile_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Replace torch.compile by a function that compiles nothing, and return the options of each call.

    FlexAttention is replaced too, because it has no backward on a CPU.
    """
    import torch._functorch.config
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
    """Compiled code of other cases is discarded, but not of the same case, whose copies are timed in turns."""
    resets: list[None] = []
    monkeypatch.setattr("torch._dynamo.reset", lambda: resets.append(None))
    compiler: Any = backend(name)
    for case, count in ((PLAIN, 1), (PLAIN, 1), (replace(PLAIN, causal=True), 2), (PLAIN, 3)):
        compiler.reset_for(case)
        assert len(resets) == count


@pytest.mark.usefixtures("compile_calls")
@pytest.mark.parametrize(("direction", "donated"), [("fwd", True), ("bwd", False), ("fwd_bwd", True)])
def test_the_graph_of_a_timed_backward_keeps_its_buffers(direction: str, donated: bool) -> None:
    backend("compile").reset_for(replace(PLAIN, direction=direction))  # type: ignore[attr-defined, arg-type]
    assert torch._functorch.config.donated_buffer == donated


def test_flex_flash_needs_flash_attn_4_and_its_option_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    install(monkeypatch, {"flash_attn": None}, {"torch": "2.13.0"})
    assert "flash_attn.cute" in str(backend("flex-flash").probe().reason)
    install(monkeypatch, flash_attn.version_4(), {**flash_attn.VERSIONS_4, "torch": "2.13.0"})
    assert backend("flex-flash").probe().version == "torch 2.13.0, flash-attn-4 4.0.0b36"
    monkeypatch.delattr(flex_attention, "_Backend")
    assert backend("flex-flash").probe().reason == "this torch's flex_attention has no BACKEND='FLASH'"


def _masked(lengths: Any, causal: bool, window: Any = (None, None), mask: str = "") -> Case:
    """Return a case of one sequence, from two lengths, or of a ragged batch."""
    ragged = isinstance(lengths[0], tuple)
    shape = Shape(*(sizes_of(lengths) if ragged else (1, *lengths)), 1, 1, 16, 16)
    return Case(shape, "bf16", "fwd", causal, window, lengths=lengths if ragged else (), mask=mask)


DENSE = [(1, 9), (7, 7), (5, 9), (9, 5)]
RAGGED = [((2, 5, 5), (1, 9, 9)), ((1, 7, 7), (3, 1, 9), (1, 4, 8)), ((2, 1, 9), (1, 1, 4))]
WINDOWS = [(None, None), (2, None), (None, 1), (2, 1), (0, 0)]
MASKS = [_masked(*of) for of in itertools.product(DENSE + RAGGED, (False, True), WINDOWS)]
for lengths in ((300, 300), (40, 300)):
    MASKS += [_masked(lengths, True, mask=of) for of in ("prefix:100", "strided:64", "dilated:3", "random:0.3")]
    MASKS += [_masked(lengths, True, (20, 0), "sink_tokens:4")]


@pytest.mark.parametrize("case", MASKS)
def test_masks_are_those_of_the_reference(case: Case) -> None:
    exact = exactly(case, torch.arange(case.extent.seqlen_q))
    ours, blocks = visibility_mask(case, torch.device("cpu")), block_mask(case, torch.device("cpu"))
    assert flash_window(case) == tuple(-1 if side is None else side for side in case.window_size)
    if ours is None or blocks is None:
        assert ours is blocks
        assert bool(exact.all())
        assert effective_window(case) == (None, None)
        return
    assert torch.equal(ours, exact)
    i, j = (torch.arange(n) for n in exact.shape)
    assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), i[:, None], j[None]), exact)
    rows, keys = (range(0, n, 128) for n in exact.shape)
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


@pytest.mark.parametrize("key", ["decode", "unlike", "speculative"])
def test_the_mask_of_pages_is_exact(key: str) -> None:
    """With blocks and mask each query sees exactly the keys of its sequence up to its own."""
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
