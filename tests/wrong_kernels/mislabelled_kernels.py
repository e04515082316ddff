"""The liars about what ran: another kernel than the name says, another precision, work outside the launch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from right_attention import Attention, attention, fused
from torch import Tensor

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.eager import Eager
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

# The honest


def declared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Says what runs, on a CPU, and runs it."""
    return attention(q, k, v, **options)


declared.kernels = ("aten::bmm", "softmax")


# Work that is not in its time


class WorksInCanonical(BackendBase):
    """Its launch returns a promise, which `canonical` makes true."""

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
    """Its launch computes, and leaves the last row of the batch to `canonical`."""

    name = "finishes-in-canonical"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def launch() -> Tensor:
            return self.right(inputs.q[:-1], inputs.k[:-1], inputs.v[:-1], **options)

        def canonical(out: Tensor) -> dict[str, Tensor]:
            return {"out": torch.cat([out, self.right(inputs.q[-1:], inputs.k[-1:], inputs.v[-1:], **options)])}

        return Prepared(launch, canonical)


# Another kernel than the name says


def falls_back(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Declares a fused kernel and computes with another library's, as where a build is missing."""
    return attention(q, k, v, **options)


falls_back.kernels = "my_fused_kernel"


def falls_back_to_numpy(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """On a CPU: the same past torch, where no operator is seen."""
    assert not causal
    group = q.shape[2] // k.shape[2]
    a, b, c = (t.numpy().transpose(0, 2, 1, 3) for t in (q, k, v))
    b, c = b.repeat(group, 1), c.repeat(group, 1)
    scores = a @ b.transpose(0, 1, 3, 2) * softmax_scale
    p = _exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy((p / p.sum(-1, keepdims=True) @ c).transpose(0, 2, 1, 3))


falls_back_to_numpy.kernels = "my_fused_kernel"


def _exp(x: Any) -> Any:
    import numpy

    return numpy.exp(x)


def decoy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Runs something of the declared name that does nothing, beside what does the work."""
    if q.is_cuda:
        torch.zeros(1, device=q.device).random_(0, 2)
    else:
        with torch.profiler.record_function("own::my_fused_kernel"):
            pass
    return attention(q, k, v, **options)


decoy.kernels = "my_fused_kernel|distribution_elementwise"


def in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Computes a half-precision case in float32."""
    return attention(q.float(), k.float(), v.float(), **options).to(q.dtype)


class SecretlyFused(Eager):
    """Is called eager and is torch's fused attention."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(fused, **options))
