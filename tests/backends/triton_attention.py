"""Code for the tests of attnbench's Triton attention: its import, a plain reference, and the check of a result.

Triton reads TRITON_INTERPRET when a kernel is decorated, so it is set during the import of the kernels. It is also set
while they run (the fixture `interpreter`), because Triton imports parts of itself at a first launch. It is not set
otherwise, because other tests need a backend without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreted_triton import INTERPRET

with pytest.MonkeyPatch.context() as patch:
    if INTERPRET:
        patch.setenv("TRITON_INTERPRET", "1")
    triton = pytest.importorskip("triton")
    from attnbench.backends.triton import block_sizes, decode
    from attnbench.backends.triton.attention import attention, attention_varlen  # noqa: F401
    from attnbench.backends.triton.forward import _forward

if INTERPRET and not all(
    "Interpreted" in type(f).__name__ for f in (_forward, triton.language.sum, triton.language.cdiv)
):
    pytest.skip("triton was imported before without TRITON_INTERPRET=1: run this file alone", allow_module_level=True)

DEVICE = "cpu" if INTERPRET else "cuda"
NAMES = ("out", "lse", "dq", "dk", "dv")
Tensors = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def normal(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(size, dtype=torch.float32).to(DEVICE, dtype)


def to_float8(q: Tensor, k: Tensor, v: Tensor, descale: tuple[Any, ...]) -> Tensors:
    """Return q, k and v divided by their factors, in e4m3, with contiguous keys of v."""
    q, k, v = ((t / s).to(torch.float8_e4m3fn) for t, s in zip((q, k, v), descale, strict=True))
    return q, k, v.transpose(1, 3).contiguous().transpose(1, 3)


def make(
    sq: int, sk: int, h: int, h_k: int, d: int, d_v: int, dtype: torch.dtype, batch: int = 1, seed: int = 0
) -> Tensors:
    """Return random q, k, v and dout."""
    torch.manual_seed(seed)
    sizes = ((sq, h, d), (sk, h_k, d), (sk, h_k, d_v), (sq, h, d_v))
    return tuple(normal(batch, *size, dtype=dtype) for size in sizes)


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    *,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    softmax_scale: float | None = None,
) -> Tensors:
    """Return (out, lse, dq, dk, dv) of textbook attention in the dtype of its inputs."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    kk, vv = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, kk) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    sq, sk = scores.shape[-2:]
    left, right = window_size
    distance = torch.arange(sk, device=q.device) - torch.arange(sk - sq, sk, device=q.device)[:, None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None or causal:
        seen &= distance <= (0 if causal else right)
    some = seen.any(-1, keepdim=True)
    # A row that sees no key is computed over all keys, and then zeroed with its gradient.
    p = torch.softmax(scores.masked_fill(~seen & some, -math.inf), dim=-1) * some
    out = torch.einsum("bhij,bjhd->bihd", p, vv)
    lse = scores.detach().masked_fill(~seen, -math.inf).logsumexp(-1)
    return (out.detach(), lse, *torch.autograd.grad(out, (q, k, v), dout))


def ours(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, **options: Any) -> Tensors:
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out, lse = attention(q, k, v, **options, return_lse=True)
    return (out.detach(), lse, *torch.autograd.grad(out, (q, k, v), dout))


def check(result: Tensors, inputs: Tensors, **options: Any) -> None:
    """Assert that a result is right by attnbench's tolerance.

    The tolerance is twice the error of plain attention in the same dtype, plus one rounding of the largest value and
    the possible difference of float32 sums in another order.
    """
    q, k, v, _ = inputs
    want = plain(*(t.double() for t in inputs), **options)
    eager = plain(*inputs, **options)
    scale = options.get("softmax_scale") or q.shape[-1] ** -0.5
    # The size of the terms of dq and dk, which may cancel, but not their roundings.
    cancels = {"dq": scale * k.abs().max().item(), "dk": scale * q.abs().max().item()}
    terms = math.sqrt(max(q.shape[1], k.shape[1], q.shape[3], v.shape[3]))
    for name, got, exact, rough in zip(NAMES, result, want, eager, strict=True):
        assert got.shape == exact.shape
        assert got.dtype == (torch.float32 if name == "lse" else q.dtype)
        some = exact.isfinite()
        assert torch.equal(got.isfinite(), some), f"{name} is not finite where it should be, or the reverse"
        if not some.any():
            continue
        largest = exact[some].abs().max().item()
        allowed = 2 * (rough.double() - exact)[some].abs().max().item() + torch.finfo(got.dtype).eps * largest
        allowed += 4 * 2.0**-24 * terms * max(largest, cancels.get(name, 0.0))
        error = (got.double() - exact)[some].abs().max().item()
        assert error <= allowed, f"{name} is off by {error:.3g}, allowed {allowed:.3g}"


@contextmanager
def poisoned() -> Iterator[list[Tensor]]:
    """Return a context in which torch.empty fills tensors with NaN, to show elements that are not written."""
    fresh: list[Tensor] = []

    def filled(make_tensor: Any) -> Any:
        def fill(*args: Any, **kwargs: Any) -> Tensor:
            fresh.append(make_tensor(*args, **kwargs).fill_(float("nan")))
            return fresh[-1]

        return fill

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", filled(torch.empty))
        patch.setattr(torch, "empty_like", filled(torch.empty_like))
        yield fresh


@contextmanager
def kernels(
    block_m: int,
    block_n: int,
    *,
    tma: bool = False,
    resident: bool = False,
    ahead: bool = False,
    short: bool = False,
) -> Iterator[None]:
    """Return a context with these block sizes in every kernel, and the decode kernel if possible (`short`) or never."""
    blocks = block_sizes.Blocks(block_m, block_n, 4, 1, tma=tma, resident=resident, ahead=ahead)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_sizes, "candidates", lambda *_: (blocks,))
        patch.setattr(decode, "MAX_ROWS", 1 << 20 if short else 0)
        yield
