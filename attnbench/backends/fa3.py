"""`fa3`: flash-attn 3 for Hopper (flash-attention/hopper, module flash_attn_interface).

Checked against the source at commit 0251105 (2026-08). Its causal mask is aligned bottom-right. fp8 (e4m3) is forward
only, takes one descale factor per (batch entry, key head) and writes bf16. Older builds return (out, lse), newer ones
out alone.

It is built from source, and switches of the build leave features out (FLASH_ATTENTION_DISABLE_FP16=TRUE, ...). What is
left out is in the module flash_attn_config that setup.py writes. A call for it raises an error, except where v is wider
than the kernel that runs: that is computed wrongly, so it is refused here. A head dim that is left out runs in the next
larger one.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import importlib.metadata
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.libraries import VARLEN, Library, varlen_options
from attnbench.backends.limits import Limits
from attnbench.backends.masks import effective_window, flash_window
from attnbench.backends.paste import BSHD, THD, Paste
from attnbench.core.backend import Prepared, Probe, Signature
from attnbench.core.case import Case
from attnbench.core.fp8 import quantize_inputs
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs


HEADDIMS = (64, 96, 128, 192, 256)  # of its kernels
SLOWER_WITHOUT = ("HDIM96", "HDIM192", "HDIMDIFF192", "PACKGQA", "CLUSTER")  # what runs all the same, but slower


class FlashAttention3(Library):
    name = "fa3"
    paste = Paste(
        ("from flash_attn_interface import flash_attn_func", "from flash_attn_interface import flash_attn_varlen_func"),
        {"dense": f"{BSHD}out = flash_attn_func(q, k, v{{options}})", "ragged": f"{THD}out = {VARLEN}"},
        causal="causal=True",
        window="window_size=({left}, {right})",
        softcap="softcap={softcap}",
        scale="softmax_scale={scale}",
    )
    efficiency = 0.75
    module = "flash_attn_interface"
    distributions: ClassVar = ("flash-attn-3", "flashattn-hopper")
    required_name = "flash_attn_func"
    install = "attnbench env create fa3  # builds it from source, with nvcc"
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp8"),
        capability=(9, 0),
        capability_below=(10, 0),
        headdim=(8, 512),
        headdim_v=True,
        window=True,
        softcap=True,
        ragged=True,
    )
    forward_kernels = "FlashAttnFwdSm90"
    backward_kernels = "FlashAttnBwdSm90"
    left_out: frozenset[str] = frozenset()  # of the installed build, by its switches; known once it is probed

    def probe(self) -> Probe:
        """Return the version, with a hash of the compiled code and what was left out that makes other cases slower.

        The version alone does not tell: it is 3.0.0 for builds of many commits.
        """
        found = super().probe()
        if not found.usable:
            return found
        self.left_out = left_out_of_build()
        slower = [switch for switch in SLOWER_WITHOUT if switch in self.left_out]
        parts = (found.version, _compiled_code(self.distributions), f"without {' '.join(slower)}" if slower else None)
        return replace(found, version=", ".join(filter(None, parts)))

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or _headdim_refusal(case) or build_refusal(case, self.left_out)

    def signature(self, case: Case, device: Device) -> Signature:
        """Return the names of its kernels; for fp8 the template arguments in the name must say e4m3."""
        found = super().signature(case, device)
        return replace(found, runs=(f"{self.forward_kernels}.*e4m3",)) if case.dtype == "fp8" else found

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import flash_attn_interface

        s = case.shape
        attention = flash_attn_interface.flash_attn_func
        options: dict[str, Any] = {
            "softmax_scale": case.softmax_scale,
            "causal": case.causal,
            "window_size": flash_window(case),
            "softcap": case.softcap,
        }

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            result = attention(q, k, v, **options)
            out: Tensor = result[0] if isinstance(result, tuple) else result
            return out

        if case.is_ragged:
            attention = flash_attn_interface.flash_attn_varlen_func
            plan = functools.partial(varlen_options, case, inputs.q.device)
            options |= plan()
            return autograd_prepared(case, inputs, call, "thd", strided=True, plan=plan)
        if case.dtype == "fp8":
            operands, descale = quantize_inputs(inputs)
            options |= {f"{name}_descale": factor.expand(s.batch, s.nheads_k) for name, factor in descale.items()}
            return Prepared(lambda: call(**operands), lambda out: {"out": out}, reads=operands)
        return autograd_prepared(case, inputs, call, strided=True)


def _headdim_refusal(case: Case) -> str | None:
    """Return why the head dims are refused, by the same checks as hopper/flash_api.cpp."""
    d, d_v = case.shape.headdim, case.shape.headdim_v
    fp8 = case.dtype == "fp8"
    if fp8 and case.is_ragged:
        return "fp8 of ragged batches is not wired up"
    if fp8 and case.has_backward:
        return "fp8 is forward only"
    if fp8 and (d % 16 or d_v % 16):
        return f"fp8 needs head dims that are multiples of 16, not {d} and {d_v}"
    if d > 256 or (case.has_backward and d_v > 256):
        return f"headdim {max(d, d_v)} is above 256"
    if d != d_v and not ((128 < d <= 192 and 96 < d_v <= 128) or (d <= 64 and not fp8) or (d <= 64 >= d_v)):
        return f"headdim {d} with headdim_v {d_v}: they may differ where headdim <= 64, or as 129-192 with 97-128"
    return None


def left_out_of_build() -> frozenset[str]:
    """Return what the installed build leaves out: "FP16" for FLASH_ATTENTION_DISABLE_FP16. Empty if it does not say."""
    try:
        flags = importlib.import_module("flash_attn_config").CONFIG["build_flags"]
        return frozenset(flag.partition("DISABLE_")[2] for flag, is_set in flags.items() if is_set is True) - {""}
    except (ImportError, AttributeError, KeyError, TypeError):
        return frozenset()


def build_refusal(case: Case, left_out: frozenset[str]) -> str | None:
    """Return why a build without the features `left_out` cannot run the case, with the switch, or None where it can.

    It follows run_mha_fwd_constexpr and mha_bwd in hopper/flash_api_stable.cpp.
    """
    features = (
        ("FP16", case.dtype == "fp16", "fp16"),
        ("FP8", case.dtype == "fp8", "fp8"),
        ("BACKWARD", case.has_backward, "the backward"),
        ("VARLEN", case.is_ragged, "ragged batches"),
        ("SOFTCAP", case.softcap > 0, "softcap"),
        ("LOCAL", _is_local(case), "sliding windows"),
    )
    for switch, needed, feature in features:
        if needed and switch in left_out:
            return f"this build leaves out {feature} ({_variable(switch)})"
    d, d_v = case.shape.headdim, case.shape.headdim_v
    built = [n for n in HEADDIMS if f"HDIM{n}" not in left_out]
    largest = max(d, d_v) if case.has_backward else d
    if largest > max(built, default=0):
        switch = f"HDIM{min(n for n in HEADDIMS if n >= largest)}"
        return f"this build leaves out headdim {largest} and what is above ({_variable(switch)})"
    kernel = min(n for n in built if n >= d)
    if d_v > kernel and (kernel > 64 or "HDIMDIFF64" in left_out):
        switch = "HDIMDIFF64" if kernel == 64 else "HDIM64"
        return f"this build leaves out headdim {d} with headdim_v {d_v}, and computes it wrongly ({_variable(switch)})"
    return None


def _variable(switch: str) -> str:
    return f"FLASH_ATTENTION_DISABLE_{switch}"


def _is_local(case: Case) -> bool:
    """Return whether it runs its kernel for windows: not where the window has no effect or is a causal mask."""
    left, right = effective_window(case)
    if left is not None and left < case.shape.seqlen_k - 1:
        return True
    return right is not None and 0 < right < case.shape.seqlen_q - 1


def _compiled_code(distributions: tuple[str, ...]) -> str | None:
    """Return the first digits of the SHA-256 of the extension as its wheel states it; None where that is not known."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(name) or ():
                if file.name.startswith("_C.") and file.hash:
                    return f"code {base64.urlsafe_b64decode(f'{file.hash.value}=').hex()[:8]}"
    return None
