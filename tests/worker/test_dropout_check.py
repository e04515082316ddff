"""The mask read from launches, the tests of its randomness, and the reference with dropout.

tests/wrong_kernels tests the whole check of a cell with dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import judge
from attnbench.backends.base import autograd_prepared
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Layout, Shape
from attnbench.judge import dropout_check, dropout_mask, inputs

CPU = torch.device("cpu")
WIDTHS = (torch.float64, torch.bfloat16)


def case(direction: Any = "fwd", p: float = 0.1, dtype: Any = "fp32", **changes: Any) -> Case:
    sizes = {"batch": 2, "seqlen_q": 40, "seqlen_k": 40, "nheads": 4, "nheads_k": 2, "headdim": 8, "headdim_v": 16}
    more = {name: changes.pop(name) for name in ("causal", "window_size", "softcap") if name in changes}
    return Case(Shape(**{**sizes, **changes}), dtype, direction, dropout_p=p, **more)


def prepared(which: Case, given: Inputs, layout: Layout = "bshd", mask: Callable[[], Tensor] | None = None) -> Prepared:
    """Return attention by its definition in float64, with the given mask, else with a new mask in each call."""
    s = which.shape
    size = (s.batch, s.nheads, s.seqlen_q, s.seqlen_k)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layout == "bshd":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k, v = q.double(), *(t.double().repeat_interleave(s.nheads // s.nheads_k, 1) for t in (k, v))
        scores = q @ k.mT * which.softmax_scale
        if which.causal:
            hidden = torch.ones(s.seqlen_q, s.seqlen_k, dtype=torch.bool).triu(1 + s.seqlen_k - s.seqlen_q)
            scores = scores.masked_fill(hidden, float("-inf"))
        kept = mask() if mask else torch.rand(size) >= which.dropout_p
        out = (scores.softmax(-1) * kept / (1 - which.dropout_p)) @ v
        return (out if layout == "bhsd" else out.transpose(1, 2)).float()

    return autograd_prepared(which, given, attend, layout)


SQUARE = {"seqlen_q": 4, "nheads": 4, "nheads_k": 4, "seqlen_k": 4}


@pytest.mark.parametrize(
    ("direction", "layout", "changes"),
    [
        *(("fwd", "bshd", {}), ("bwd", "bhsd", {}), ("fwd", "bhsd", {"nheads": 40, "nheads_k": 1})),
        *(("bwd", "bshd", SQUARE), ("fwd", "bhsd", SQUARE), ("fwd_bwd", "bshd", {"nheads": 40, "nheads_k": 1})),
    ],
    ids=str,
)
def test_the_mask_is_read_as_it_was_drawn(direction: str, layout: Layout, changes: dict[str, int]) -> None:
    """The mask is read as drawn, also with as many heads as rows, or more heads on a key head than columns of v."""
    which = case(direction, **changes)
    s = which.shape
    kept = torch.rand(s.batch, s.nheads, s.seqlen_q, s.seqlen_k) >= 0.3
    given = inputs.make(which, "cpu", 0)
    before = inputs.clone(given)
    made = prepared(which, given, layout, lambda: kept)
    sample = judge.choose_rows(which, CPU)
    masks = dropout_mask.MaskReader(which, made, given, dropout_mask.RandomState(which, CPU))
    read = masks.read(sample)
    theirs = kept.unflatten(1, (s.nheads_k, -1)).flatten(0, 1).transpose(1, 2)  # the sample has all rows of all heads
    assert sample.whole
    assert torch.equal(read, theirs)
    assert inputs.first_changed(given, before) is None
    results = made.canonical(made.launch())
    answer = judge.compute_reference(which, given, sample, kept=read)
    assert judge.compare(answer, results).ok
    assert not judge.compare(judge.compute_reference(which, given, sample), results).ok


def test_a_tensor_of_unknown_layout_is_refused() -> None:
    which = case()
    given = inputs.make(which, "cpu", 0)
    made = replace(prepared(which, given), reads={"v": given.v.flatten(0, 1)})
    with pytest.raises(ValueError, match=r"reads\['v'\] has shape"):
        dropout_mask.MaskReader(which, made, given, dropout_mask.RandomState(which, CPU))


def test_the_reference_with_a_mask_is_autograds() -> None:
    """The reference with a mask equals autograd's in float64, for all four results, with softcap and a causal mask."""
    which = case("fwd_bwd", causal=True, softcap=1.5, seqlen_k=50)
    given = inputs.make(which, "cpu", 0)
    sample = judge.choose_rows(which, CPU)
    s = which.shape
    kept = torch.rand(s.batch * s.nheads_k, s.seqlen_q, s.nheads // s.nheads_k, s.seqlen_k) >= which.dropout_p
    answer = judge.compute_reference(which, given, sample, kept=kept)
    q, k, v = (t.double().requires_grad_() for t in (given.q, given.k, given.v))
    scores = torch.einsum("bihgd,bjhd->bhigj", q.unflatten(2, (s.nheads_k, -1)), k) * which.softmax_scale
    scores = 1.5 * torch.tanh(scores / 1.5)
    hidden = torch.ones(s.seqlen_q, s.seqlen_k, dtype=torch.bool).triu(1 + s.seqlen_k - s.seqlen_q)
    p = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
    p = p * kept.unflatten(0, (s.batch, s.nheads_k)) / (1 - which.dropout_p)
    out = torch.einsum("bhigj,bjhd->bihgd", p, v).flatten(2, 3)
    assert given.dout is not None
    results = {
        "out": out.detach(),
        **dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), given.dout.double()), strict=True)),
    }
    for part in answer.parts:
        for name, exact in part.exact.items():
            torch.testing.assert_close(part.select(which, name, results[name]), exact, atol=1e-11, rtol=1e-9)


ROWS = {"batch": 1, "seqlen_q": 300, "seqlen_k": 512, "nheads": 4, "nheads_k": 2}


def flaws_of(which: Case, kept: Tensor) -> tuple[str, ...]:
    sample = judge.choose_rows(which, CPU)
    return dropout_mask.find_mask_flaws(which, sample.rows, dropout_mask.visible_in_sample(which, sample), kept)


@pytest.mark.parametrize(
    ("p", "changes"),
    [
        (0.1, {}),
        (0.003, {"causal": True}),
        (0.5, {"causal": True, "window_size": (40, 0)}),
        (0.95, {"causal": True, "window_size": (40, 0)}),
        (0.5, {"seqlen_q": 1}),
        (0.1, {"seqlen_q": 3, "seqlen_k": 5}),
    ],
    ids=str,
)
def test_random_bits_have_no_flaw(p: float, changes: dict[str, Any]) -> None:
    """Random bits have no flaw, nor have compared bytes as in flash-attn, with a kept share off by up to 1/256."""
    which = case(p=p, **{**ROWS, **changes})
    s = which.shape
    torch.manual_seed(0)
    size = (2, s.seqlen_q, 2, s.seqlen_k)
    assert flaws_of(which, torch.rand(size) >= p) == ()
    assert flaws_of(which, torch.randint(256, size) <= int((1 - p) * 255)) == ()


@pytest.mark.parametrize(("p", "causal"), [(0.1, True), (0.5, False)])
@pytest.mark.parametrize(
    ("size", "repeat", "says"),
    [
        ((1, 300, 1, 512), (2, 1, 2, 1), "several heads"),
        ((2, 300, 1, 512), (1, 1, 2, 1), "several heads"),
        ((1, 300, 2, 512), (2, 1, 1, 1), "several heads"),
        ((2, 1, 2, 512), (1, 300, 1, 1), "several query rows"),
        ((2, 100, 2, 512), (1, 3, 1, 1), "several query rows"),
        ((2, 300, 2, 128), (1, 1, 1, 4), "every 128 keys"),
        ((2, 300, 2, 1), (1, 1, 1, 512), "every 1 keys"),
    ],
)
def test_masks_that_repeat_are_found(p: float, causal: bool, size: Any, repeat: Any, says: str) -> None:
    which = case(p=p, causal=causal, **{**ROWS, "seqlen_k": 512})
    kept = (torch.rand(size, generator=torch.Generator().manual_seed(1)) >= p).repeat(repeat)
    assert any(says in flaw for flaw in flaws_of(which, kept))


@pytest.mark.parametrize(
    ("p", "actual"), [(0.1, 0.0), (0.1, 0.09), (0.1, 0.11), (0.5, 0.49), (0.9, 0.1), (0.005, 0.01)]
)
def test_a_wrong_share_is_found(p: float, actual: float) -> None:
    kept = torch.rand((2, 300, 2, 512), generator=torch.Generator().manual_seed(1)) >= actual
    (flaw,) = flaws_of(case(p=p, **ROWS), kept)
    assert "of the probabilities where" in flaw


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_cost_is_bounded(direction: str) -> None:
    """The cost is bounded: rows are thinned until LAUNCHES launches show them; for a forward keys count."""
    which = case(direction, batch=1, nheads=8, nheads_k=1, seqlen_q=4096, seqlen_k=64, headdim_v=8)
    fewer = dropout_mask.readable_sample(which, CPU, 0)
    assert len(dropout_mask.launch_parts(which, fewer)) <= dropout_mask.LAUNCHES
    assert (int(fewer.rows[0, 0, 0]), int(fewer.rows[0, -1, 0])) == (0, 4095)
    assert fewer.rows.shape[1] == (128 if direction == "bwd" else 4096)


@pytest.mark.parametrize(("p", "changes"), [(0.02, {}), (0.1, {"causal": True}), (0.9, {})], ids=str)
def test_statistics_of_the_output_tell_wrong_dropout(p: float, changes: dict[str, Any]) -> None:
    """Statistics of the output find wrong dropout (too much, nothing, a missing factor) and pass right outputs."""
    which = case(p=p, seqlen_q=200, seqlen_k=300, **changes)
    given = inputs.make(which, "cpu", 0)
    sample = judge.choose_rows(which, CPU)
    s = which.shape
    size = (s.batch, s.nheads, s.seqlen_q, s.seqlen_k)

    def out(kept: Tensor, factor: float = 1.0) -> tuple[str, ...]:
        """Return the output in float64; with p = 0 the output without dropout."""
        made = prepared(which, given, mask=lambda: kept)
        return dropout_check.find_statistics_flaws(which, given, sample, made.canonical(made.launch())["out"] * factor)

    torch.manual_seed(0)
    for _ in range(2):
        assert out(torch.rand(size) >= p) == ()
    assert out(torch.randint(256, size) <= int((1 - p) * 255)) == ()
    assert out(torch.ones(size), 1 - p) != ()
    assert out(torch.rand(size) >= p, 1 - p) != ()
    assert out(torch.rand(size) >= min(0.97, 1.5 * p + 0.02)) != ()
    assert out(torch.full(size, float("nan"))) != ()


def fused_backward(which: Case, given: Inputs, kept: Tensor, out: Tensor) -> dict[str, Tensor]:
    """Return the results of a fused backward in float64, which subtracts dout out', with `out`, from each row of dP.

    `kept` and `out` are (batch, nheads, seqlen_q, ...), the results (batch, seqlen, nheads, headdim).
    """
    assert given.dout is not None
    q, k, v, dout = (t.transpose(1, 2).double() for t in (given.q, given.k, given.v, given.dout))
    p, weights = probabilities_of(which, given), kept / (1 - which.dropout_p)
    d = (dout * out.double()).sum(-1, keepdim=True)
    ds = p * (dout @ v.mT * weights - d) * which.softmax_scale
    results = {"out": (p * weights) @ v, "dq": ds @ k, "dk": ds.mT @ q, "dv": (p * weights).mT @ dout}
    return {name: t.transpose(1, 2) for name, t in results.items()}


def probabilities_of(which: Case, given: Inputs) -> Tensor:
    """Return the probabilities before dropout, (batch, nheads, seqlen_q, seqlen_k)."""
    q, k = (t.transpose(1, 2).double() for t in (given.q, given.k))
    seen = judge.visible_keys(which, torch.arange(which.shape.seqlen_q))
    return (q @ k.mT * which.softmax_scale).masked_fill(~seen, float("-inf")).softmax(-1)


@dataclass(frozen=True)
class Fused:
    """A case with its inputs, its dropout mask and its reference."""

    which: Case
    given: Inputs
    kept: Tensor
    answer: judge.Reference

    def out(self, p: float = 0.1) -> Tensor:
        """Return out in float64; with p = 0 without dropout."""
        weights = self.kept / (1 - p) if p else torch.ones_like(self.kept)
        return (probabilities_of(self.which, self.given) * weights) @ self.given.v.transpose(1, 2).double()

    def results(self, out: Tensor) -> dict[str, Tensor]:
        made = fused_backward(self.which, self.given, self.kept, out)
        return {name: t.bfloat16() for name, t in made.items()}


@pytest.fixture(params=[{"causal": True}, {"window_size": (0, 0)}], ids=["causal", "one key"])
def fused(request: Any) -> Fused:
    """Return a case of 128 heads. Where each query sees one key, eager's dq is exactly zero."""
    return made(Shape(4, 32, 32, 32, 32, 64, 64), 0, **request.param)


def made(shape: Shape, seed: int, **mask: Any) -> Fused:
    which = Case(shape, "bf16", "bwd", dropout_p=0.1, **mask)
    given = inputs.make(which, "cpu", seed)
    scores = (shape.batch, shape.nheads, shape.seqlen_q, shape.seqlen_k)
    kept = torch.rand(scores, generator=torch.Generator().manual_seed(seed)) >= which.dropout_p
    sample = judge.choose_rows(which, CPU)
    assert sample.whole
    return Fused(which, given, kept, judge.compute_reference(which, given, sample, kept=kept.flatten(0, 1)[:, :, None]))


def test_the_error_of_a_rounded_out_in_dq_and_dk_is_allowed(fused: Fused) -> None:
    """The error of a rounded out in dq and dk is allowed, and has the computed size in every position."""
    exact, rounded = (fused_backward(fused.which, fused.given, fused.kept, fused.out().to(t)) for t in WIDTHS)
    for name in ("dq", "dk"):
        off = (rounded[name] - exact[name]).transpose(1, 2).flatten(0, 1).square().sum((0, 2))
        share = off / fused.answer.rounding[name].square
        assert share.min() > 0.3
        assert share.max() < 1.1
    results = fused.results(fused.out().bfloat16())
    assert judge.compare(fused.answer, results).ok
    if not fused.which.causal:
        assert not judge.compare(replace(fused.answer, rounding={}), results).ok


@pytest.mark.parametrize("mask", [{"causal": True}, {"window_size": (0, 0)}], ids=["causal", "one key"])
def test_the_error_of_a_rounded_out_is_allowed_for_a_single_head(mask: dict[str, Any]) -> None:
    """The error is allowed for a single head, whose rows have one such error each, which may all be large."""
    for seed in range(20):
        one = made(Shape(1, 128, 128, 1, 1, 64, 64), seed, **mask)
        found = judge.compare(one.answer, one.results(one.out().bfloat16()))
        assert found.ok, (seed, found.errors)


def test_a_row_sum_without_dropout_is_wrong(fused: Fused) -> None:
    found = judge.compare(fused.answer, fused.results(fused.out(p=0.0)))
    assert [name for name, error in found.errors.items() if not error.ok] == ["dq", "dk"]
