"""`sdpa-*`: torch.nn.functional.scaled_dot_product_attention with its backend forced.

Each backend runs in a process of its own, so the choice is made once, by torch.backends.cuda.enable_*_sdp, and not by
a context manager inside the launch. When torch refuses, its own warnings are the reason of the skip.

SDPA's is_causal is aligned top-left; attnbench's causal is bottom-right. They agree when seqlen_q == seqlen_k, and a
single query row sees every key. Otherwise flash gets torch.nn.attention.bias.causal_lower_right (its kernel has that
alignment), math and efficient get an explicit mask, cuDNN refuses.
Checked against torch 2.11 (CUDA) and 2.13 (CPU). What is declared of the fused kernels (`on_cuda`) is the part of
torch's own checks (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) that does not change with its versions.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import BackendBase, autograd_prepared, no_extras, scores_workspace, sees_no_key
from attnbench.backends.installed import Limits
from attnbench.core.backend import Prepared, Signature, Unsupported, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

REFUSALS = ("No available kernel", "No viable backend", "Invalid backend")  # torch's words over the versions
ASKED = {"mem_efficient": "efficient", "flash": "flash", "cudnn": "cudnn"}  # torch.backends.cuda.can_use_{}_attention
OTHERS = {"flash": "pytorch_flash", "mem_efficient": "fmha_cutlass", "cudnn": "cudnn.*sdpa"}  # kernels of each
FORCE = ("math", "mem_efficient", "flash", "cudnn")  # the switches torch.backends.cuda.enable_{}_sdp


class Sdpa(BackendBase):
    """One of SDPA's backends, forced. `switch` is torch's name of it."""

    switch = ""
    unequal_causal = "mask"  # how causal with seqlen_q != seqlen_k is said: "mask", "bias", or "" for not at all
    on_cpu = False
    on_cuda: ClassVar[Limits | None] = None  # of dtype, headdim and GPU; masks are said apart
    kernels: ClassVar[Mapping[str, tuple[str, str]]] = {}  # device kind -> what forward's and backward's look like

    def signature(self, case: Case, device: Device) -> Signature:
        forward, backward = self.kernels[device.kind]
        runs = ((forward,) if case.has_forward else ()) + ((backward,) if case.has_backward else ())
        return Signature(tuple(dict.fromkeys(runs)), never=tuple(OTHERS[n] for n in OTHERS if n != self.switch))

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device.kind == "cpu" and not self.on_cpu:
            return "needs a CUDA GPU"
        if device.kind == "cuda" and self.on_cuda and (reason := self.on_cuda.refuses(case, device)):
            return reason
        if reason := no_extras(case, dropout=device.kind != "cpu" or self.switch == "math"):
            return reason
        if case.causal and case.shape.seqlen_q > case.shape.seqlen_k and self.unequal_causal != "bias":
            return "no defined output for query rows that see no key (seqlen_q > seqlen_k)"
        if _unequal(case) and not self.unequal_causal:
            return "its causal mask is top-left aligned when seqlen_q != seqlen_k"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        for name in FORCE:
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
                if not any(words in str(error) for words in REFUSALS):
                    raise
                with warnings.catch_warnings(record=True) as said, contextlib.suppress(RuntimeError):
                    warnings.simplefilter("always")
                    sdpa(q, k, v, **options)  # again, to hear why
                messages = [str(w.message) for w in said] + self._ask_why(inputs, options)
                raise Unsupported(_reason(messages, self.switch) or f"torch refuses: {error}") from None

        return autograd_prepared(case, inputs, attention, layout="bhsd")

    def _ask_why(self, inputs: Inputs, options: dict[str, Any]) -> list[str]:
        """What torch's own check of a fused CUDA kernel objects to. It says so on the process's stderr alone."""
        import torch

        ask = getattr(torch.backends.cuda, f"can_use_{ASKED.get(self.switch)}_attention", None)
        if ask is None or inputs.q.device.type != "cuda":
            return []
        q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
        mask, causal = options.get("attn_mask"), options.get("is_causal", False)
        parameters = torch.backends.cuda.SDPAParams(q, k, v, mask, options["dropout_p"], causal, options["enable_gqa"])
        with tempfile.TemporaryFile() as file:
            stderr = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                ask(parameters, debug=True)
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
        if not _unequal(case):
            return {"is_causal": True}
        if self.unequal_causal == "bias":
            from torch.nn.attention.bias import causal_lower_right

            return {"attn_mask": causal_lower_right(s.seqlen_q, s.seqlen_k)}
        ones = torch.ones(s.seqlen_q, s.seqlen_k, dtype=torch.bool, device=inputs.q.device)
        return {"attn_mask": ones.tril_(s.seqlen_k - s.seqlen_q)}


class Math(Sdpa):
    """torch's composite of matmuls and softmax; half-precision inputs are computed in float32."""

    name = "sdpa-math"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "math"
    efficiency = 0.2
    on_cpu = True
    kernels: ClassVar = {"cuda": (r"gem[mv]|nvjet|cutlass",) * 2, "cpu": ("aten::bmm",) * 2}  # float32 ones too

    def workspace(self, case: Case) -> Workspace:
        widen = 1 if case.dtype == "fp32" else 2  # scores are float32 whatever the inputs
        return scores_workspace(case, copies_fwd=2.4 * widen, copies_bwd=4.1 * widen)  # as measured on an H200


class Efficient(Sdpa):
    name = "sdpa-efficient"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "mem_efficient"
    efficiency = 0.18
    asks = "torch"
    on_cuda: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"),
        capability=(5, 0),
        bf16=(8, 0),
        gqa=False,  # torch 2.11 refuses all grouped heads
        headdim=(4, 65536),
        multiple=4,
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
    asks = "torch"
    on_cuda: ClassVar = Limits(
        capability_below=(12, 2), headdim=(1, 256), multiple=1, window=True, softcap=True, dropout=True
    )
    kernels: ClassVar = {
        "cuda": ("flash_fwd", "flash_bwd"),
        "cpu": ("flash_attention_for_cpu", "flash_attention_for_cpu_backward"),
    }

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device.kind == "cpu" and _unequal(case):
            return "its CPU kernel has no bottom-right causal mask when seqlen_q != seqlen_k"
        if sees_no_key(case):
            return "causal_lower_right gives NaN for query rows that see no key (seqlen_q > seqlen_k)"
        return super().unsupported(case, device)


class Cudnn(Sdpa):
    name = "sdpa-cudnn"
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    switch = "cudnn"
    efficiency = 0.6
    asks = "torch"
    # above headdim 128 it depends on cuDNN's version
    on_cuda: ClassVar = Limits(capability_below=(12, 2), headdim_v=True, window=True, softcap=True, dropout=True)
    unequal_causal = ""
    kernels: ClassVar = {"cuda": ("cudnn.*fprop", "cudnn.*bprop")}


def _unequal(case: Case) -> bool:
    return case.causal and case.shape.seqlen_q != case.shape.seqlen_k and case.shape.seqlen_q > 1


def _reason(messages: list[str], switch: str) -> str:
    """torch's words for why the forced backend will not run, without the file positions and the other backends."""
    ours = []
    for message in messages:
        text = re.sub(r"\s*\((Triggered internally at .*?|function .*)\)", "", message).strip().rstrip(".")
        if "not used because" in text or "runtime disabled" in text or "not compiled" in text:
            continue  # headings, and the backends that we switched off ourselves
        if text and text not in ours:
            ours.append(text)
    return f"torch refuses sdpa {switch}: {'; '.join(ours)}" if ours else ""
