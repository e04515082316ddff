"""The liars about the machine: clocks, what a call costs, memory."""

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

# Work that is not in its time


class SlowAtFirst:
    """The first ten calls take `delay` seconds more, by sleeping; or on a GPU, by spinning."""

    def __init__(self, delay: float, right: Attention = attention) -> None:
        self.delay = delay
        self.right = right
        self.calls = 0
        self.later: list[float] = []  # seconds on the host of each call after the tenth

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        began = time.perf_counter()
        if self.calls <= 10 and q.is_cuda:
            torch.cuda._sleep(int(self.delay * 1.9e9))
        elif self.calls <= 10:
            time.sleep(self.delay)
        out = self.right(q, k, v, **options)
        if self.calls > 10:
            self.later.append(time.perf_counter() - began)
        return out


class Drifts:
    """Each call takes longer than the one before, by `rise` in all over 120 calls, as by a clock that falls."""

    def __init__(self, rise: float, spend: Callable[[float], Any]) -> None:
        self.rise = rise
        self.spend = spend
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        self.spend(1e-3 * (1 + self.rise * min(1.0, self.calls / 120)))
        return attention(q, k, v, **options)


def sleeps(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """2 ms of Python in the launch, of which the device sees nothing."""
    time.sleep(2e-3)
    return fused(q, k, v, **options)


# Memory


class HidesWorkspace(BackendBase):
    """Takes its workspace in `prepare`, where one call's peak does not see it."""

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
    """Takes memory past torch's allocator: by cudaMalloc, or from numpy, and holds it."""

    def __init__(self, nbytes: int, right: Attention = attention) -> None:
        self.nbytes = nbytes
        self.right = right
        self.block: Any = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if q.is_cuda and self.block is None:
            self.block = ctypes.c_void_p()
            assert _runtime().cudaMalloc(ctypes.byref(self.block), ctypes.c_size_t(self.nbytes)) == 0
        if not q.is_cuda:
            block = b"1" * self.nbytes  # written, so that it is there
            del block
        return self.right(q, k, v, **options)

    def free(self) -> None:
        if self.block is not None:
            assert _runtime().cudaFree(self.block) == 0


def _runtime() -> Any:
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))
