"""Right kernels whose time or memory is hard to measure: slow first calls, changing speed, sleep, hidden memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch
from right_attention import Attention, attention, fused
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

# Time


class SlowAtFirst:
    """Takes `delay` seconds more in its first `slow_calls` calls, by sleeping, or by spinning on a GPU."""

    def __init__(self, delay: float, right: Attention = attention, slow_calls: int = 10) -> None:
        self.delay = delay
        self.slow_calls = slow_calls
        self.right = right
        self.calls = 0
        self.later: list[float] = []  # host seconds of each later call

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        began = time.perf_counter()
        if self.calls <= self.slow_calls and q.is_cuda:
            torch.cuda._sleep(int(self.delay * 1.9e9))
        elif self.calls <= self.slow_calls:
            time.sleep(self.delay)
        out = self.right(q, k, v, **options)
        if self.calls > self.slow_calls:
            self.later.append(time.perf_counter() - began)
        return out


class ChangesSpeed:
    """Takes longer with each call, up to the share `rise` after 120 calls, as under a falling clock."""

    def __init__(self, rise: float, spend: Callable[[float], Any]) -> None:
        self.rise = rise
        self.spend = spend
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        self.spend(1e-3 * (1 + self.rise * min(1.0, self.calls / 120)))
        return attention(q, k, v, **options)


def sleeps_in_launch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Sleeps 2 ms in the launch, without work for the device."""
    time.sleep(2e-3)
    return fused(q, k, v, **options)


# Memory


class HidesWorkspace(BackendBase):
    """Allocates its workspace in `prepare`, outside of the peak of a call."""

    name = "hides-workspace"

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        workspace = torch.ones(self.nbytes // 4, device=inputs.q.device)
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, **options) * workspace[:1].to(q.dtype)

        return autograd_prepared(case, inputs, call)


class OutsideTorch:
    """Takes memory outside torch's allocator and holds it: by cudaMalloc, or as bytes on a CPU."""

    def __init__(self, nbytes: int, right: Attention = attention) -> None:
        self.nbytes = nbytes
        self.right = right
        self.block: Any = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if q.is_cuda and self.block is None:
            self.block = ctypes.c_void_p()
            assert _runtime().cudaMalloc(ctypes.byref(self.block), ctypes.c_size_t(self.nbytes)) == 0
        if not q.is_cuda:
            block = b"1" * self.nbytes  # written, to be resident
            del block
        return self.right(q, k, v, **options)

    def free(self) -> None:
        if self.block is not None:
            assert _runtime().cudaFree(self.block) == 0


def _runtime() -> Any:
    """Return the CUDA runtime library of this process."""
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))


class KeepsWorkspace:
    """Allocates a workspace in its first call and keeps it, like a cache."""

    def __init__(self, nbytes: int, right: Attention = attention) -> None:
        self.nbytes = nbytes
        self.right = right
        self.workspace: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.workspace is None:
            self.workspace = torch.ones(self.nbytes // 4, device=q.device)
        return self.right(q, k, v, **options) * self.workspace[:1].to(q.dtype)
