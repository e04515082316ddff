"""The reference against brute force in float64, and the comparison against wrong results."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnbench import judge
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.backend import Inputs, Prepared, torch_dtype
from attnbench.core.case import Case, Shape
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import InputRenewal
from attnbench.judge import checksums, exact_attention, inputs, truncation

CPU = torch.device("cpu")
Results = dict[str, Tensor]


def case(sq=20, sk=20, h=2, h_k=1, d=8, d_v=8, batch=1, dtype="fp32", direction="fwd_bwd", causal=False, **more):
    return Case(Shape(batch, sq, sk, h, h_k, d, d_v), dtype, direction, causal, **more)


def brute_force(c: Case, given: Inputs, offset: int | None = None) -> Results:
    """Return attention row by row from its definition, in float64, with autograd's gradients.

    A row that sees no key is 0.
    """
    q, k, v = (t.double().requires_grad_() for t in (given.q, given.k, given.v))
    s, (left, right) = c.shape, c.window_size
    offset = s.seqlen_k - s.seqlen_q if offset is None else offset
    rows = []
    for b, i, h in torch.cartesian_prod(*(torch.arange(n) for n in (s.batch, s.seqlen_q, s.nheads))).tolist():
        seen = [
            j
            for j in range(s.seqlen_k)
            if (not c.causal or j <= i + offset)
            and (left is None or j >= i + offset - left)
            and (right is None or j <= i + offset + right)
        ]
        of = h // (s.nheads // s.nheads_k)
        scores = k[b, seen, of] @ q[b, i, h] / math.sqrt(s.headdim)
        if c.softcap:
            scores = c.softcap * torch.tanh(scores / c.softcap)
        weights = scores.exp() / scores.exp().sum() if seen else scores
        rows.append(weights @ v[b, seen, of])
    out = torch.stack(rows).view(s.batch, s.seqlen_q, s.nheads, s.headdim_v)
    results = {"out": out.detach()}
    if c.has_backward:
        results.update(zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), given.dout.double()), strict=True))
    return results


def rounded(c: Case, results: Results) -> Results:
    return {name: t.to(torch_dtype(c)) for name, t in results.items()}


def setup(c: Case, seed: int = 0) -> tuple[Inputs, judge.RowSample, judge.Reference]:
    given = inputs.make(c, "cpu", seed)
    sample = judge.choose_rows(c, CPU, seed)
    given = judge.check_inputs(c, given, sample)
    return given, sample, judge.compute_reference(c, given, sample)


def accuracy_after(c: Case, change: Callable[[Results], object]) -> Accuracy:
    """Return the accuracy of the true results in the case's dtype after one change."""
    given, _, answer = setup(c)
    results = rounded(c, brute_force(c, given))
    assert judge.compare(answer, results).ok  # otherwise the change would prove nothing
    change(results)
    return judge.compare(answer, results)


@pytest.mark.parametrize(
    "c",
    [
        case(13, 13),
        case(13, 13, causal=True),
        case(7, 15, causal=True, d_v=4),
        case(15, 7, causal=True),  # eight queries see no key
        case(1, 19, causal=True, h=4, h_k=2, batch=2),
        case(12, 12, window_size=(3, 2)),
        case(9, 14, causal=True, window_size=(4, None)),
        case(14, 9, window_size=(None, 1)),
        case(11, 16, softcap=0.7),
        case(11, 16, causal=True, softcap=1.5, window_size=(5, 0), h=4, h_k=2),
    ],
    ids=str,
)
def test_matches_brute_force(c: Case) -> None:
    given, sample, answer = setup(c)
    assert sample.whole
    assert same(answer, brute_force(c, given)) == c.shape.batch * c.shape.nheads_k


def same(answer: judge.Reference, want: Results) -> int:
    """Assert that the exact results equal `want` in float64, and return the number of heads."""
    for part in answer.parts:
        for name, ours in part.exact.items():
            assert ours.dtype == torch.float64
            torch.testing.assert_close(ours, part.select(answer.case, name, want[name]))
    return sum(len(part.head) for part in answer.parts)


@pytest.mark.parametrize("elements", [3 * 31 * 29, 31 * 5], ids=["pairs", "rows"])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Chunks, of pairs and of rows of one pair, change nothing."""
    c = case(29, 31, causal=True, h=4, h_k=2, batch=3)
    given, _, whole = setup(c)
    monkeypatch.setattr(exact_attention, "CHUNK", 2 * elements)
    _, _, chunked = setup(c)
    assert len(whole.parts) == 1
    assert len(chunked.parts) > 1
    assert same(chunked, brute_force(c, given)) == 6
    for name, size in whole.size.items():
        torch.testing.assert_close(chunked.size[name].largest, size.largest)
        torch.testing.assert_close(chunked.size[name].square, size.square)


def sampled(monkeypatch: pytest.MonkeyPatch, budget: int, c: Case, seed: int = 0) -> judge.RowSample:
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", budget)
    return judge.choose_rows(c, CPU, seed)


def test_a_sample_has_some_rows_of_every_head(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(4096, 40, h=12, h_k=6, batch=5)
    found = sampled(monkeypatch, 30 * 64 * 2 * 40, c, seed=3)
    assert (found.all_pairs, found.all_rows, found.whole) == (True, False, False)
    assert sorted(zip(found.batch.tolist(), found.head.tolist(), strict=True)) == [
        (b, h) for b in range(5) for h in range(6)
    ]
    assert found.rows.shape == (30, 64, 2)
    assert (found.rows[:, 0] == 0).all()
    assert (found.rows[:, -1] == 4095).all()
    section = torch.arange(62)[:, None] * 4094 // 62 + 1
    assert ((found.rows[:, 1:-1] >= section) & (found.rows[:, 1:-1] < section + 67)).all()  # one row of each section
    together = found.rows[:, 1:-1].unique()
    assert int(together.diff().max()) <= 4  # a single head has gaps of 64 to 128
    assert torch.equal(found.rows, judge.choose_rows(c, CPU, seed=3).rows)
    assert not torch.equal(found.rows, judge.choose_rows(c, CPU, seed=4).rows)
    assert judge.choose_rows(c, CPU, share=0.5).rows.shape == (30, 32, 2)
    assert (found.seed, found.heads) == (3, 60)


def test_heads_are_left_out_where_few_rows_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(400, 40, h=6, h_k=3, batch=5)
    for budget, heads in ((1, 2), (4 * 16 * 2 * 40, 4), (15 * 16 * 2 * 40, 15)):
        found = sampled(monkeypatch, budget, c)
        pairs = list(zip(found.batch.tolist(), found.head.tolist(), strict=True))
        assert len({*pairs}) == heads
        assert pairs == sorted(pairs)
        assert {(0, 0), (4, 2)} <= {*pairs}
        assert found.all_pairs == (heads == 15)
        assert found.rows.shape == (heads, 16, 2)
    assert sampled(monkeypatch, 1, case(1, 40)).all_rows


def seen_share(found: judge.RowSample, seqlen: int, heads: int | None) -> float:
    """Return the share of tiles of 64 rows in which the sample has a row of the first `heads` query heads."""
    rows = found.rows.transpose(1, 2).flatten(0, 1)[:heads]
    return len((rows // 64).unique()) / (seqlen // 64)


def test_the_probability_that_a_wrong_tile_is_seen_is_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probability that a wrong tile is seen is 64 / W in one head and min(1, 64 heads / W) in all (row_sample.py).

    The figures are of 64k tokens with a GPU's budget.
    """
    for heads, heads_k, count in ((16, 1, 128), (32, 8, 64)):
        c = case(2**16, 2**16, heads, heads_k, direction="fwd")
        found = [sampled(monkeypatch, 2**27, c, seed) for seed in range(20)]
        assert all(sample.rows.shape == (heads_k, count, heads // heads_k) for sample in found)
        width = 2**16 / (count - 2)
        one = sum(seen_share(sample, 2**16, 1) for sample in found) / len(found)
        assert one == pytest.approx(64 / width, rel=0.05)
        assert min(seen_share(sample, 2**16, None) for sample in found) > 0.99


def test_all_rows_where_a_reference_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", 1)
    c = case(400, 40, h=6, h_k=3, batch=5, d=8, d_v=16)
    cost = 2 * 6 * (8 + 16) * 5 * 6 * 400 * 40
    assert judge.choose_rows(c, CPU, full_flops=cost).whole
    assert not judge.choose_rows(c, CPU, full_flops=0.99 * cost).all_rows


def test_rows_with_a_run_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", 30 * 64 * 2 * 40)
    c = case(4096, 40, h=12, h_k=6, batch=5)
    found = judge.choose_rows(c, CPU, most=40, run=8)
    assert found.rows.shape == (30, 40, 2)
    assert (found.rows[:, -8:] == torch.arange(4088, 4096)[:, None]).all()
    assert (found.rows.diff(dim=1) > 0).all()
    assert (found.rows[:, 0] == 0).all()


@pytest.mark.parametrize("budget", [1, 6 * 20 * 2 * 24], ids=["two heads", "all heads"])
def test_sampled_gradients_of_keys_are_exact(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """dk and dv of a sample are exact, because dout is masked outside the sample."""
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", budget)
    c = case(100, 24, h=4, h_k=2, d=4, d_v=4, causal=True, batch=3)
    given, sample, answer = setup(c)
    original = inputs.make(c, "cpu", 0)
    want = brute_force(c, given)  # over all rows, with the masked dout
    assert same(answer, want) == len(sample.batch) == (2 if budget == 1 else 6)
    assert judge.compare(answer, rounded(c, want)).ok
    others = rounded(c, brute_force(c, original))
    assert not judge.compare(answer, others).ok  # without the mask they differ
    assert judge.compare(answer, others, ("out", "dq")).ok
    assert set(answer.without_dk_dv().parts[0].exact) == {"out", "dq"}


def swap_heads(results: Results) -> None:
    results["out"] = results["out"].flip(2)


def test_zeros_are_wrong() -> None:
    for dtype in ("fp32", "fp16", "bf16"):
        accuracy = accuracy_after(case(dtype=dtype), lambda r: r["out"].zero_())
        assert not accuracy.ok
        assert accuracy.problem().startswith("out is off by")


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_value_that_is_not_finite_is_wrong(name: str, value: float) -> None:
    accuracy = accuracy_after(case(), lambda r: r[name].view(-1)[5:6].fill_(value))
    assert accuracy.unwritten == (name,)
    assert f"{name} has values that are not finite" in accuracy.problem()


def test_nan_outside_the_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", 1)
    c = case(300, 10, h=3, h_k=3, direction="fwd")
    given, sample, answer = setup(c)
    results = rounded(c, brute_force(c, given))
    row = next(i for i in range(300) if i not in sample.rows.flatten().tolist())
    results["out"][0, row, 1] = math.nan
    assert judge.compare(answer, results).unwritten == ("out",)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("out", swap_heads),
        ("out", lambda r: r["out"][:, :, -1].mul_(1.05)),
        ("out", lambda r: r["out"][:, -1].mul_(0.5)),  # only the last row
        ("dk", lambda r: r["dk"].mul_(2)),  # a scale applied twice, or gradients that accumulate
        ("dv", lambda r: r["dv"][:, 0].zero_()),
        ("dq", lambda r: r["dq"].neg_()),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_one_wrong_tensor_is_named_alone(what: str, change: Callable[[Results], object], dtype: str) -> None:
    accuracy = accuracy_after(case(40, 40, dtype=dtype), change)
    assert [name for name, e in accuracy.errors.items() if not e.ok] == [what]
    assert accuracy.problem().startswith(f"{what} is off by ")


def test_small_errors_in_late_rows_are_found_under_causal() -> None:
    """Small errors in late rows are found under a causal mask, although early rows are large and tolerate more."""
    c = case(512, 512, h=1, causal=True, dtype="bf16", direction="fwd")
    given, _, answer = setup(c)
    out = brute_force(c, given)["out"]
    late = out.clone()
    late[:, -64:] += 0.012
    early = out.clone()
    early[:, 1] += 0.012
    assert out[:, :16].abs().max() > 100 * 0.012
    assert judge.compare(answer, rounded(c, {"out": early})).ok
    assert not judge.compare(answer, rounded(c, {"out": late})).ok


def test_causal_aligned_top_left_is_wrong() -> None:
    for sq, sk in ((24, 40), (40, 24)):
        c = case(sq, sk, causal=True, dtype="bf16", direction="fwd")
        given, _, answer = setup(c)
        assert judge.compare(answer, rounded(c, brute_force(c, given))).ok
        assert not judge.compare(answer, rounded(c, brute_force(c, given, offset=0))).ok


@pytest.mark.parametrize("bits", [8, 11], ids=["bf16", "tf32"])
@pytest.mark.parametrize("causal", [False, True])
def test_lower_precision_than_fp32_is_wrong(bits: int, causal: bool) -> None:
    c = case(64, 64, d=32, d_v=32, causal=causal)
    given, _, answer = setup(c)

    def cut(t: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(t)
        return torch.ldexp(torch.round(fraction * 2**bits) / 2**bits, exponent)

    coarse = replace(given, q=cut(given.q), k=cut(given.k), v=cut(given.v), dout=cut(given.dout))
    accuracy = judge.compare(answer, rounded(c, brute_force(c, coarse)))
    assert not any(e.ok for e in accuracy.errors.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(out=r["out"][:, :-1]), r"out has shape \(1, 19, 2, 8\), expected \(1, 20, 2, 8\)"),
        (lambda r: r.update(dk=r["dk"].transpose(1, 2)), "dk has shape"),
        (lambda r: r.update(dv=r["dv"].double()), "dv is torch.float64, expected torch.float32"),
        (lambda r: r.pop("dq"), "returned no dq"),
    ],
)
def test_results_of_another_shape_or_dtype_are_refused(change: Callable[[Results], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accuracy_after(case(), change)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("sizes", [(64, 64, 2, 2), (48, 80, 4, 1), (1, 200, 8, 2)])
def test_a_right_backend_passes(sizes: tuple[int, ...], dtype: str) -> None:
    sq, sk, h, h_k = sizes
    for causal in (False, True):
        c = case(sq, sk, h, h_k, d=32, d_v=32, dtype=dtype, causal=causal)
        given, _, answer = setup(c)
        prepared = Eager().prepare(c, given)
        accuracy = judge.compare(answer, prepared.canonical(prepared.launch()))
        assert accuracy.ok, accuracy.problem()
        assert accuracy.rows == sq
        assert set(accuracy.errors) == {"out", "dq", "dk", "dv"}


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1.6, True), (4.0, False)])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_many_small_errors_are_wrong_where_none_is_large(factor: float, ok: bool, dtype: str) -> None:
    """Many equal errors are wrong by the root mean square, even if none exceeds the bound of the largest error."""
    c = case(256, 256, h=1, d=64, d_v=64, dtype=dtype, direction="fwd")
    given, _, answer = setup(c)
    out = brute_force(c, given)["out"]
    size = factor * answer.relative_eager_error("out") * float(out.square().mean().sqrt())
    signs = torch.randint(0, 2, out.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    accuracy = judge.compare(answer, rounded(c, {"out": out + size * signs}))
    assert accuracy.ok == ok
    if not ok:
        assert accuracy.errors["out"].max_error == pytest.approx(size, rel=0.2)  # the root mean square is reported


CHECKED = {"sq": 96, "sk": 96, "h": 4, "h_k": 2, "d": 16, "d_v": 8, "batch": 2}


@functools.cache
def true_results(**fields: Any) -> tuple[Case, Inputs, judge.Reference, Results]:
    given, _, answer = setup(c := case(**fields))
    return c, given, answer, brute_force(c, given)


def checksums_hold(fields: Mapping[str, Any], change: Callable[[Results], object] = lambda _: None) -> dict[str, bool]:
    """Return whether the checksums of dk and dv hold for the true results in the case's dtype, after one change."""
    c, given, answer, true = true_results(**fields)
    results = rounded(c, true)
    change(results)
    return {name: error.ok for name, error in judge.compare_checksums(answer, given, results).items()}


@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "fp32"},
        {"dtype": "fp16", "causal": True},
        {"dtype": "bf16", "softcap": 0.7},
        {"dtype": "fp16", "window_size": (9, 0)},
        {"dtype": "bf16", "sq": 50},
    ],
    ids=str,
)
def test_checksums_hold_for_true_gradients(more: dict[str, object]) -> None:
    assert checksums_hold({**CHECKED, **more}) == {"dk": True, "dv": True}


@pytest.mark.parametrize("name", ["dk", "dv"])
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.mul_(0.9),
        lambda t: t[-1, :, -1].mul_(0.5),  # one head
        lambda t: t[0, 64:80, 0].zero_(),  # a tile in one head
        lambda t: t[0, :, 0].copy_(t[0, :, 1].clone()),  # the other head's
        lambda t: t.fill_(math.nan),
    ],
    ids=["all", "a head", "a tile", "another's", "nan"],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_checksums_find_wrong_gradients(name: str, change: Callable[[Tensor], object], dtype: str) -> None:
    found = checksums_hold(CHECKED | {"dtype": dtype, "causal": True}, lambda results: change(results[name]))
    assert found == {"dk": name != "dk", "dv": name != "dv"}


def test_checksums_hold_for_sums_on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums hold for truncated sums of tensor cores, with which dv of many rows is too small.

    2^17 rows with 20 bits represent 2^20 rows with the 23 bits of float32. Without the allowance the same results are
    wrong; with it four times the loss, an equal excess, and other errors are wrong.
    """
    monkeypatch.setattr(truncation, "FLOAT32_UNIT", 8 * truncation.FLOAT32_UNIT)
    c = case(2**17, 16, h=1, dtype="fp16", direction="bwd")
    given = inputs.make(c, "cpu", 0)
    sample = judge.choose_rows(c, CPU, 0)
    answer = judge.compute_reference(c, judge.check_inputs(c, given, sample), sample)
    q, k, v, dout = (t[0, :, 0].double().requires_grad_() for t in (given.q, given.k, given.v, given.dout))
    p = torch.softmax(q @ k.mT / math.sqrt(8), -1)
    out = p @ v
    exact = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), dout), strict=True))
    added = (p.unflatten(0, (-1, 8)).mT @ dout.unflatten(0, (-1, 8))).detach().numpy()
    found = np.zeros((16, 8))
    for products in added:
        found += products
        found.view(np.int64)[:] &= -(2**32)  # keeps 20 of the 52 bits of a float64
    dv = torch.tensor(found)
    shrinking = 1 - float((dv * exact["dv"]).sum() / exact["dv"].square().sum())
    assert 5e-4 < shrinking < 2**14 * 2**-21  # more than a rounding to fp16, at most half a unit for each step

    def holds(dv: Tensor) -> bool:
        results = {"out": out.detach(), **exact, "dv": dv}
        results = rounded(c, {name: t[None, :, None] for name, t in results.items()})
        return judge.compare_checksums(answer, given, results)["dv"].ok

    assert holds(dv)
    assert not holds(exact["dv"] + 4 * (dv - exact["dv"]))
    assert not holds(exact["dv"] - (dv - exact["dv"]))
    assert not holds(dv * torch.where(torch.arange(16) == 5, 0.98, 1.0)[:, None])  # one of 16 keys
    monkeypatch.setattr(truncation, "ADDED_AT_ONCE", math.inf)
    assert not holds(dv)
    assert holds(exact["dv"])


def test_checksums_hold_for_subnormal_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums hold for subnormal probabilities: 2e-6 for 2^19 keys, which fp16 rounds to multiples of 6e-8."""
    c = case(64, 2**19, h=1, dtype="fp16", direction="bwd")
    given, _, answer = setup(c)
    answer = replace(answer, eager={name: replace(p, square=p.square * 0) for name, p in answer.eager.items()})
    q, k, v, dout = (t[0, :, 0].double().requires_grad_() for t in (given.q, given.k, given.v, given.dout))
    p = torch.softmax(q @ k.mT / math.sqrt(8), -1)
    out = p @ v
    dq, dk, _ = torch.autograd.grad(out, (q, k, v), dout)
    dv = p.detach().half().double().mT @ dout.detach()

    def holds(dv: Tensor) -> bool:
        results = {"out": out.detach(), "dq": dq, "dk": dk, "dv": dv}
        results = rounded(c, {name: t[None, :, None] for name, t in results.items()})
        return judge.compare_checksums(answer, given, results)["dv"].ok

    assert holds(dv)
    monkeypatch.setattr(checksums, "rms_of_subnormals", lambda _: 0.0)
    assert not holds(dv)


def test_checksums_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(64, 64, h=6, h_k=3, d=16, d_v=16, batch=2)
    given, _, answer = setup(c)
    results = rounded(c, brute_force(c, given))
    whole = judge.compare_checksums(answer, given, results)
    monkeypatch.setattr(checksums, "CHUNK", 1)
    for name, error in judge.compare_checksums(answer, given, results).items():
        assert error.max_error == pytest.approx(whole[name].max_error, rel=1e-3)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_renewed_inputs_have_other_signs_only(direction: str, dtype: str) -> None:
    c = case(64, 64, d=16, d_v=16, dtype=dtype, direction=direction)
    given = inputs.make(c, "cpu", 0)
    before = inputs.clone(given)
    own = InputRenewal(c, given, Prepared(lambda: None, dict), seed=0)
    renewed = {"fwd": ("q", "k", "v"), "bwd": ("dout",), "fwd_bwd": ("q", "k", "v", "dout")}[direction]
    seen = []
    for _ in range(3):
        own.renew()
        for name in renewed:
            now, was = getattr(given, name), getattr(before, name)
            assert torch.equal(now.abs(), was.abs())
            assert float((now != was).float().mean()) == pytest.approx(0.0625, abs=0.01)
        seen.append(torch.cat([getattr(given, name).flatten() for name in renewed]))
        assert inputs.find_flaw(given) is None
        made = own.apply_to(inputs.make(c, "cpu", 0))
        assert all(torch.equal(made.values[n], t) for n, t in given.values.items())
    assert all(float((a != b).float().mean()) > 0.0 for a, b in itertools.combinations(seen, 2))
    own.restore()
    own.restore()
    assert all(torch.equal(given.values[name], t) for name, t in before.values.items())


def test_fp8_copies_are_renewed_exactly() -> None:
    c = case(64, 64, d=16, d_v=16, dtype="bf16")
    given = inputs.make(c, "cpu", 0)
    reads = {name: getattr(given, name).to(torch.float8_e4m3fn) for name in ("q", "k", "v")}
    before = {name: t.float() for name, t in reads.items()}
    renewal = InputRenewal(c, given, Prepared(lambda: None, dict, reads=reads), seed=0)
    renewal.renew()
    assert all(torch.equal(t.float().abs(), before[name].abs()) for name, t in reads.items())
    assert not any(torch.equal(t.float(), before[name]) for name, t in reads.items())
    renewal.restore()
    assert all(torch.equal(t.float(), before[name]) for name, t in reads.items())


def test_a_copy_of_values_that_are_a_part_of_keys_is_renewed_with_them() -> None:
    """Latent rows have one head, so eager's k is in its order as it is, and its v is a copy."""
    c = Case(Shape(2, 1, 96, 4, 1, 24, 16), "fp32", "fwd", True, latent=True, scale=0.2)
    given = inputs.make(c, "cpu", 0)
    prepared = Eager().prepare(c, given)
    renewal = InputRenewal(c, given, prepared, seed=0)
    before = prepared.canonical(prepared.launch())["out"]
    renewal.renew()
    check = judge.make_check(c, renewal.apply_to(inputs.make(c, "cpu", 0)), 0)
    assert check.check_first(prepared.canonical(prepared.launch())).ok
    renewal.restore()
    assert torch.equal(prepared.canonical(prepared.launch())["out"], before)


@pytest.mark.parametrize(
    "n", [7, exact_attention.SUM_SECTION, 3 * exact_attention.SUM_SECTION, 3 * exact_attention.SUM_SECTION + 1]
)
def test_a_long_product(n: int) -> None:
    a, b = (torch.randn(*size, dtype=torch.float64) for size in ((2, 3, n), (2, n, 5)))
    torch.testing.assert_close(exact_attention.long_product(a, b), a @ b)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda out: out.mul_(2), "in every query row"),
        (lambda out: out.zero_(), "all zeros"),
        (lambda out: out[:, 128:].mul_(2), "from query row 128 on"),
        (lambda out: out[:, :64].mul_(2), "up to query row 63"),
        (lambda out: out[:, 64:128].mul_(2), "in query rows 64 to 127"),
        (lambda out: out[:, 5].mul_(2), "in query row 5"),
        (lambda out: out[:, 1::4].mul_(2), "in 64 of 256 query rows, the first 1"),
    ],
)
def test_a_wrong_result_says_where_it_is(wrong: Callable[[Tensor], object], said: str) -> None:
    which = Case(Shape(1, 256, 256, 2, 2, 16, 16), "fp32", "fwd")
    given = inputs.make(which, "cpu", 0)
    check = judge.make_check(which, given, 0)
    out = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (given.q, given.k, given.v)))
    results = {"out": out.transpose(1, 2).contiguous()}
    assert check.check_first(results).ok
    wrong(results["out"])
    assert check.check_first(results).problem().endswith(f", {said}")
