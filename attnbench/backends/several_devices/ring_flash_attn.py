"""`ring-flash-attn`: ring attention over flash-attn 2 (zhuzilin/ring-flash-attention). Checked against 0.1.8.

Keys and values go to the next rank while a block is computed, by batch_isend_irecv. Blocks are merged in float32 by
their log-sum-exp. Causal attention is `zigzag_ring_flash_attn_func`, on parts in torch's head-tail order; other
attention is `ring_flash_attn_func`, on contiguous parts. The package's variants for ragged batches and its striped
order are not wired up.

It needs transformers below 5, because 5 lacks a name that it imports. Checked on a CPU with the package itself over a
flash-attn for CPUs (tests/worker/ring_package.py), and on two H100s with flash-attn 2.8.3 and torch 2.11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from attnbench.backends.several_devices.base import RingAttention
from attnbench.backends.shared.libraries import Library, probe_of_both
from attnbench.core.attributes import other_attributes
from attnbench.core.backend import Probe
from attnbench.core.case import Case
from attnbench.core.machine import Device


class Package(Library):
    """The package ring-flash-attn, with the flash-attn that it calls."""

    name = "ring-flash-attn"
    module = "ring_flash_attn"
    distributions: ClassVar = ("ring-flash-attn",)
    install = "pip install ring-flash-attn 'transformers<5'"


class RingFlashAttention(RingAttention):
    name = "ring-flash-attn"
    inner = "fa2"

    @property
    def distributions(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.on_one.distributions, *Package.distributions)

    def probe(self) -> Probe:
        return probe_of_both(self.on_one.probe(), Package().probe())

    def installed(self) -> Probe | None:
        return probe_of_both(self.on_one.installed(), Package().installed())

    def cannot_split(self, case: Case, device: Device) -> str | None:
        s = case.shape
        if case.window_size != (None, None) or case.softcap:
            return "ring-flash-attn has no window and no softcap"
        if case.causal and s.seqlen_q % (2 * case.ranks):
            return f"its zigzag order takes a multiple of {2 * case.ranks} tokens"
        return None

    def attention(self, case: Case) -> Callable[[Any, Any, Any], Any]:
        from ring_flash_attn import ring_flash_attn_func, zigzag_ring_flash_attn_func

        function = zigzag_ring_flash_attn_func if case.causal else ring_flash_attn_func
        return functools.partial(function, softmax_scale=case.softmax_scale, causal=case.causal)

    def nothing_moved(self) -> AbstractContextManager[None]:
        from ring_flash_attn.utils import RingComm

        done = dict.fromkeys(("commit", "wait"), lambda self: None)
        return other_attributes(RingComm, send_recv=lambda self, to_send, recv_tensor=None: to_send, **done)
