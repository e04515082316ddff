"""`fa3`: flash-attn 3 for Hopper (flash-attention/hopper, module flash_attn_interface).

Checked against the source at commit 0251105 (2026-08). Its causal mask is aligned bottom-right. fp8 (e4m3) is forward
only, takes one descale factor per (batch entry, key head) and writes bf16. Older builds return (out, lse), newer ones
out alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.libraries import Library
from attnbench.backends.limits import Limits
from attnbench.backends.masks import flash_window
from attnbench.core.backend import Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.fp8 import quantize_inputs
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs


class FlashAttention3(Library):
    name = "fa3"
    efficiency = 0.75
    module = "flash_attn_interface"
    distributions: ClassVar = ("flash-attn-3", "flashattn-hopper")
    required_name = "flash_attn_func"
    install = (
        "build it: git clone --recursive https://github.com/Dao-AILab/flash-attention; "
        "pip install --no-build-isolation ./flash-attention/hopper"
    )
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp8"),
        capability=(9, 0),
        capability_below=(10, 0),
        headdim=(8, 512),
        headdim_v=True,
        window=True,
        softcap=True,
    )
    forward_kernels = "FlashAttnFwdSm90"
    backward_kernels = "FlashAttnBwdSm90"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or _headdim_refusal(case)

    def signature(self, case: Case, device: Device) -> Signature:
        """Return the names of its kernels; for fp8 the template arguments in the name must say e4m3."""
        found = super().signature(case, device)
        return replace(found, runs=(f"{self.forward_kernels}.*e4m3",)) if case.dtype == "fp8" else found

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from flash_attn_interface import flash_attn_func

        s = case.shape
        options: dict[str, Any] = {
            "softmax_scale": case.softmax_scale,
            "causal": case.causal,
            "window_size": flash_window(case),
            "softcap": case.softcap,
        }

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            result = flash_attn_func(q, k, v, **options)
            out: Tensor = result[0] if isinstance(result, tuple) else result
            return out

        if case.dtype == "fp8":
            operands, descale = quantize_inputs(inputs)
            options |= {f"{name}_descale": factor.expand(s.batch, s.nheads_k) for name, factor in descale.items()}
            return Prepared(lambda: call(**operands), lambda out: {"out": out}, reads=operands)
        return autograd_prepared(case, inputs, call, strided=True)


def _headdim_refusal(case: Case) -> str | None:
    """Return why the head dims are refused, by the same checks as hopper/flash_api.cpp."""
    d, d_v = case.shape.headdim, case.shape.headdim_v
    fp8 = case.dtype == "fp8"
    if fp8 and case.has_backward:
        return "fp8 is forward only"
    if fp8 and (d % 16 or d_v % 16):
        return f"fp8 needs head dims that are multiples of 16, not {d} and {d_v}"
    if d > 256 or (case.has_backward and d_v > 256):
        return f"headdim {max(d, d_v)} is above 256"
    if d != d_v and not ((128 < d <= 192 and 96 < d_v <= 128) or (d <= 64 and not fp8) or (d <= 64 >= d_v)):
        return f"headdim {d} with headdim_v {d_v}: they may differ where headdim <= 64, or as 129-192 with 97-128"
    return None
