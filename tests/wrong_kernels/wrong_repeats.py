"""Kernels that are right in a single call, but wrong in some of many."""

from __future__ import annotations

import time
from typing import Any

import torch
from right_attention import Attention, attention
from torch import Tensor


class WrongNowAndThen:
    """Is wrong in every `every`-th call, in one row of the output."""

    def __init__(self, every: int, right: Attention = attention) -> None:
        self.every = every
        self.right = right
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        out = self.right(q, k, v, **options)
        if self.calls % self.every == 0:
            out = out.clone()
            out[:, 3] += 1.0
        return out


class WrongWithoutPause:
    """Is wrong if called within `pause` seconds of its last call, as if that call had not finished."""

    def __init__(self, pause: float, right: Attention = attention) -> None:
        self.pause = pause
        self.right = right
        self.ended = 0.0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        too_soon = time.perf_counter() - self.ended < self.pause
        out = self.right(q, k, v, **options)
        self.ended = time.perf_counter()
        return out * 0 if too_soon else out


class SumsInAnyOrder:
    """Is right, and rounds differently in each call, as a kernel that sums by atomic additions."""

    def __init__(self, right: Attention = attention) -> None:
        self.right = right
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        out = self.right(q, k, v, **options)
        return out * (1 + self.calls % 3 * torch.finfo(out.dtype).eps)


class WritesToOnePlace:
    """Returns each result in the same memory; `wrong` makes it wrong in every second call."""

    def __init__(self, wrong: bool, right: Attention = attention) -> None:
        self.wrong = wrong
        self.right = right
        self.calls = 0
        self.out: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        found = self.right(q, k, v, **options)
        self.out = torch.empty_like(found) if self.out is None or self.out.shape != found.shape else self.out
        return self.out.copy_(found * 0 if self.wrong and self.calls > 3 and self.calls % 2 else found)
