"""attnbench's Triton attention against a float64 reference: in Triton's interpreter, or natively where a GPU is.

Triton decides at decoration time, so TRITON_INTERPRET must be set while the kernels are imported (and while they
run: Triton imports parts of itself at a first launch). Outside of that it is not: other tests ask what a backend says
without it.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from attnbench.backends.triton import Triton
from attnbench.types import Case, Device, Shape

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
with pytest.MonkeyPatch.context() as patch:
    if INTERPRET:
        patch.setenv("TRITON_INTERPRET", "1")
    triton = pytest.importorskip("triton")
    from attnbench.kernels.attention import attention
    from attnbench.kernels.attention_fwd import _forward, attention_forward

if INTERPRET and "Interpreted" not in type(_forward).__name__ + type(triton.language.sum).__name__:
    pytest.skip("triton was imported before without TRITON_INTERPRET=1: run this file alone", allow_module_level=True)

DEVICE = "cpu" if INTERPRET else "cuda"
Tensors = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def reference(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, scale: float | None = None) -> Tensors:
    """(out, dq, dk, dv) of plain attention in the dtype of its inputs."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    kk, vv = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, kk) * (q.shape[-1] ** -0.5 if scale is None else scale)
    sq, sk = scores.shape[-2:]
    seen = torch.ones(sq, sk, dtype=torch.bool, device=q.device)
    seen = seen.tril(sk - sq) if causal else seen
    some = seen.any(-1, keepdim=True)
    # A row that sees nothing is computed over all keys and then zeroed, gradient included.
    p = torch.softmax(scores.masked_fill(~seen & some, float("-inf")), dim=-1) * some
    out = torch.einsum("bhij,bjhd->bihd", p, vv)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))


def ours(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, scale: float | None = None) -> Tensors:
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = attention(q, k, v, causal=causal, softmax_scale=scale)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))


def normal(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(size, dtype=torch.float32).to(DEVICE, dtype)


def make(sq: int, sk: int, h: int, h_k: int, d: int, d_v: int, dtype: torch.dtype, batch: int = 1) -> Tensors:
    torch.manual_seed(0)
    sizes = ((sq, h, d), (sk, h_k, d), (sk, h_k, d_v), (sq, h, d_v))
    return tuple(normal(batch, *size, dtype=dtype) for size in sizes)


def check(result: Tensors, inputs: Tensors, causal: bool, scale: float | None = None) -> None:
    """fp32 to rounding; half precision to twice what plain attention in that dtype is off by."""
    want = reference(*(t.double() for t in inputs), causal, scale)
    plain = reference(*inputs, causal, scale)
    for name, got, exact, eager in zip(("out", "dq", "dk", "dv"), result, want, plain, strict=True):
        assert got.shape == exact.shape
        assert got.dtype == inputs[0].dtype
        error = (got.double() - exact).abs().max().item()
        if got.dtype == torch.float32:
            allowed = 1e-5 * max(exact.abs().max().item(), 1.0)
        else:
            allowed = 2 * (eager.double() - exact).abs().max().item() + 1e-3
        assert error <= allowed, f"{name} is off by {error:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("sq", "sk", "h", "h_k", "d", "d_v", "dtype"),
    [
        (1, 1, 1, 1, 16, 16, torch.float32),
        (1, 130, 4, 1, 64, 64, torch.float16),  # a decode step
        (17, 17, 2, 2, 16, 16, torch.float32),
        (17, 100, 4, 2, 16, 64, torch.float32),
        (64, 64, 2, 2, 64, 64, torch.float16),  # exactly the blocks
        (100, 100, 2, 1, 80, 80, torch.float16),  # a width that is not a power of two
        (100, 130, 4, 2, 64, 16, torch.float32),
        (130, 130, 2, 2, 16, 16, torch.float32),
        (130, 130, 1, 1, 64, 64, torch.float16),
        (130, 17, 4, 1, 16, 16, torch.float32),  # causal: 113 queries see no key, whole blocks of them
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
    check(ours(*inputs, causal), inputs, causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_queries_that_see_no_key_have_zero_output_and_gradient(dtype: torch.dtype) -> None:
    out, dq, dk, dv = ours(*make(130, 60, 2, 1, 16, 16, dtype), causal=True)
    assert torch.all(out[:, :70] == 0)
    assert torch.all(dq[:, :70] == 0)
    assert torch.any(out[:, 70] != 0)
    assert torch.isfinite(torch.cat([dk, dv])).all()


def test_softmax_scale_and_large_scores() -> None:
    q, k, v, dout = make(50, 70, 1, 1, 16, 16, torch.float32)
    inputs = (q * 20, k * 20, v, dout)  # exp of the scores alone would overflow
    assert torch.isfinite(torch.stack([t.abs().max() for t in ours(*inputs, False, 0.5)])).all()
    inputs = (q, k - 3, v, dout)
    check(ours(*inputs, True, 0.7), inputs, True, 0.7)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_log_sum_exp_is_base_2(causal: bool) -> None:
    q, k, v, _ = make(40, 70, 2, 1, 16, 16, torch.float32)
    lse = attention_forward(q, k, v, causal, 0.25)[1]
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double().repeat_interleave(2, dim=2)) * 0.25
    if causal:
        scores.masked_fill_(~torch.ones(40, 70, dtype=torch.bool, device=DEVICE).tril(30), float("-inf"))
    torch.testing.assert_close(lse * 0.6931471805599453, scores.logsumexp(-1).float())


def packed(dtype: torch.dtype) -> Tensors:
    qkv = normal(2, 70, 3, 2, 16, dtype=dtype)
    return (*qkv.unbind(2), normal(2, 70, 2, 16, dtype=dtype))


def transposed(dtype: torch.dtype) -> Tensors:
    """Views of (batch, nheads, seqlen, headdim), and of (seqlen, batch, nheads, headdim)."""
    q, k, dout = (normal(2, 2, 70, 16, dtype=dtype).transpose(1, 2) for _ in range(3))
    return q, k, normal(70, 2, 2, 16, dtype=dtype).transpose(0, 1), dout


def sliced(dtype: torch.dtype) -> Tensors:
    """Odd strides and offsets: rows longer than the head, every other row, K shared by the batch, dout broadcast."""
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
    first, second = ours(*inputs, True), ours(*inputs, True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("sizes", [(70, 45, 2, 1, 24, 40), (33, 70, 2, 2, 16, 16)])
def test_every_element_is_written(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With every fresh tensor full of NaN, what is not written, or read before it is written, stays NaN."""
    inputs = make(*sizes, torch.float32)
    wanted = ours(*inputs, causal=True)
    empty, empty_like = torch.empty, torch.empty_like
    fresh = []

    def poisoned(make_tensor):
        def fill(*args, **kwargs) -> Tensor:
            fresh.append(make_tensor(*args, **kwargs).fill_(float("nan")))
            return fresh[-1]

        return fill

    monkeypatch.setattr(torch, "empty", poisoned(empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(empty_like))
    result = ours(*inputs, causal=True)
    monkeypatch.undo()
    assert len(fresh) >= 6  # out, log-sum-exp, delta, dq, dk, dv
    assert not any(t.isnan().any() for t in fresh)
    assert all(torch.equal(a, b) for a, b in zip(result, wanted, strict=True))


def test_gradients_that_nobody_asked_for_are_not_made() -> None:
    q, k, v, dout = make(20, 20, 1, 1, 16, 16, torch.float32)
    want = reference(*(t.double() for t in (q, k, v, dout)), False)
    q.requires_grad_()
    (dq,) = torch.autograd.grad(attention(q, k, v), (q,), dout)
    torch.testing.assert_close(dq, want[1].float())
    v.requires_grad_()
    (dv,) = torch.autograd.grad(attention(q.detach(), k, v), (v,), dout)
    torch.testing.assert_close(dv, want[3].float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), "must be"),
        (lambda q, k, v: (q[..., ::2], k, v), "contiguous"),
        (lambda q, k, v: (q, k.half(), v), "share dtype"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), "dtype must be"),
        (lambda q, k, v: (q[..., :8], k[..., :8], v), "16 to 256"),
        (lambda q, k, v: (q, k[:, 1:], v), "do not fit"),
        (lambda q, k, v: (q[:, :, :3], k, v), "multiple of nheads_k"),
        (lambda q, k, v: (q[:, :0], k, v), "empty"),
    ],
)
def test_bad_inputs_are_refused(change, message: str) -> None:
    q, k, v, _ = make(9, 9, 4, 2, 32, 32, torch.float32)
    with pytest.raises(ValueError, match=message):
        attention(*change(q, k, v))
    with pytest.raises(ValueError, match="softmax_scale must be positive"):
        attention(q, k, v, softmax_scale=0.0)


def case(dtype: str = "fp16", headdim: int = 64, headdim_v: int = 64, **fields) -> Case:
    return Case(Shape(1, 8, 8, 2, 1, headdim, headdim_v), dtype, "fwd", **fields)


def device(kind: str = "cuda", capability: tuple[int, int] | None = (9, 0)) -> Device:
    return Device(kind, 0, "a device", 1 << 30, 1 << 30, capability if kind == "cuda" else None)


@pytest.mark.parametrize(
    ("c", "d", "reason"),
    [
        (case(), device(), None),
        (case(dtype="bf16", headdim=192, headdim_v=128, causal=True), device(), None),
        (case(dtype="fp32", headdim=256, headdim_v=16), device(capability=None), None),
        (case(window_size=(128, 0)), device(), "not implemented in attnbench's Triton kernel"),
        (case(softcap=30.0), device(), "not implemented in attnbench's Triton kernel"),
        (case(dropout_p=0.1), device(), "not implemented in attnbench's Triton kernel"),
        (case(headdim=257), device(), "headdim 257 is outside 16 to 256"),
        (case(headdim_v=8), device(), "headdim_v 8 is outside 16 to 256"),
        (case(), device(capability=(7, 5)), "7.5"),
        (case(), device("cpu"), "the interpreter is for tests"),
    ],
)
def test_what_the_backend_refuses(c: Case, d: Device, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    said = Triton().unsupported(c, d)
    assert said is None if reason is None else reason in str(said)


def test_the_interpreter_makes_a_cpu_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backend = Triton()
    assert backend.unsupported(case("fp32"), device("cpu")) is None
    assert backend.unsupported(case("fp16"), device("cpu")) is None
    assert "bf16" in str(backend.unsupported(case("bf16"), device("cpu")))
    assert "TRITON_INTERPRET" in str(backend.unsupported(case(), device()))


def test_probe() -> None:
    assert Triton().probe().version == triton.__version__
