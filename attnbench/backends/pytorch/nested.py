"""Ragged batches as torch's nested tensors of the jagged layout, which SDPA takes.

A nested tensor is a view of packed tokens with the offsets of its sequences. Checked against torch 2.11 and 2.13
(torch/nested/_internal/sdpa.py): its SDPA has neither explicit masks nor grouped heads, and where lengths are unlike,
the fused kernels align its causal mask differently.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from attnbench.backends.base import backward_prepared, no_backward
from attnbench.core.backend import Inputs, Prepared, cu_seqlens
from attnbench.core.case import Case

if TYPE_CHECKING:
    from torch import Tensor


def nested_refusal(case: Case) -> str | None:
    """Return why SDPA takes no nested tensors for a ragged batch, or None where it can."""
    if not case.is_ragged:
        return None
    if case.shape.nheads != case.shape.nheads_k:
        return "SDPA of nested tensors has no grouped heads (nheads_k must equal nheads)"
    if case.causal and case.shape.seqlen_q > 1 and not case.has_equal_lengths:
        return "SDPA of nested tensors is causal for seqlen_q == seqlen_k in each sequence only"
    return None


def nested_prepared(case: Case, inputs: Inputs, fn: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Prepared:
    """Return the prepared call of a function that takes and returns nested tensors (batch, nheads, seqlen, headdim).

    The nested tensors are made here, untimed, because a model has them already; gradients are with respect to them.
    """
    import torch

    # SDPA's math creates nested tensors of the older layout, and torch warns once about it.
    warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage")
    plan = functools.partial(cu_seqlens, case, inputs.q.device)
    starts = dict(zip("qk", plan(), strict=True))
    lengths = {"q": [of.seqlen_q for of in case.sequences], "k": [of.seqlen_k for of in case.sequences]}
    if lengths["q"] == lengths["k"]:
        starts["k"] = starts["q"]  # torch takes nested tensors as of one shape only where they share the offsets tensor

    def nest(t: Tensor, side: str) -> Tensor:
        least, most = min(lengths[side]), max(lengths[side])
        nested = torch.nested.nested_tensor_from_jagged(t[0], starts[side], min_seqlen=least, max_seqlen=most)
        return nested.detach().transpose(1, 2)

    def packed(t: Tensor) -> Tensor:
        """Return the packed tokens, detached, because a nested tensor does not give its own memory."""
        values: Tensor = t._values  # type: ignore[assignment]  # (nheads, total, headdim)
        return values.transpose(0, 1).unsqueeze(0)

    leaves = (nest(inputs.q, "q"), nest(inputs.k, "k"), nest(inputs.v, "k"))

    def forward() -> Tensor:
        return fn(*leaves)

    if not case.has_backward:
        return Prepared(lambda: packed(forward()), lambda out: {"out": out}, plan=plan)

    if inputs.dout is None:
        raise ValueError("a backward needs inputs.dout")
    dout = nest(inputs.dout, "q")
    for t in leaves:
        t.requires_grad_()

    def grads(out: Tensor, *, keep: bool) -> tuple[Tensor, ...]:
        try:
            return tuple(map(packed, torch.autograd.grad(out, leaves, dout, retain_graph=keep)))
        except RuntimeError as refusal:
            raise no_backward(refusal) from None

    def named(out: Tensor, *found: Tensor) -> dict[str, Tensor]:
        return dict(zip(("out", "dq", "dk", "dv"), (packed(out), *found), strict=True))

    return backward_prepared(case, forward, grads, named, plan=plan)
