"""`sdpa-*`: torch.nn.functional.scaled_dot_product_attention with its backend forced.

Each backend runs in a process of its own, so `prepare` makes the choice for the process, by
torch.backends.cuda.enable_*_sdp, and no context manager is part of the timed call. When torch refuses a case, its own
warnings are the reason of the skip.

SDPA's is_causal is aligned top-left; attnbench's causal is bottom-right. They agree when seqlen_q == seqlen_k, and a
single query sees every key. Otherwise flash gets torch.nn.attention.bias.causal_lower_right (its kernel has that
alignment), math and efficient get an explicit mask, and cuDNN is skipped.

Checked against torch 2.11 (CUDA) and 2.13 (CPU). The limits of the fused kernels (`cuda_limits`) are the part of
torch's own checks (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) that is the same in all its versions.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import (
    BackendBase,
    autograd_prepared,
    basic_features_only,
    has_empty_rows,
    scores_workspace,
)
from attnbench.backends.libraries import Limits
from attnbench.core.backend import Prepared, Signature, Unsupported, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

# torch's messages where the forced backend refuses, by version.
REFUSAL_MESSAGES = ("No available kernel", "No viable backend", "Invalid backend")
# switch -> NAME in torch.backends.cuda.can_use_NAME_attention
CHECK_NAMES = {"mem_efficient": "efficient", "flash": "flash", "cudnn": "cudnn"}
# switch -> pattern for the kernels of that backend
KERNELS_OF = {"flash": "pytorch_flash", "mem_efficient": "fmha_cutlass", "cudnn": "cudnn.*sdpa"}
# NAME in torch.backends.cuda.enable_NAME_sdp
SWITCHES = ("math", "mem_efficient", "flash", "cudnn")


class Sdpa(BackendBase):
    """SDPA with one backend forced."""

    switch = ""  # torch's name of the backend
    unequal_causal = "mask"  # how causal with seqlen_q != seqlen_k is passed: as "mask", as "bias", or "": not at all
    on_cpu = False
    cuda_limits: ClassVar[Limits | None] = None  # of dtype, headdim and GPU; `unsupported` checks masks itself
    kernels: ClassVar[Mapping[str, tuple[str, str]]] = {}  # device kind -> patterns for forward and backward kernels

    def signature(self, case: Case, device: Device) -> Signature:
        forward, backward = self.kernels[device.kind]
        runs = ((forward,) if case.has_forward else ()) + ((backward,) if case.has_backward else ())
        return Signature(tuple(dict.fromkeys(runs)), never=tuple(KERNELS_OF[n] for n in KERNELS_OF if n != self.switch))

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device.kind == "cpu" and not self.on_cpu:
            return "needs a CUDA GPU"
        if device.kind == "cuda" and self.cuda_limits and (reason := self.cuda_limits.refusal(case, device)):
            return reason
        if reason := basic_features_only(case, dropout=device.kind != "cpu" or self.switch == "math"):
            return reason
        if case.causal and case.shape.seqlen_q > case.shape.seqlen_k and self.unequal_causal != "bias":
            return "no defined output for query rows that see no key (seqlen_q > seqlen_k)"
        if _is_unequal_causal(case) and not self.unequal_causal:
            return "its causal mask is top-left aligned when seqlen_q != seqlen_k"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        for name in SWITCHES:
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == self.switch)
        options: dict[str, Any] = {
            "dropout_p": case.dropout_p,
            "scale": case.softmax_scale,
            "enable_gqa": case.shape.nheads != case.shape.nheads_k,
        }
        options.update(self._mask(case, inputs))

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            try:
                return sdpa(q, k, v, **options)
            except RuntimeError as error:
                if not any(message in str(error) for message in REFUSAL_MESSAGES):
                    raise
                with warnings.catch_warnings(record=True) as caught, contextlib.suppress(RuntimeError):
                    warnings.simplefilter("always")
                    sdpa(q, k, v, **options)  # again, to collect the warnings
                messages = [str(w.message) for w in caught] + self._objections(inputs, options)
                raise Unsupported(_reason(messages, self.switch) or f"torch refuses: {error}") from None

        return autograd_prepared(case, inputs, attention, layout="bhsd")

    def _objections(self, inputs: Inputs, options: dict[str, Any]) -> list[str]:
        """Return what torch's own check of a fused CUDA kernel objects to.

        torch writes it to the process's stderr only, so stderr goes to a file meanwhile.
        """
        import torch

        check = getattr(torch.backends.cuda, f"can_use_{CHECK_NAMES.get(self.switch)}_attention", None)
        if check is None or inputs.q.device.type != "cuda":
            return []
        q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
        mask, causal = options.get("attn_mask"), options.get("is_causal", False)
        parameters = torch.backends.cuda.SDPAParams(q, k, v, mask, options["dropout_p"], causal, options["enable_gqa"])
        with tempfile.TemporaryFile() as file:
            stderr = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                check(parameters, debug=True)
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
            file.seek(0)
            return re.findall(r"Warning: (.*)", file.read().decode(errors="replace"))

    def _mask(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        import torch

        s = case.shape
        if not case.causal or s.seqlen_q == 1:
            return {}
        if not _is_unequal_causal(case):
            return {"is_causal": True}
        if self.unequal_causal == "bias":
            from torch.nn.attention.bias import causal_lower_right

            return {"attn_mask": causal_lower_right(s.seqlen_q, s.seqlen_k)}
        ones = torch.ones(s.seqlen_q, s.seqlen_k, dtype=torch.bool, device=inputs.q.device)
        return {"attn_mask": ones.tril_(s.seqlen_k - s.seqlen_q)}


class Math(Sdpa):
    """SDPA's math backend: matmuls and a softmax, in float32 for inputs of half precision."""

    name = "sdpa-math"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "math"
    efficiency = 0.2
    on_cpu = True
    kernels: ClassVar = {"cuda": (r"gem[mv]|nvjet|cutlass",) * 2, "cpu": ("aten::bmm",) * 2}  # float32 ones too

    def workspace(self, case: Case) -> Workspace:
        widen = 1 if case.dtype == "fp32" else 2  # scores are float32 whatever the inputs
        return scores_workspace(case, copies_fwd=2.4 * widen, copies_bwd=4.1 * widen)  # measured on an H200


class Efficient(Sdpa):
    name = "sdpa-efficient"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "mem_efficient"
    efficiency = 0.18
    runtime_checker = "torch"
    cuda_limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"),
        capability=(5, 0),
        bf16_capability=(8, 0),
        gqa=False,  # torch 2.11 refuses all grouped heads
        headdim=(4, 65536),
        headdim_multiple=4,
        headdim_v=True,
        window=True,
        softcap=True,
        dropout=True,
    )
    kernels: ClassVar = {"cuda": ("fmha_cutlassF|AttentionKernel", "fmha_cutlassB|AttentionBackwardKernel")}


class Flash(Sdpa):
    name = "sdpa-flash"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "flash"
    unequal_causal = "bias"
    on_cpu = True
    runtime_checker = "torch"
    cuda_limits: ClassVar = Limits(
        capability_below=(12, 2), headdim=(1, 256), headdim_multiple=1, window=True, softcap=True, dropout=True
    )
    kernels: ClassVar = {
        "cuda": ("flash_fwd", "flash_bwd"),
        "cpu": ("flash_attention_for_cpu", "flash_attention_for_cpu_backward"),
    }

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device.kind == "cpu" and _is_unequal_causal(case):
            return "its CPU kernel has no bottom-right causal mask when seqlen_q != seqlen_k"
        if has_empty_rows(case):
            return "causal_lower_right gives NaN for query rows that see no key (seqlen_q > seqlen_k)"
        return super().unsupported(case, device)


class Cudnn(Sdpa):
    name = "sdpa-cudnn"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "cudnn"
    efficiency = 0.6
    runtime_checker = "torch"
    # Above headdim 128 support depends on the version of cuDNN.
    cuda_limits: ClassVar = Limits(capability_below=(12, 2), headdim_v=True, window=True, softcap=True, dropout=True)
    unequal_causal = ""
    kernels: ClassVar = {"cuda": ("cudnn.*fprop", "cudnn.*bprop")}


def _is_unequal_causal(case: Case) -> bool:
    return case.causal and case.shape.seqlen_q != case.shape.seqlen_k and case.shape.seqlen_q > 1


def _reason(messages: list[str], switch: str) -> str:
    """Return why torch will not run the forced backend, from its warnings; empty where they say nothing of it.

    Source positions and what the warnings say of other backends are left out.
    """
    own = []
    for message in messages:
        text = re.sub(r"\s*\((Triggered internally at .*?|function .*)\)", "", message).strip().rstrip(".")
        if "not used because" in text or "runtime disabled" in text or "not compiled" in text:
            continue  # headings, and the backends that `prepare` switched off
        if text and text not in own:
            own.append(text)
    return f"torch refuses sdpa {switch}: {'; '.join(own)}" if own else ""
