"""`ring-transformer-engine-*`, `ulysses-transformer-engine`: Transformer Engine's context parallel, on FusedAttention.

Checked against the source of 2.20.2 (attention/dot_product_attention/context_parallel.py). Its module gets the group,
a stream, and the rank's part of the sequence. Three kinds of communication are supported (cp_comm_type): "p2p", a ring
that overlaps with the blocks; "all_gather", of all keys and values before attention; "a2a", an all-to-all to parts of
the heads and back (Ulysses). All take a causal sequence in head-tail order ("dual chunk swap"). The backward sends
tensors in the dtype of the inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.backends.several_devices.base import RingAttention
from attnbench.backends.transformer_engine.dot_product import call_module, dot_product_attention
from attnbench.core.attributes import other_attributes
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

# The functions of torch.distributed that its context parallel calls.
COMMUNICATION = (
    *("isend", "irecv", "P2POp", "batch_isend_irecv"),
    *("all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor"),
)


class ContextParallel(RingAttention):
    """Transformer Engine's context parallel, with one of its kinds of communication."""

    inner = "transformer-engine-fused"

    def __init__(self, communication: str = "p2p") -> None:
        """Take Transformer Engine's cp_comm_type."""
        self.communication = communication
        self._stream: Any = None

    def cannot_split(self, case: Case, device: Device) -> str | None:
        s = case.shape
        if case.window_size != (None, None):
            return "Transformer Engine's context parallel: windows are not wired up"
        if s.seqlen_q % (2 * case.ranks):
            return f"Transformer Engine's context parallel takes a multiple of {2 * case.ranks} tokens"
        return None

    def attention(self, case: Case) -> Callable[[Any, Any, Any], Any]:
        import torch
        import torch.distributed as dist

        module = dot_product_attention(case)
        self._stream = self._stream or torch.cuda.Stream()
        group = dist.group.WORLD
        module.set_context_parallel_group(group, list(range(case.ranks)), self._stream, self.communication)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with _kept_as_saved() if case.direction == "bwd" else contextlib.nullcontext():
                return call_module(case, module, q, k, v)

        return call

    def bytes_moved(self, case: Case, inputs: Inputs) -> int:
        """Return the bytes that a rank sends to the others.

        They are keys and values in the forward; keys and values again, and their gradients, in the backward.
        """
        parts = (case.ranks - 1) * (inputs.k.nbytes + inputs.v.nbytes)
        return parts * (case.has_forward + 2 * case.has_backward)

    def nothing_moved(self) -> contextlib.AbstractContextManager[None]:
        import torch.distributed as dist

        return other_attributes(dist, **dict.fromkeys(COMMUNICATION, _nothing))


def _kept_as_saved() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the backward gets new views of the saved tensors, so that it can run repeatedly.

    The backward of "p2p" reshapes the saved log-sum-exp in place, which autograd refuses the second time.
    """
    from torch.autograd.graph import saved_tensors_hooks

    return saved_tensors_hooks(lambda t: t.detach(), lambda t: t.detach())


def _nothing(*given: Any, **_: Any) -> Any:
    """Replace a function of torch.distributed, and move nothing: the tensors to receive keep their values."""
    several = bool(given) and isinstance(given[0], list)
    return [_Done() for _ in given[0]] if several else _Done()


class _Done:
    """The handle of a communication that takes no time. A stream that waits for it waits for the stream that began it.

    So the second stream of "p2p", which computes every other block, starts after the call has begun.
    """

    def __init__(self) -> None:
        import torch

        self._begun = torch.cuda.Event() if torch.cuda.is_available() else None
        if self._begun is not None:
            self._begun.record()

    def wait(self) -> bool:
        import torch

        if self._begun is not None:
            torch.cuda.current_stream().wait_event(self._begun)
        return True


class Ulysses(ContextParallel):
    """Transformer Engine's all-to-all to parts of the heads, and back."""

    name = "ulysses-transformer-engine"

    def __init__(self) -> None:
        super().__init__("a2a")

    def cannot_split(self, case: Case, device: Device) -> str | None:
        s = case.shape
        if s.nheads % case.ranks or s.nheads_k % case.ranks:
            return f"its all-to-all needs heads that {case.ranks} ranks share evenly, not {s.nheads} and {s.nheads_k}"
        return super().cannot_split(case, device)

    def bytes_moved(self, case: Case, inputs: Inputs) -> int:
        """Return the bytes that a rank sends: of q, k, v and out, and in a backward of dout, dq, dk and dv."""
        out = inputs.q.nbytes // case.shape.headdim * case.shape.headdim_v
        each = inputs.q.nbytes + inputs.k.nbytes + inputs.v.nbytes + out
        return (case.ranks - 1) * each * (case.has_forward + case.has_backward) // case.ranks
