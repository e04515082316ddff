"""`fa2`: flash-attn 2.x (Dao-AILab/flash-attention). Checked against the source of 2.8.3.post1.

Its causal mask is aligned bottom-right (since 2.1) and a query that sees no key gets 0. 2.6 is the oldest version
accepted, because softcap came with it. Ragged batches are calls of flash_attn_varlen_func. PyPI has only its source;
FLASH_ATTN_CUDA_ARCHS=90 builds for one architecture.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.libraries import VARLEN, Library, varlen_options
from attnbench.backends.limits import Limits
from attnbench.backends.masks import flash_window
from attnbench.backends.paste import BSHD, THD, Paste
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs


class FlashAttention2(Library):
    name = "fa2"
    paste = Paste(
        ("from flash_attn import flash_attn_func", "from flash_attn import flash_attn_varlen_func"),
        {"dense": f"{BSHD}out = flash_attn_func(q, k, v{{options}})", "ragged": f"{THD}out = {VARLEN}"},
        causal="causal=True",
        window="window_size=({left}, {right})",
        softcap="softcap={softcap}",
        dropout="dropout_p={dropout}",
        scale="softmax_scale={scale}",
    )
    verified: ClassVar = ("NVIDIA H200, flash-attn 2.8.3",)
    efficiency = 0.45
    module = "flash_attn.flash_attn_interface"
    distributions: ClassVar = ("flash-attn",)
    install = "pip install 'flash-attn>=2.6,<3' --no-build-isolation"
    min_version, below_version = "2.6", "3"
    limits: ClassVar = Limits(window=True, softcap=True, dropout=True, ragged=True)
    forward_kernels = "flash_fwd"
    backward_kernels = "flash_bwd"
    other_kernels: ClassVar = ("pytorch_flash",)  # torch's copy of flash-attn 2

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.softcap and case.dropout_p:
            return "softcap and dropout exclude each other"
        return super().unsupported(case, device)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from flash_attn import flash_attn_func, flash_attn_varlen_func

        options: dict[str, Any] = {
            "dropout_p": case.dropout_p,
            "softmax_scale": case.softmax_scale,
            "causal": case.causal,
            "window_size": flash_window(case),
            "softcap": case.softcap,
        }
        if case.is_ragged:
            plan = functools.partial(varlen_options, case, inputs.q.device)
            attention = functools.partial(flash_attn_varlen_func, **options, **plan())
            return autograd_prepared(case, inputs, attention, "thd", strided=True, plan=plan)
        return autograd_prepared(case, inputs, functools.partial(flash_attn_func, **options), strided=True)
