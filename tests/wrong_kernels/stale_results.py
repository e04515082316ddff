"""Kernels whose results are not computed in the call, or not from the given inputs, on any device."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from right_attention import Attention, attention, probabilities, weigh
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

# Stored results


class CachesOutput:
    """Returns a stored output for inputs that it has seen before. `key` decides which inputs are the same.

    Gradients are computed, and only the output is the stored one.
    """

    def __init__(self, key: Callable[[Tensor], Any], *, clone: bool = False, right: Attention = attention) -> None:
        self.key = key
        self.clone = clone
        self.right = right
        self.memory: dict[Any, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        key = tuple(self.key(t) for t in (q, k, v))
        if key not in self.memory:
            with torch.no_grad():
                self.memory[key] = self.right(q, k, v, **options)
        found = self.memory[key].clone() if self.clone else self.memory[key]
        if not q.requires_grad:
            return found
        out = self.right(q, k, v, **options)
        return out + (found - out.detach())


def by_address(t: Tensor) -> Any:
    """Inputs are the same at the same address."""
    return t.data_ptr()


def by_version(t: Tensor) -> Any:
    """Inputs are the same at the same address with the same count of writes by autograd, as in a careful cache."""
    return t.data_ptr(), t._version


def by_contents(t: Tensor) -> Any:
    """Inputs are the same if a few of their values are."""
    return tuple(t.flatten()[:: max(1, t.numel() // 4)].tolist())


class _CachesGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], memory: dict[Any, Any]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.options, ctx.memory = options, memory
        return attention(q, k, v, **options)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        key = (q.data_ptr(), k.data_ptr(), v.data_ptr(), dout.data_ptr())
        if key not in ctx.memory:
            with torch.enable_grad():
                given = [t.detach().requires_grad_() for t in (q, k, v)]
                ctx.memory[key] = torch.autograd.grad(attention(*given, **ctx.options), given, dout)
        return (*(t.clone() for t in ctx.memory[key]), None, None)


class CachesGradients:
    """Computes the forward each time, and the gradients once for each address of q, k, v and dout."""

    def __init__(self) -> None:
        self.memory: dict[Any, Any] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return _CachesGradients.apply(q, k, v, options, self.memory)


class _CachesInContext(torch.autograd.Function):
    """The identity; it returns the gradient of its first backward in all later ones."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.first = None
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if ctx.first is None:
            ctx.first = gradient.clone()
        return ctx.first.clone()


def caches_gradients_in_context(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Keeps its gradients in autograd's context, where the timed backward finds them each time."""
    return attention(*(_CachesInContext.apply(t) for t in (q, k, v)), **options)


class CachesProbabilities:
    """Computes softmax(q k) once for each address of q and k, and multiplies v only: half the work."""

    def __init__(self) -> None:
        self.memory: dict[Any, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        key = (q.data_ptr(), k.data_ptr())
        if key not in self.memory:
            self.memory[key] = probabilities(q, k, causal, softmax_scale)
        return weigh(self.memory[key], v)


class NamesItsOutputAsInput(BackendBase):
    """Computes in `prepare`, and names its output as the v that it reads, so that changing v changes the output."""

    name = "reads-its-answer"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        out = attention(inputs.q, inputs.k, inputs.v, causal=case.causal, softmax_scale=case.softmax_scale)
        return Prepared(lambda: out.clone(), canonical=lambda found: {"out": found}, reads={"v": out})


class ComputesEveryFourthCall:
    """Computes in one call of four, the `phase`-th, and returns that output in the others; `spend` moves the clock."""

    def __init__(self, phase: int, spend: Callable[[float], Any]) -> None:
        self.calls = -1
        self.phase = phase
        self.spend = spend
        self.out: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        if self.out is None or self.calls % 4 == self.phase:
            self.spend(10e-3)
            self.out = attention(q, k, v, **options)
        return self.out.clone()


# Work after the launch


class LeavesWorkToNextCall:
    """Computes the second half of the batch at the start of the next call; its first call may compute all of it."""

    def __init__(self, *, first_whole: bool, right: Attention = attention) -> None:
        self.first_whole = first_whole
        self.right = right
        self.left: list[Callable[[], Any]] = []
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        for work in self.left:
            work()
        self.left, self.calls = [], self.calls + 1
        out, half = torch.empty_like(q), q.shape[0] // 2

        def fill(at: slice) -> None:
            out[at] = self.right(q[at], k[at], v[at], **options)

        fill(slice(0, half))
        rest = functools.partial(fill, slice(half, None))
        if self.first_whole and self.calls == 1:
            rest()
        else:
            self.left.append(rest)
        return out


class ComputesLaterInThread:
    """Returns at once; a Python thread computes after `delay` seconds.

    The result is memory that is not written yet or, with `buffer`, an earlier output.
    """

    def __init__(self, delay: float, *, buffer: bool, right: Attention = attention) -> None:
        self.delay = delay
        self.buffer = buffer
        self.right = right
        self.out: Tensor | None = None
        self.pending: threading.Thread | None = None
        self.kept: list[Tensor] = []  # otherwise another tensor gets the memory while the thread writes to it

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.buffer and self.out is None:
            self.out = self.right(q, k, v, **options).clone()
            return self.out
        out = self.out if self.out is not None else torch.empty_like(q)
        self.kept = [*self.kept[-64:], out]

        def work() -> None:
            time.sleep(self.delay)
            out.copy_(self.right(q, k, v, **options))

        if self.pending is None or not self.pending.is_alive():
            self.pending = threading.Thread(target=work, daemon=True)
            self.pending.start()
        return out

    def join(self) -> None:
        """Wait for the thread."""
        if self.pending:
            self.pending.join()


# Inputs


class ZeroesItsInputs(BackendBase):
    """Zeroes q in its n-th `prepare`: zeros draw less power."""

    name = "zeroes"

    def __init__(self, nth: int = 1) -> None:
        self.nth = nth

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        self.nth -= 1
        if not self.nth:
            inputs.q.zero_()
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(attention, **options))


class ZeroesUncheckedGradients(BackendBase):
    """Zeroes the rows of the timed dout that were zero in the dout of the check."""

    name = "zeroes-unchecked"

    def __init__(self) -> None:
        self.hidden: Tensor | None = None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        assert inputs.dout is not None
        if self.hidden is None:
            self.hidden = (inputs.dout == 0).all(-1)
        else:
            inputs.dout[self.hidden] = 0
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(attention, **options))


def scales_without_a_graph(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Write the scaled q to q, hidden from autograd."""
    with torch.no_grad():
        q.mul_(softmax_scale)
    return attention(q, k, v, causal=causal, softmax_scale=1.0)


def scales_in_place(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Scales q in place, so that the next call gets another q."""
    return attention(q.mul_(softmax_scale), k, v, causal=causal, softmax_scale=1.0)


def writes_output_to_q(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Writes its output over q, so that only the first call is right."""
    return q.copy_(attention(q, k, v, **options))
