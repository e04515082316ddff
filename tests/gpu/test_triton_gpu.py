"""attnbench's Triton attention compiled for a GPU, at common sizes. tests/backends runs it in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from plain_attention import NAMES, Tensors, check, make, reference, results
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing would compile"),
]
if torch.cuda.is_available():
    kernels = pytest.importorskip("attnbench.backends.triton.attention")
    attention, attention_varlen = kernels.attention, kernels.attention_varlen


def ours(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool) -> Tensors:
    """Return (out, dq, dk, dv) of the Triton attention."""
    return results(attention, q, k, v, dout, causal=causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(
    ("sq", "sk", "h", "h_k", "d", "d_v"),
    [
        (2048, 2048, 4, 4, 64, 64),
        (1000, 1000, 4, 1, 64, 64),
        (2048, 2048, 4, 2, 128, 128),
        (1000, 1000, 2, 2, 128, 128),
        (1000, 2048, 2, 1, 256, 256),
        (2048, 1000, 2, 2, 192, 128),
        (1000, 1000, 2, 1, 80, 80),
        (1, 2048, 8, 2, 128, 128),
    ],
)
def test_matches_the_reference(
    sq: int, sk: int, h: int, h_k: int, d: int, d_v: int, dtype: torch.dtype, causal: bool
) -> None:
    inputs = make(sq, sk, h, h_k, d, d_v, dtype, batch=2)
    check(ours(*inputs, causal), inputs, causal)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_float32_is_not_tf32(d: int) -> None:
    inputs = make(300, 300, 2, 1, d, d, torch.float32)
    check(ours(*inputs, True), inputs, True)


def test_backward_is_deterministic() -> None:
    inputs = make(1500, 1500, 8, 2, 128, 128, torch.bfloat16, batch=2)
    first = ours(*inputs, True)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, ours(*inputs, True), strict=True))


def test_every_element_is_written() -> None:
    """Every element is written, shown by torch's deterministic mode, which fills new tensors with NaN."""
    inputs = make(1000, 700, 4, 2, 128, 64, torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4, device="cuda").isnan().all()
        result = ours(*inputs, True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.isfinite(t).all() for t in result)
    assert torch.all(result[0][:, :300] == 0)


def test_packed_qkv_is_not_copied() -> None:
    qkv = torch.randn(2, 1000, 3, 8, 64, device="cuda", dtype=torch.bfloat16)
    inputs = (*qkv.unbind(2), torch.randn(2, 1000, 8, 64, device="cuda", dtype=torch.bfloat16))
    with torch.no_grad():
        attention(*inputs[:3])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        out = attention(*inputs[:3])
    used = torch.cuda.max_memory_allocated() - before
    assert used <= out.nbytes + 4 * 2 * 8 * 1000 + 2048  # out and the log-sum-exp
    check(ours(*inputs, True), inputs, True)


def test_offsets_beyond_32_bits() -> None:
    """Offsets beyond 32 bits are right: rows of one sequence are 2^31 elements and more apart."""
    wide, rows = 1 << 23, 300
    if torch.cuda.mem_get_info()[0] < 2 * wide * rows + (4 << 30):
        pytest.skip("needs 9 GiB of free memory")
    big = torch.empty(1, rows, 1, wide, device="cuda", dtype=torch.bfloat16)
    q, k, v = (big[..., i * 64 : (i + 1) * 64] for i in range(3))
    for t in (q, k, v):
        t.normal_()
    inputs = (q, k, v, torch.randn(1, rows, 1, 64, device="cuda", dtype=torch.bfloat16))
    check(ours(*inputs, True), inputs, True)


FEATURES = {
    "window": {"window_size": (200, 30)},
    "causal-window": {"causal": True, "window_size": (300, 0)},
    "left-window": {"window_size": (256, None)},
    "softcap": {"softcap": 5.0, "causal": True},
}


def plain_attention_with(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, options: dict) -> Tensors:
    """Return (out, dq, dk, dv) of plain attention with windows and softcap, in the dtype of its inputs."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    sq, sk = scores.shape[-2:]
    left, right = options.get("window_size", (None, None))
    distance = torch.arange(sk, device="cuda") - torch.arange(sk - sq, sk, device="cuda")[:, None]
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left is not None:
        hidden |= distance < -left
    if right is not None or options.get("causal"):
        hidden |= distance > (0 if options.get("causal") else right)
    p = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    out = torch.einsum("bhij,bjhd->bihd", p, v)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_windows_and_softcap(d: int, options: dict) -> None:
    inputs = make(1000, 1300, 2, 2, d, d, torch.bfloat16)
    q, k, v = (t.detach().requires_grad_() for t in inputs[:3])
    out = attention(q, k, v, **options)
    result = (out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3]))
    want, plain = (plain_attention_with(*given, options) for given in ([t.double() for t in inputs], inputs))
    for name, got, exact, eager in zip(NAMES, result, want, plain, strict=True):
        error, allowed = ((t.double() - exact).abs().max().item() for t in (got, eager))
        allowed = 2 * allowed + torch.finfo(got.dtype).eps * exact.abs().max().item()
        assert error <= allowed, f"{name} is off by {error:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_sequences_of_different_lengths_are_each_right_alone(d: int, causal: bool) -> None:
    lengths = (700, 1, 1024, 0, 200, 333)
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    q, k, v, dout = (t[0] for t in make(sum(lengths), sum(lengths), 4, 2, d, d, torch.bfloat16))
    for t in (q, k, v, dout):
        t[1725:1925] = torch.nan  # in the fifth sequence, which no other may see
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    out = attention_varlen(q, k, v, ends, ends, max(lengths), max(lengths), causal=causal)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    for begin, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        if end - begin < 300:  # empty, short enough for the decode kernel, or NaN
            continue
        own = tuple(t.detach()[None, begin:end] for t in (q, k, v, dout))
        check(tuple(t.detach()[None, begin:end] for t in (out, *grads)), own, causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_errors_are_no_larger_than_flash_attentions(d: int, causal: bool) -> None:
    """Errors are no larger than FlashAttention-2's, which is SDPA's flash backend.

    The root mean square over a million values and more is compared, in which chance is under 2 %; the largest error is
    a matter of chance.
    """
    inputs = make(2048, 2048, 4, 4, d, d, torch.bfloat16, batch=2)
    want = reference(*(t.double() for t in inputs), causal)
    q, k, v = (t.detach().transpose(1, 2).requires_grad_() for t in inputs[:3])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        grads = torch.autograd.grad(out, (q, k, v), inputs[3].transpose(1, 2))
    flash = [t.detach().transpose(1, 2) for t in (out, *grads)]
    for name, got, exact, theirs in zip(NAMES, ours(*inputs, causal), want, flash, strict=True):
        error, allowed = ((t.double() - exact).square().mean().sqrt().item() for t in (got, theirs))
        assert error <= 1.02 * allowed, f"{name}: {error:.4g}, flash-attention {allowed:.4g}"


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs fp8 hardware"
)
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("sq", [1, 1000], ids=["decode", "forward"])
def test_float8_is_no_worse_than_rounding_the_weights_to_float8(sq: int, d: int) -> None:
    """The error with fp8 is no worse than plain attention's on the same inputs with unscaled weights in e4m3."""
    q, k, v, _ = make(sq, 1000, 4, 4, d, d, torch.float32)
    descale = tuple((t.abs().max() / 448).reshape(1) for t in (q, k, v))
    rounded = [(t / s).to(torch.float8_e4m3fn) for t, s in zip((q, k, v), descale, strict=True)]
    rounded[2] = rounded[2].transpose(1, 3).contiguous().transpose(1, 3)
    out = attention(*rounded, descale=descale).double()
    q, k, v = (t.double() * s for t, s in zip(rounded, descale, strict=True))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * d**-0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    exact, rough = (
        torch.einsum("bhij,bjhd->bihd", p / weights.sum(-1, keepdim=True), v)
        for p in (weights, weights.float().to(torch.float8_e4m3fn).double())
    )
    error, allowed = ((t - exact).square().mean().sqrt().item() for t in (out, rough))
    assert error <= allowed


def test_a_split_decode_agrees_with_an_unsplit_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.backends.triton import decode

    inputs = make(1, 20000, 8, 2, 128, 128, torch.bfloat16)
    with torch.no_grad():
        split = attention(*inputs[:3], causal=True)
        monkeypatch.setattr(decode, "key_splits", lambda *_: 1)
        whole = attention(*inputs[:3], causal=True)
    exact = reference(*(t.double() for t in inputs), True)[0]
    error, allowed = ((t.double() - exact).abs().max().item() for t in (split, whole))
    assert error <= allowed + torch.finfo(torch.bfloat16).eps * exact.abs().max().item()
