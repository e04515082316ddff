"""`ring-flash-attn`: ring attention over flash-attn 2 (zhuzilin/ring-flash-attention). Checked against its 0.1.8.

Keys and values go to the next rank while a block is computed, by batch_isend_irecv. Blocks are merged in float32 by
their log-sum-exp. Causal attention is `zigzag_ring_flash_attn_func`, whose order of the sequence is torch's head-tail
order; the rest is `ring_flash_attn_func`, on contiguous parts. The package's variants for ragged batches, and its
striped order, are not here.

Its import needs transformers below 5, from which it takes a name that 5 no longer has. Checked with the package itself
over a flash-attn for CPUs (tests/worker/ring_package.py); not run on GPUs yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.libraries import Library
from attnbench.backends.several_devices import SeveralDevices, ring_bytes
from attnbench.core import split_sequence
from attnbench.core.backend import Prepared, Probe
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs


class Package(Library):
    """The package, beside the flash-attn that it calls."""

    name = "ring-flash-attn"
    module = "ring_flash_attn"
    distributions: ClassVar = ("ring-flash-attn",)
    install = "pip install ring-flash-attn 'transformers<5'"


class RingFlashAttention(SeveralDevices):
    name = "ring-flash-attn"
    inner = "fa2"

    @property
    def distributions(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.on_one.distributions, *Package.distributions)

    def probe(self) -> Probe:
        return _both(self.on_one.probe(), Package().probe())

    def installed(self) -> Probe | None:
        kernel, package = self.on_one.installed(), Package().installed()
        return _both(kernel, package) if kernel and package else None

    def cannot_split(self, case: Case, device: Device) -> str | None:
        s = case.shape
        if case.window_size != (None, None) or case.softcap:
            return "ring-flash-attn has no window and no softcap"
        if case.causal and s.seqlen_q % (2 * case.ranks):
            return f"its zigzag order takes a multiple of {2 * case.ranks} tokens"
        return None

    def on_each(self, case: Case) -> Case:
        return case if case.ranks == 1 else split_sequence.part_of(case)

    def spans(self, case: Case, rank: int) -> split_sequence.Spans:
        split = split_sequence.head_tail if case.causal else split_sequence.contiguous
        return split(case.shape.seqlen_q, case.ranks, rank)

    def prepare_rank(self, case: Case, inputs: Inputs) -> Prepared:
        from ring_flash_attn import ring_flash_attn_func, zigzag_ring_flash_attn_func

        function = zigzag_ring_flash_attn_func if case.causal else ring_flash_attn_func
        scale, causal = case.softmax_scale, case.causal

        def attention(q: Any, k: Any, v: Any) -> Any:
            return function(q, k, v, softmax_scale=scale, causal=causal)

        prepared = autograd_prepared(split_sequence.part_of(case), inputs, attention)

        def compute() -> Any:
            with _nothing_moved():
                return prepared.launch()

        return replace(prepared, moved=ring_bytes(case, inputs), compute=compute)


def _both(kernel: Probe, package: Probe) -> Probe:
    """Return the probe of two things that are both needed."""
    if not kernel.usable:
        return kernel
    return Probe(version=f"{package.version}, {kernel.version}") if package.usable else package


@contextlib.contextmanager
def _nothing_moved() -> Iterator[None]:
    """Let the package's ring move nothing within the block: each rank gets its own tensors back."""
    from ring_flash_attn.utils import RingComm

    names = ("send_recv", "commit", "wait")
    usual = {name: getattr(RingComm, name) for name in names}
    RingComm.send_recv = lambda self, to_send, recv_tensor=None: to_send
    RingComm.commit = RingComm.wait = lambda self: None
    try:
        yield
    finally:
        for name in names:
            setattr(RingComm, name, usual[name])
