"""attnbench's Triton attention against float64, in Triton's interpreter or on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from triton_attention import (
    DEVICE,
    Tensors,
    attention,
    attention_varlen,
    check,
    decode,
    interpreter,  # noqa: F401  a fixture for every test here
    kernels,
    make,
    normal,
    ours,
    plain,
    poisoned,
    to_float8,
)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("sq", "sk", "h", "h_k", "d", "d_v", "dtype"),
    [
        (1, 1, 1, 1, 16, 16, torch.float32),
        (1, 130, 4, 1, 64, 64, torch.float16),  # a decode step
        (70, 70, 2, 2, 16, 16, torch.float32),
        (17, 100, 4, 2, 16, 64, torch.float32),
        (64, 64, 2, 2, 64, 64, torch.float16),  # lengths are multiples of the blocks
        (100, 100, 2, 1, 80, 80, torch.float16),  # a headdim that is not a power of two
        (70, 100, 4, 2, 64, 16, torch.float32),
        (130, 130, 1, 1, 64, 64, torch.float16),
        (100, 17, 2, 1, 16, 16, torch.float32),  # causal: 83 queries see no key, whole blocks of them
        (130, 100, 2, 1, 64, 80, torch.float16),
        (300, 270, 1, 1, 16, 16, torch.float16),  # several blocks in both directions
        (40, 70, 2, 1, 192, 128, torch.float16),
        (20, 33, 1, 1, 256, 256, torch.float32),
    ],
)
def test_matches_the_reference(
    sq: int, sk: int, h: int, h_k: int, d: int, d_v: int, dtype: torch.dtype, causal: bool
) -> None:
    inputs = make(sq, sk, h, h_k, d, d_v, dtype)
    check(ours(*inputs, causal=causal), inputs, causal=causal)


FEATURES = {
    "left": {"window_size": (20, None)},
    "right": {"window_size": (None, 30)},
    "both": {"window_size": (17, 5)},
    "none-but-oneself": {"window_size": (0, 0)},
    "wider-than-all": {"window_size": (500, 500), "causal": True},
    "causal-window": {"causal": True, "window_size": (40, 7)},
    "softcap": {"softcap": 0.7},
    "softcap-causal-window": {"softcap": 20.0, "causal": True, "window_size": (33, None)},
}


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize(
    ("sq", "sk", "block_m", "block_n"), [(45, 60, 16, 32), (60, 45, 32, 16)], ids=["more-keys", "more-queries"]
)
def test_windows_and_softcap(sq: int, sk: int, block_m: int, block_n: int, options: dict[str, object]) -> None:
    inputs = make(sq, sk, 1, 1, 16, 24, torch.float32)
    with kernels(block_m, block_n):
        check(ours(*inputs, **options), inputs, **options)


def test_a_small_score_keeps_its_precision_under_a_softcap() -> None:
    """A softcap keeps the precision of small scores, which 1 - 2 / (1 + e^2x) would lose, as tiny dq and dk show."""
    q, k, v, dout = make(70, 70, 1, 1, 16, 16, torch.float32)
    inputs = (q * 1e-2, k * 1e-2, v, dout)
    check(ours(*inputs, softcap=50.0), inputs, softcap=50.0)


@pytest.mark.parametrize("options", [FEATURES["both"], {"causal": True, "softcap": 2.0}], ids=str)
@pytest.mark.parametrize(("sq", "h", "h_k"), [(1, 4, 2), (3, 4, 1), (20, 1, 1)])
def test_few_queries(sq: int, h: int, h_k: int, options: dict[str, object]) -> None:
    inputs = make(sq, 150, h, h_k, 32, 20, torch.float32, batch=2 if sq == 1 else 1)
    with kernels(16, 16, short=True), poisoned() as fresh:
        result = ours(*inputs, **options)
    assert fresh[2].shape[0] > 1  # the partial results of several stretches
    check(result, inputs, **options)


def test_more_stretches_than_fit_one_turn_and_stretches_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "key_splits", lambda *_: 37)
    inputs = make(2, 500, 2, 1, 16, 16, torch.float32)
    with kernels(16, 16, short=True):
        check(ours(*inputs, causal=True), inputs, causal=True)


@pytest.mark.parametrize(
    ("options", "keys"),
    [({}, 90), ({"tma": True}, 96), ({"short": True}, 90)],
    ids=["forward", "tensor-maps", "decode"],
)
def test_float8_with_values_that_need_no_rounding(options: dict[str, bool], keys: int) -> None:
    """fp8 results are right for values that need no rounding; Triton 3.9's interpreter rounds wrongly."""
    q, k, v, dout = make(70, keys, 2, 1, 32, 24, torch.float32, batch=2)
    descale = tuple((t.abs().max() / 448).reshape(1) for t in (q, k, v))
    rounded = to_float8(q, k, v, descale)
    q, k, v = (t.double() * s for t, s in zip(rounded, descale, strict=True))
    for features in ({"causal": True, "softcap": 1.5}, {"window_size": (0, 0)}):
        with kernels(32, 32, **options):
            out, lse = attention(*rounded, **features, descale=descale, return_lse=True)
        exact, exact_lse, *_ = plain(q, k, v, dout.double(), **features)
        torch.testing.assert_close(lse.double(), exact_lse, rtol=0, atol=1e-5)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=2**-7, atol=0)  # the interpreter truncates to bf16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_queries_that_see_no_key_have_zero_output_and_gradient(dtype: torch.dtype) -> None:
    out, lse, dq, dk, dv = ours(*make(130, 60, 2, 1, 16, 16, dtype), causal=True)
    assert torch.all(out[:, :70] == 0)
    assert torch.all(dq[:, :70] == 0)
    assert torch.all(lse[:, :, :70] == -torch.inf)
    assert torch.any(out[:, 70] != 0)
    assert torch.isfinite(torch.cat([dk, dv])).all()


def test_softmax_scale_and_large_scores() -> None:
    q, k, v, dout = make(70, 70, 1, 1, 16, 16, torch.float32)
    inputs = (q * 20, k * 20, v, dout)  # exp of unshifted scores would overflow
    assert torch.isfinite(torch.stack([t.abs().max() for t in ours(*inputs, softmax_scale=0.5)])).all()
    inputs = (q, k - 3, v, dout)
    check(ours(*inputs, causal=True, softmax_scale=0.7), inputs, causal=True, softmax_scale=0.7)


@pytest.mark.parametrize("tma", [False, True], ids=["pointers", "tma"])
def test_descriptors_only_where_they_can_be_made(tma: bool) -> None:
    """Rows of 23 elements have strides that are not multiples of 16 bytes, so pointers are used, not descriptors."""
    q, k, v, dout = make(40, 50, 2, 2, 16, 24, torch.float32, batch=2)
    for inputs in ((q, k, v, dout), (q, normal(2, 50, 2, 23, dtype=torch.float32)[..., 3:19], v, dout)):
        with kernels(32, 16, tma=tma):
            check(ours(*inputs, causal=True), inputs, causal=True)


def packed(dtype: torch.dtype) -> Tensors:
    qkv = normal(2, 70, 3, 2, 16, dtype=dtype)
    return (*qkv.unbind(2), normal(2, 70, 2, 16, dtype=dtype))


def transposed(dtype: torch.dtype) -> Tensors:
    """Return views of (batch, nheads, seqlen, headdim) and of (seqlen, batch, nheads, headdim) tensors."""
    q, k, dout = (normal(2, 2, 70, 16, dtype=dtype).transpose(1, 2) for _ in range(3))
    return q, k, normal(70, 2, 2, 16, dtype=dtype).transpose(0, 1), dout


def sliced(dtype: torch.dtype) -> Tensors:
    """Return inputs of odd strides and offsets: long rows, every other row, K shared by the batch, dout broadcast."""
    q = normal(2, 71, 2, 23, dtype=dtype)[:, 1:, :, 3:19]
    v = normal(2, 140, 2, 16, dtype=dtype)[:, ::2]
    return q, normal(1, 70, 2, 16, dtype=dtype).expand(2, -1, -1, -1), v, normal(1, dtype=dtype).expand(2, 70, 2, 16)


@pytest.mark.parametrize("make_inputs", [packed, transposed, sliced])
def test_any_strides(make_inputs) -> None:
    torch.manual_seed(0)
    inputs = make_inputs(torch.float32)
    result = ours(*inputs, causal=True)
    check(result, inputs, causal=True)
    assert result[0].is_contiguous()


def test_backward_is_deterministic() -> None:
    inputs = make(100, 100, 4, 1, 16, 16, torch.float16)
    first, second = (ours(*inputs, causal=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("sizes", [(70, 45, 2, 1, 24, 40), (33, 70, 2, 2, 16, 16)])
def test_every_element_is_written(sizes: tuple[int, ...]) -> None:
    inputs = make(*sizes, torch.float32)
    wanted = ours(*inputs, causal=True)
    with poisoned() as fresh:
        result = ours(*inputs, causal=True)
    assert len(fresh) >= 6  # out, log-sum-exp, delta, dq, dk, dv
    assert not any(t.isnan().any() for t in fresh)
    assert all(torch.equal(a, b) for a, b in zip(result, wanted, strict=True))


def test_gradients_that_are_not_needed_are_not_computed() -> None:
    q, k, v, dout = make(20, 20, 1, 1, 16, 16, torch.float32)
    _, _, dq, dk, dv = ours(q, k, v, dout)
    for wanted, at in ((dq, 0), (dk, 1), (dv, 2)):
        inputs = [t.clone().requires_grad_(i == at) for i, t in enumerate((q, k, v))]
        (got,) = torch.autograd.grad(attention(*inputs), (inputs[at],), dout)
        assert torch.equal(got, wanted)


def test_log_sum_exp_has_no_gradient() -> None:
    q, k, v, _ = make(20, 20, 1, 1, 16, 16, torch.float32)
    _, lse = attention(q.requires_grad_(), k, v, return_lse=True)
    assert not lse.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), "must be"),
        (lambda q, k, v: (q[..., ::2], k, v), "contiguous"),
        (lambda q, k, v: (q, k.half(), v), "share dtype"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), "dtype must be"),
        (lambda q, k, v: (q[..., :8], k[..., :8], v), "16 to 256"),
        (lambda q, k, v: (q, k[:, 1:], v), "do not fit"),
        (lambda q, k, v: (q.expand(2, -1, -1, -1), k, v), "share the batch"),
        (lambda q, k, v: to_float8(q, k, v, (1, 1, 1)), "descale"),
        (lambda q, k, v: (t.to(torch.float8_e4m3fn) for t in (q, k, v)), "seqlen .fp8 only. must be contiguous"),
        (lambda q, k, v: (q[:, :, :3], k, v), "multiple of nheads_k"),
        (lambda q, k, v: (q[:, :0], k, v), "empty"),
    ],
)
def test_bad_inputs_are_refused(change, message: str) -> None:
    q, k, v, _ = make(9, 9, 4, 2, 32, 32, torch.float32)
    with pytest.raises(ValueError, match=message):
        attention(*change(q, k, v))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax_scale": 0.0}, "softmax_scale must be positive"),
        ({"softcap": -1.0}, "softcap must be positive"),
        ({"window_size": (-2, 0)}, "window_size must be"),
        ({"descale": (torch.ones(1), torch.ones(1), torch.ones(1))}, "descale goes with"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    q, k, v, _ = make(9, 9, 4, 2, 32, 32, torch.float32)
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, **options)


@pytest.mark.parametrize(
    ("cu_q", "cu_k", "longest", "message"),
    [
        (
            torch.tensor([0, 9]),
            torch.tensor([0, 9], dtype=torch.int32),
            (9, 9),
            "cu_seqlens_q must be contiguous int32",
        ),
        (torch.tensor([0, 9]).int(), torch.tensor([0, 4, 9]).int(), (9, 9), "differ in length"),
        (torch.tensor([0, 9]).int(), torch.tensor([0, 9]).int(), (9, 0), "at least 1"),
    ],
)
def test_bad_sequences_are_refused(cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int], message: str) -> None:
    q, k, v, _ = (t[0] for t in make(9, 9, 2, 2, 16, 16, torch.float32))
    with pytest.raises(ValueError, match=message):
        attention_varlen(q, k, v, cu_q.to(DEVICE), cu_k.to(DEVICE), *longest)


@pytest.mark.parametrize(
    ("tma", "options"),
    [(False, {}), (False, {"causal": True}), (True, {"causal": True}), (True, {"window_size": (9, None)})],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns in the interpreter
def test_nan_stays_in_its_sequence_and_rows_beyond_the_last_are_not_written(tma: bool, options: dict[str, Any]) -> None:
    ends = torch.tensor([0, 37, 57, 102], dtype=torch.int32, device=DEVICE)
    inputs = [t[0] for t in make(150, 150, 2, 1, 32, 32, torch.float32)]
    for t in inputs:
        t.data[37:57] = torch.nan
    q, k, v = (t.detach().requires_grad_() for t in inputs[:3])
    with kernels(32, 16, tma=tma), poisoned():
        out, lse = attention_varlen(q, k, v, ends, ends, 45, 45, **options, return_lse=True)
        gradients = torch.autograd.grad(out, (q, k, v), inputs[3])
    for begin, end in ((0, 37), (57, 102)):
        of_each = (t[None, begin:end] for t in gradients)
        own = tuple(t[None, begin:end] for t in inputs)
        check((out.detach()[None, begin:end], lse[None, :, begin:end], *of_each), own, **options)
    assert all(t[102:].isnan().all() for t in (out, *gradients))


def test_minus_one_is_a_side_without_a_limit() -> None:
    q, k, v, _ = make(70, 90, 1, 1, 16, 16, torch.float32)
    assert torch.equal(attention(q, k, v, window_size=(9, -1)), attention(q, k, v, window_size=(9, None)))
