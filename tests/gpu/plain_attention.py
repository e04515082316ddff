"""Code of tests of exact attention on a GPU: inputs, plain attention to compare with, and the tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
NAMES = ("out", "dq", "dk", "dv")


def make(sq: int, sk: int, h: int, h_k: int, d: int, d_v: int, dtype: torch.dtype, batch: int = 1) -> Tensors:
    """Return q, k, v and dout, seeded."""
    torch.manual_seed(0)
    sizes = ((sq, h, d), (sk, h_k, d), (sk, h_k, d_v), (sq, h, d_v))
    return tuple(torch.randn(batch, *size, device="cuda", dtype=dtype) for size in sizes)


def results(attention: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, dout: Tensor, **options: Any) -> Tensors:
    """Return (out, dq, dk, dv) of a function of q, k and v."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = attention(q, k, v, **options)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))


def reference(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool) -> Tensors:
    """Return (out, dq, dk, dv) of plain attention in the dtype of its inputs."""
    return results(_plain, q, k, v, dout, causal=causal)


def _plain(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    group = q.shape[2] // k.shape[2]
    kk, vv = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, kk) * q.shape[-1] ** -0.5
    sq, sk = scores.shape[-2:]
    seen = torch.ones(sq, sk, dtype=torch.bool, device="cuda")
    seen = seen.tril(sk - sq) if causal else seen
    some = seen.any(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(~seen & some, float("-inf")), dim=-1) * some
    return torch.einsum("bhij,bjhd->bihd", p, vv)


def check(result: Tensors, inputs: Tensors, causal: bool) -> None:
    """Assert that errors are at most twice plain attention's in the dtype, or for fp32 (not TF32) within rounding."""
    want = reference(*(t.double() for t in inputs), causal)
    plain = reference(*inputs, causal)
    for name, got, exact, eager in zip(NAMES, result, want, plain, strict=True):
        error = (got.double() - exact).abs().max().item()
        if got.dtype == torch.float32:
            allowed = 1e-5 * max(exact.abs().max().item(), 1.0)
        else:
            allowed = 2 * (eager.double() - exact).abs().max().item() + 1e-3
        assert error <= allowed, f"{name} is off by {error:.3g}, allowed {allowed:.3g}"
