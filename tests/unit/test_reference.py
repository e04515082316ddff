"""The reference against float64 brute force, and the comparison against everything that must not pass it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnbench import inputs, reference
from attnbench.backends.eager import Eager
from attnbench.types import Accuracy, Case, Shape

CPU = torch.device("cpu")
Results = dict[str, Tensor]


def case(sq=20, sk=20, h=2, h_k=1, d=8, d_v=8, batch=1, dtype="fp32", direction="fwd_bwd", causal=False, **more):
    return Case(Shape(batch, sq, sk, h, h_k, d, d_v), dtype, direction, causal, **more)


def brute(c: Case, given: inputs.Inputs, offset: int | None = None) -> Results:
    """Attention row by row from its definition, in float64; gradients by autograd. A row that sees nothing is 0."""
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
    return {name: t.to(inputs.torch_dtype(c)) for name, t in results.items()}


def setup(c: Case, seed: int = 0) -> tuple[inputs.Inputs, reference.Sample, reference.Reference]:
    given = inputs.make(c, "cpu", seed)
    sample = reference.choose(c, CPU, seed)
    given = reference.check_inputs(c, given, sample)
    return given, sample, reference.reference(c, given, sample)


def exact_elsewhere(c: Case, change: Callable[[Results], object]) -> Accuracy:
    """What compare says of the true results in the case's dtype, changed in one way."""
    given, _, answer = setup(c)
    results = rounded(c, brute(c, given))
    assert reference.compare(answer, results).ok  # or the change proves nothing
    change(results)
    return reference.compare(answer, results)


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
    want = brute(c, given)
    group = c.shape.nheads // c.shape.nheads_k
    assert sample.all_rows
    assert len(sample.heads) == c.shape.batch * c.shape.nheads_k
    for (b, h), exact in zip(sample.heads, answer.exact, strict=True):
        for name in ("out", "dq"):
            torch.testing.assert_close(exact[name], want[name][b, :, h * group : (h + 1) * group].transpose(0, 1))
        for name in ("dk", "dv"):
            torch.testing.assert_close(exact[name], want[name][b, :, h])
        assert exact["out"].dtype == torch.float64


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(29, 31, causal=True)
    _, _, whole = setup(c)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 3 * 2 * 31 * 8)  # three rows of two heads
    _, _, chunked = setup(c)
    for name, want in whole.exact[0].items():
        torch.testing.assert_close(chunked.exact[0][name], want)


def test_a_sample_has_the_first_and_last_row_and_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.BUDGET, "cpu", 1)
    c = case(400, 40, h=6, h_k=3, batch=5)
    sample = reference.choose(c, CPU, seed=3)
    rows = sample.rows.tolist()
    assert not sample.all_rows
    assert rows == sorted(set(rows))
    assert {rows[0], rows[-1]} == {0, 399}
    assert 64 <= len(rows) <= 66
    assert max(b - a for a, b in itertools.pairwise(rows)) <= 2 * math.ceil(400 / 64)  # one from each stretch
    assert {(0, 0), (4, 2)} == set(sample.heads)
    assert sample.rows.tolist() != reference.choose(c, CPU, seed=4).rows.tolist()
    assert rows == reference.choose(c, CPU, seed=3).rows.tolist()


def test_as_many_whole_heads_as_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(32, 32, h=8, h_k=8)
    for budget, heads in ((2 * 32 * 32, 2), (3 * 32 * 32, 3), (100 * 32 * 32, 4)):
        monkeypatch.setitem(reference.BUDGET, "cpu", budget)
        sample = reference.choose(c, CPU)
        assert sample.all_rows
        assert len(set(sample.heads)) == heads
        assert {(0, 0), (0, 7)} <= set(sample.heads)


def test_sampled_gradients_of_keys_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """dk and dv sum over all rows: with dout masked outside the sample they are known from the sample alone."""
    monkeypatch.setitem(reference.BUDGET, "cpu", 1)
    c = case(200, 24, h=4, h_k=2, d=4, d_v=4, causal=True)
    given, sample, answer = setup(c)
    original = inputs.make(c, "cpu", 0)
    assert len(sample.rows) < 100
    want = brute(c, given)  # all rows, with the masked dout
    for (b, h), exact in zip(sample.heads, answer.exact, strict=True):
        torch.testing.assert_close(exact["dk"], want["dk"][b, :, h])
        torch.testing.assert_close(exact["dv"], want["dv"][b, :, h])
    assert reference.compare(answer, rounded(c, want)).ok
    assert not reference.compare(answer, rounded(c, brute(c, original))).ok  # without the mask they are others
    assert torch.equal(original.dout[:, sample.rows], given.dout[:, sample.rows])


def swap_heads(results: Results) -> None:
    results["out"] = results["out"].flip(2)


def test_zeros_are_wrong() -> None:
    for dtype in ("fp32", "fp16", "bf16"):
        said = exact_elsewhere(case(dtype=dtype), lambda r: r["out"].zero_())
        assert not said.ok
        assert said.complaint().startswith("out is off by")


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_value_that_is_not_finite_is_wrong(name: str, value: float) -> None:
    said = exact_elsewhere(case(), lambda r: r[name].view(-1)[5:6].fill_(value))
    assert said.unwritten == (name,)
    assert f"{name} has values that are not finite" in said.complaint()


def test_nan_outside_the_sample_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.BUDGET, "cpu", 1)
    c = case(300, 10, h=3, h_k=3, direction="fwd")
    given, sample, answer = setup(c)
    results = rounded(c, brute(c, given))
    row = next(i for i in range(300) if i not in sample.rows.tolist())
    results["out"][0, row, 1] = math.nan
    assert reference.compare(answer, results).unwritten == ("out",)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("out", swap_heads),
        ("out", lambda r: r["out"][:, :, -1].mul_(1.05)),
        ("out", lambda r: r["out"][:, -1].mul_(0.5)),  # the last row only
        ("dk", lambda r: r["dk"].mul_(2)),  # a scale that went in twice, or gradients that accumulate
        ("dv", lambda r: r["dv"][:, 0].zero_()),
        ("dq", lambda r: r["dq"].neg_()),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_one_wrong_tensor_is_named_alone(what: str, change: Callable[[Results], object], dtype: str) -> None:
    said = exact_elsewhere(case(40, 40, dtype=dtype), change)
    assert [name for name, e in said.errors.items() if not e.ok] == [what]
    assert said.complaint().startswith(f"{what} is off by ")


def test_small_errors_in_late_rows_are_seen_under_causal() -> None:
    """Early rows average few values and are large; an error below their tolerance is large for late rows."""
    c = case(512, 512, h=1, causal=True, dtype="bf16", direction="fwd")
    given, _, answer = setup(c)
    out = brute(c, given)["out"]
    late = out.clone()
    late[:, -64:] += 0.012
    early = out.clone()
    early[:, 1] += 0.012
    assert out[:, :16].abs().max() > 100 * 0.012
    assert reference.compare(answer, rounded(c, {"out": early})).ok
    assert not reference.compare(answer, rounded(c, {"out": late})).ok


def test_the_wrong_corner_of_causal_is_wrong() -> None:
    for sq, sk in ((24, 40), (40, 24)):
        c = case(sq, sk, causal=True, dtype="bf16", direction="fwd")
        given, _, answer = setup(c)
        assert reference.compare(answer, rounded(c, brute(c, given))).ok
        assert not reference.compare(answer, rounded(c, brute(c, given, offset=0))).ok


@pytest.mark.parametrize("bits", [8, 11], ids=["bf16", "tf32"])
@pytest.mark.parametrize("causal", [False, True])
def test_lower_precision_than_fp32_is_wrong(bits: int, causal: bool) -> None:
    c = case(64, 64, d=32, d_v=32, causal=causal)
    given, _, answer = setup(c)

    def cut(t: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(t)
        return torch.ldexp(torch.round(fraction * 2**bits) / 2**bits, exponent)

    coarse = replace(given, q=cut(given.q), k=cut(given.k), v=cut(given.v), dout=cut(given.dout))
    said = reference.compare(answer, rounded(c, brute(c, coarse)))
    assert not any(e.ok for e in said.errors.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(out=r["out"][:, :-1]), r"out has shape \(1, 19, 2, 8\), expected \(1, 20, 2, 8\)"),
        (lambda r: r.update(dk=r["dk"].transpose(1, 2)), "dk has shape"),
        (lambda r: r.update(dv=r["dv"].double()), "dv is torch.float64, expected torch.float32"),
        (lambda r: r.pop("dq"), "returned no dq"),
    ],
)
def test_results_of_another_form_are_refused(change: Callable[[Results], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_elsewhere(case(), change)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("sizes", [(64, 64, 2, 2), (48, 80, 4, 1), (1, 200, 8, 2)])
def test_an_honest_backend_passes(sizes: tuple[int, ...], dtype: str, seed: int) -> None:
    sq, sk, h, h_k = sizes
    for causal in (False, True):
        c = case(sq, sk, h, h_k, d=32, d_v=32, dtype=dtype, causal=causal)
        given, _, answer = setup(c, seed)
        prepared = Eager().prepare(c, given)
        said = reference.compare(answer, prepared.canonical(prepared.launch()))
        assert said.ok, said.complaint()
        assert said.rows == sq
        assert set(said.errors) == {"out", "dq", "dk", "dv"}
