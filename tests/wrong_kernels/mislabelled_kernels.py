"""Kernels that are not what their backend's name or declaration says, or that work outside of the launch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from right_attention import Attention, attention, fused
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

# A right one


def right_and_declared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Right: runs the operators on a CPU that it declares."""
    return attention(q, k, v, **options)


right_and_declared.kernels = ("aten::bmm", "softmax")


# Work outside the launch


class WorksInCanonical(BackendBase):
    """Its launch returns a function, and `canonical` calls it."""

    name = "canonical"

    def __init__(self, right: Attention = attention) -> None:
        self.right = right

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        def thunk() -> Tensor:
            return self.right(
                inputs.q, inputs.k, inputs.v, causal=case.causal, softmax_scale=case.softmax_scale
            ).clone()

        return Prepared(launch=lambda: thunk, canonical=lambda promise: {"out": promise()})


class FinishesInCanonical(WorksInCanonical):
    """Its launch leaves the last entry of the batch to `canonical`."""

    name = "finishes-in-canonical"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def launch() -> Tensor:
            return self.right(inputs.q[:-1], inputs.k[:-1], inputs.v[:-1], **options)

        def canonical(out: Tensor) -> dict[str, Tensor]:
            return {"out": torch.cat([out, self.right(inputs.q[-1:], inputs.k[-1:], inputs.v[-1:], **options)])}

        return Prepared(launch, canonical)


# Other kernels than the name


def falls_back(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Declares a fused kernel and computes with matmuls, as with a missing build."""
    return attention(q, k, v, **options)


falls_back.kernels = "my_fused_kernel"


def falls_back_to_numpy(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Declares a fused kernel and computes with numpy on a CPU, without operators of torch."""
    assert not causal
    group = q.shape[2] // k.shape[2]
    a, b, c = (t.numpy().transpose(0, 2, 1, 3) for t in (q, k, v))
    b, c = b.repeat(group, 1), c.repeat(group, 1)
    scores = a @ b.transpose(0, 1, 3, 2) * softmax_scale
    p = _exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy((p / p.sum(-1, keepdims=True) @ c).transpose(0, 2, 1, 3))


falls_back_to_numpy.kernels = "my_fused_kernel"


def uses_numpy(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Declares nothing, and computes with numpy."""
    return falls_back_to_numpy(q, k, v, causal=causal, softmax_scale=softmax_scale)


def _exp(x: Any) -> Any:
    import numpy

    return numpy.exp(x)


def declared_kernel_does_nothing(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Runs an operator of the declared name that does nothing, and other kernels that do the work."""
    if q.is_cuda:
        torch.zeros(1, device=q.device).random_(0, 2)
    else:  # a marked range is not an operator
        with torch.profiler.record_function("own::my_fused_kernel"):
            pass
    return attention(q, k, v, **options)


declared_kernel_does_nothing.kernels = "my_fused_kernel|distribution_elementwise"


def in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Computes a half-precision case in float32."""
    return attention(q.float(), k.float(), v.float(), **options).to(q.dtype)


def in_float32_undeclared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Computes a half-precision case in float32, and declares only its softmax."""
    return in_float32(q, k, v, **options)


in_float32_undeclared.kernels = "(?i)softmax"


class InFloat32(BackendBase):
    """A class of a person that computes a half-precision case in float32."""

    name = "in-float32"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(in_float32, **options))


def declared_beside_a_long_sort(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Right: declares its matrix products, which take almost no time beside its other work."""
    torch.arange(2.0**19).flip(0).sort()
    return attention(q, k, v, **options)


declared_beside_a_long_sort.kernels = "bmm"


class FusedCalledEager(Eager):
    """Torch's fused attention under the name eager."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(fused, **options))
