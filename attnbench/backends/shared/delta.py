"""The prepared call of a delta rule, for every backend that has a function of one (core/delta.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import backward_prepared
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.delta import result_shapes

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

NAMES = ("q", "k", "v", "gate", "beta")


def delta_prepared(case: Case, inputs: Inputs, call: Callable[..., tuple[Tensor, Any]]) -> Prepared:
    """Return the prepared call of a function of q, k, v, gate, beta and a state, which returns out and the last state.

    Tensors have the shapes of core/delta.py. The state is None for a backward, whose gradients come from autograd.
    """
    import torch

    leaves = [inputs.values[name].detach() for name in NAMES]
    if not case.has_backward:

        def launch() -> tuple[Tensor, Any]:
            with torch.no_grad():
                return call(*leaves, inputs.state)

        return Prepared(launch, lambda raw: {"out": raw[0], "state": raw[1]})
    for t in leaves:
        t.requires_grad_()

    def gradients(out: Tensor, *, keep: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, leaves, inputs.dout, retain_graph=keep)

    def named(out: Tensor, *found: Tensor) -> dict[str, Tensor]:
        return dict(zip(result_shapes(case), (out.detach(), *found), strict=True))

    return backward_prepared(case, lambda: call(*leaves, None)[0], gradients, named)
