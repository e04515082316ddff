"""Wrong kernels that need a GPU."""

from __future__ import annotations

from typing import Any

import torch
from right_attention import Attention, attention, fused
from torch import Tensor


def unwritten_end(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Writes all but the last row."""
    out = torch.empty_like(q)
    out[:, :-1] = fused(q, k, v, **options)[:, :-1]
    return out


def tf32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Allows TF32 in a float32 case."""
    torch.set_float32_matmul_precision("high")
    try:
        return attention(q, k, v, **options)
    finally:
        torch.set_float32_matmul_precision("highest")


class OnAnotherStream:
    """Computes on a stream of its own, whose end nothing waits for.

    With `waits` it begins when the caller's stream has reached this point, like a right kernel. Only the share `part`
    of the batch is computed on the other stream, the rest on the caller's.
    """

    def __init__(self, *, waits: bool, part: float = 1.0, right: Attention = fused) -> None:
        self.waits = waits
        self.part = part
        self.right = right
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.stream = self.stream or torch.cuda.Stream()
        out = torch.empty_like(q)
        here = q.shape[0] - round(self.part * q.shape[0])
        if self.waits:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            there = self.right(q[here:], k[here:], v[here:], **options)
            out[here:] = there
        out.record_stream(self.stream)
        if here:
            out[:here] = self.right(q[:here], k[:here], v[:here], **options)
        return out


class LessWhenCaptured:
    """Only fills zeros while it is captured into a CUDA graph."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            return torch.empty_like(q).zero_()
        return fused(q, k, v, **options)


def waits_for_data(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Reads a value from the device in the middle, so that the host must wait for the device."""
    return fused(q, k, v, **options) * (1.0 if float(q.flatten()[0]) < 1e9 else 2.0)


def on_the_host(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Has the CPU compute 256 rows, without a mask, and copies the result back."""
    out = fused(q, k, v, **options)
    part = attention(*(t.float().cpu() for t in (q[:1, :256, :1], k[:1, :, :1], v[:1, :, :1])), **options)
    out[:1, :256, :1] = part.to(q.device, q.dtype)
    return out


def in_tf32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Computes a half-precision case in TF32."""
    return tf32(q.float(), k.float(), v.float(), **options).to(q.dtype)


class PowerHungry:
    """Right, with additional large matmuls of normal values that draw all available power."""

    def __init__(self, matmuls: int) -> None:
        self.matmuls = matmuls
        self.a: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.a is None:
            self.a = torch.randn(8192, 8192, device=q.device, dtype=torch.bfloat16)
            self.b = torch.empty_like(self.a)
        for _ in range(self.matmuls):
            torch.mm(self.a, self.a, out=self.b)
        return fused(q, k, v, **options)
