"""`flex` and `compile` with torch.compile replaced: their functions are right, and how torch.compile is prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config

from attnbench.backends.masks import block_mask, effective_window, flash_window, visibility_mask
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.worker import inputs
from attnbench.worker.reference import visible_keys as exactly
from standins.contract import CPU, HOPPER, backend, cases, check

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
        return _flex if fn is flex_attention.flex_attention else fn

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
) -> torch.Tensor:
    from standins.transformers import _flex as masked

    assert enable_gqa or query.shape[1] == key.shape[1]
    cap = None
    if score_mod is not None:
        # tanh saturates: a large score becomes the cap
        cap = float(score_mod(torch.tensor(1e9), 0, 0, 0, 0))
        score = torch.tensor([-3.0, 0.1, 1.0])
        torch.testing.assert_close(score_mod(score, 0, 0, 0, 0), cap * torch.tanh(score / cap))
    out, _ = masked(torch.nn.Module(), query, key, value, block_mask, scaling=scale, softcap=cap)
    return out.transpose(1, 2)


@pytest.mark.usefixtures("compile_calls")
@cases("flex", "compile")
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.parametrize("name", ["flex", "compile"])
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
