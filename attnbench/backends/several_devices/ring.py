"""`ring-*`: torch's context parallel, ring attention over SDPA's fused kernels (Liu et al., arXiv 2310.01889).

Every rank holds a part of the sequence. Keys and values go around: `alltoall` sends them to the next rank while a block
is computed, `allgather` gathers all of them during the first block. Outputs of blocks are merged in float32 by their
log-sum-exp. A causal sequence is in head-tail order, which balances the work; other sequences are in contiguous parts,
because torch balances causal attention only.

The call is public: scaled_dot_product_attention inside torch.distributed.tensor.experimental.context_parallel, which
replaces it and is entered in `prepare`. Two private names of torch have no public counterpart: one turns balancing off
for attention that is not causal, the other lets `nothing_moved` replace the rotation.

torch has no context parallel for a CPU; tests/worker/test_ranks.py calls its ring with SDPA's kernel for CPUs, forward
only. Checked against torch 2.13, and on two H100s against torch 2.11, where the backward over the efficient kernel is
wrong.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from attnbench.backends.pytorch.sdpa import force
from attnbench.backends.several_devices.base import RingAttention
from attnbench.core.attributes import other_attributes
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnbench.core.attributes import other_attributes
from attnbench.core.backend import Inputs


class Ring(RingAttention):
    """Ring attention by torch's context parallel."""

    order = "bhsd"
    inner = ""

    def __init__(self, method: str = "allgather", kernel: str = "flash") -> None:
        """Take the argument of torch's set_rotate_method, and the name of SDPA's kernel."""
        self.method, self.kernel, self.inner = method, kernel, f"sdpa-{kernel}"
        self._entered = contextlib.ExitStack()

    def cannot_split(self, case: Case, device: Device) -> str | None:
        s = case.shape
        if device.kind == "cpu":
            return "torch's context parallel has no kernel for a CPU"
        if s.nheads != s.nheads_k:
            return "torch's context parallel: grouped heads are not wired up"
        if case.window_size != (None, None):
            return "torch's context parallel has no window"
        if s.seqlen_q % (2 * case.ranks):
            return f"torch's head-tail order takes a multiple of {2 * case.ranks} tokens"
        return None

    def prepare_rank(self, case: Case, inputs: Inputs) -> Prepared:
        force("mem_efficient" if self.kernel == "efficient" else self.kernel)
        self._entered.close()  # the context of the previous case
        module = _own_module()
        module.set_rotate_method(self.method)
        module._cp_options.enable_load_balance = case.causal
        return super().prepare_rank(case, inputs)

    def attention(self, case: Case) -> Callable[[Any, Any, Any], Any]:
        """Return attention of this rank's q, k and v, (batch, nheads, seqlen / ranks, headdim), over all ranks."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel

        mesh = init_device_mesh("cuda", (case.ranks,))
        positions = torch.empty(1, case.shape.seqlen_q, device="cuda")  # context_parallel must get some tensor to split
        self._entered.enter_context(context_parallel(mesh, buffers=[positions], buffer_seq_dims=[1]))
        scale, causal = case.softmax_scale, case.causal

        def over_all_ranks(q: Any, k: Any, v: Any) -> Any:  # looks up what context_parallel has replaced
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

        return over_all_ranks

    def nothing_moved(self) -> contextlib.AbstractContextManager[None]:
        return other_attributes(_own_module(), _create_rotater=_NoRotation)


class _NoRotation:
    """A rotater of torch's ring that moves nothing and returns each rank's own keys and values."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._buffer: Any = None

    def exchange_buffers(self, buffer: Any) -> None:
        self._buffer = buffer

    def next_buffer(self) -> Any:
        return self._buffer


def _own_module() -> Any:
    """Return the private module of torch's context parallel, whose path differs between versions."""
    import importlib

    package = "torch.distributed.tensor.experimental"
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(f"{package}._context_parallel._attention")
    return importlib.import_module(f"{package}._attention")
