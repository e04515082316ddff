"""`fa1`: flash-attn 1.x (Dao-AILab/flash-attention), the version for Turing GPUs. Checked against the source of 1.0.9.

Its interface takes variable lengths: tensors (total, nheads, headdim), which are views of the inputs here, and
cumulative lengths. Its causal mask is aligned top-left (2.1 changed that). It has no grouped heads, takes headdim
up to 128, and has a backward for headdim above 64 on compute capability 8.0 and 9.0 only
(csrc/flash_attn/fmha_api.cpp). Its dropout repeats its bits every 2 keys in each 8 (csrc/flash_attn/src/philox.cuh
divides the offset of a lane by 4), so the check finds it wrong.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.paste import THD, Paste
from attnbench.backends.shared.libraries import Library, varlen_options
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs


# 0.0 is dropout_p
UNPADDED = """\
out = flash_attn_unpadded_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0{options}
)"""


class FlashAttention1(Library):
    name = "fa1"
    paste = Paste(
        ("from flash_attn.flash_attn_interface import flash_attn_unpadded_func",),
        dict.fromkeys(("dense", "ragged"), THD + UNPADDED),
        causal="causal=True",
        scale="softmax_scale={scale}",
    )
    module = "flash_attn.flash_attn_interface"
    distributions: ClassVar = ("flash-attn",)
    install = "pip install 'flash-attn<2' --no-build-isolation"
    below_version = "2"
    required_name = "flash_attn_unpadded_func"
    limits: ClassVar = Limits(
        capability=(7, 5),
        capability_below=(9, 1),
        bf16_capability=(8, 0),
        headdim=(8, 128),
        gqa=False,
        dropout=True,
        unequal_causal=False,
        ragged=True,
    )
    forward_kernels = "fmha_fwd_loop_kernel"
    backward_kernels = "fmha_bwd_.*loop"

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        large = case.has_backward and case.shape.headdim > 64
        if large and device.capability not in (None, (8, 0), (9, 0)):
            return "its backward of headdim above 64 needs compute capability 8.0 or 9.0 (shared memory)"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from flash_attn.flash_attn_interface import flash_attn_unpadded_func

        causal = case.causal and case.shape.seqlen_q > 1  # aligned top-left: a single query would see one key only
        plan = functools.partial(varlen_options, case, inputs.q.device)
        attention = functools.partial(
            flash_attn_unpadded_func,
            **plan(),
            dropout_p=case.dropout_p,
            softmax_scale=case.softmax_scale,
            causal=causal,
        )
        return autograd_prepared(case, inputs, attention, "thd", strided=True, plan=plan if case.is_ragged else None)
