"""Code of backends of delta rules (core/delta.py): the prepared call, and the interface of fla's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import backward_prepared
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case
from attnbench.core.delta import result_shapes

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

NAMES = ("q", "k", "v", "gate", "beta")
CALL = """\
# shapes: core/delta.py of attnbench; state is None at the beginning of a sequence
out, state = {function}(
    q, k, v, g=gate, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True{{options}}
)"""


def pasted_call(function: str) -> str:
    """Return the call of a function with fla's interface, as code to paste."""
    return CALL.format(function=function)


def is_token(case: Case) -> bool:
    """Return whether a case is one token with a state."""
    return case.shape.seqlen_k == 1 and not case.has_backward


def workspace_of_chunks(case: Case) -> Workspace:
    """Return the workspace of kernels that keep the states of chunks of 64 tokens, and rows for each token."""
    s = case.shape
    chunks = s.batch * s.nheads * -(-s.seqlen_k // 64)
    rows = s.batch * s.nheads * s.seqlen_k * (s.headdim + 2 * s.headdim_v)
    nbytes = 2 * (chunks * s.headdim * s.headdim_v + rows) * (3 if case.has_backward else 1)
    return Workspace(nbytes if s.seqlen_k > 1 else 0, "states of chunks", passes=2.0)


def prepared_by_fla(case: Case, inputs: Inputs, function: Callable[..., tuple[Tensor, Any]]) -> Prepared:
    """Return the prepared call of a function with fla's interface, which divides q and k by their lengths."""

    def call(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor | None) -> tuple[Tensor, Any]:
        return function(
            *(q, k, v),
            g=gate,
            beta=beta,
            scale=case.softmax_scale,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )

    return delta_prepared(case, inputs, call)


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
