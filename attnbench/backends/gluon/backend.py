"""The backend `gluon`: the cases that attention.py takes, and the prepared call.

Checked against Triton 3.6.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.gluon.backward_tiles import choose_backward_tiles, query_parts
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, Paste
from attnbench.backends.shared.libraries import OwnKernels, padded_queries, refusal_of_interpreter
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

MULTIPROCESSORS = 132  # an H100 SXM or H200; the PCIe card has 114, so this is an upper bound


class Gluon(OwnKernels):
    name = "gluon"
    module = "triton.experimental.gluon"
    install = "pip install 'triton>=3.6'"
    min_version = "3.6"  # the first with the warp-specialised Gluon that the kernels use
    kernel_folders: ClassVar = ("gluon", "triton")
    paste = Paste(
        ("from attnbench.backends.gluon.attention import attention",),
        {"dense": f"{BSHD}out = attention(q, k, v{{options}})"},
        causal="causal=True",
        scale="softmax_scale={scale}",
    )
    limits: ClassVar = Limits(capability=(9, 0), capability_below=(10, 0), amd=False, headdim=(16, 256), headdim_v=True)
    efficiency = 0.6
    compiles = 1.8
    forward_kernels = "^_forward_hopper$"
    backward_kernels = "^_backward_hopper(_wide)?$"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return refusal_of_interpreter(device) or super().unsupported(case, device)

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        heads, heads_k = s.batch * s.nheads, s.batch * s.nheads_k
        lse = 4 * heads * s.seqlen_q
        if not case.has_backward:
            return Workspace(nbytes=lse, what="log-sum-exp", passes=2.0)
        # A backward allocates padded copies of log-sum-exp and delta; a float32 sum of dq, which is cleared, added to
        # and read; and parts of dk and dv, where the query heads of a key head are split.
        padded = 2 * 4 * heads * padded_queries(s.seqlen_q)
        tiles = choose_backward_tiles(s.headdim, s.headdim_v)
        dq = 4 * tiles.values_of_dq_sum(heads, s.seqlen_q)
        parts = query_parts(s.nheads // s.nheads_k, heads_k * -(-s.seqlen_k // tiles.keys), MULTIPROCESSORS)
        dkv = 4 * heads_k * s.seqlen_k * parts * (s.headdim + s.headdim_v) if parts > 1 else 0
        what = "log-sum-exp, delta, and float32 sums of dq" + (" and parts of dk and dv" if dkv else "")
        return Workspace(nbytes=lse + padded + dq + dkv, what=what, passes=4.0)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from attnbench.backends.gluon.attention import attention

        call = functools.partial(attention, causal=case.causal, softmax_scale=case.softmax_scale)
        return autograd_prepared(case, inputs, call, strided=True)
