"""Right attention beside a kernel with one fault that changes no result: functions for `attnbench check --sanitize`.

Each kernel works on memory of its own. The elements beyond its 4,000 bytes lie in the 4,096 that torch's allocator
gives it, so that nothing else is overwritten where compute-sanitizer does not run.
"""

# ruff: noqa: N803  arguments as in kernels
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench.worker.measure import device_kernels

COUNT = 1000  # elements of float32: 4,000 bytes
SOURCE = r"""
/* Thread `count`, the last one, writes beyond the end. */
extern "C" __global__ void cuda_overrun(float* out, int count) {
    if (threadIdx.x <= count) out[threadIdx.x] = 1.0f;
}

/* Threads of other warps read what each thread writes, without a barrier. */
extern "C" __global__ void cuda_race(float* out, int count) {
    __shared__ float held[512];
    held[threadIdx.x] = (float) threadIdx.x;
    out[threadIdx.x] = held[511 - threadIdx.x];
}

/* Reads elements that nothing has written. */
extern "C" __global__ void cuda_unwritten(float* out, int count) {
    if (threadIdx.x + 512 < count) out[threadIdx.x] = out[threadIdx.x + 512];
}

/* Half of a warp waits at a barrier, which the other half leaves out. */
extern "C" __global__ void cuda_divergent(float* out, int count) {
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = 1.0f;
}
"""


@triton.jit
def _triton_overrun(Out, BLOCK: tl.constexpr):
    """Write a whole block, whose end lies beyond the end of `Out`."""
    places = tl.arange(0, BLOCK)
    tl.store(Out + places, places.to(tl.float32))


@triton.jit
def _triton_unwritten(In, Out, BLOCK: tl.constexpr):
    """Read a block that nothing has written."""
    places = tl.arange(0, BLOCK)
    tl.store(Out + places, tl.load(In + places))


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """Return right attention, in float32."""
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
        scores = scores.masked_fill(~keep, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float()).to(q.dtype)


def _beside(fault: Callable[[Any], Any]) -> Callable[..., Tensor]:
    """Return right attention that also calls `fault` with the device."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        fault(q.device)
        return attend(q, k, v, causal, softmax_scale)

    return attention


def _floats(device: Any) -> Tensor:
    return torch.empty(COUNT, device=device)


def _cuda(name: str, threads: int) -> Callable[..., Tensor]:
    def fault(device: Any) -> None:
        kernel = device_kernels.compiled(name, SOURCE)
        kernel((1, 1, 1), (threads, 1, 1), [_floats(device), COUNT])

    return _beside(fault)


cuda_overrun = _cuda("cuda_overrun", 1024)
cuda_race = _cuda("cuda_race", 512)
cuda_unwritten = _cuda("cuda_unwritten", 256)
cuda_divergent = _cuda("cuda_divergent", 32)
triton_overrun = _beside(lambda device: _triton_overrun[(1,)](_floats(device), BLOCK=1024))
triton_unwritten = _beside(lambda device: _triton_unwritten[(1,)](_floats(device), _floats(device), BLOCK=512))
clean = _beside(lambda device: None)
