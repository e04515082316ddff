"""`step-*`: a step of a whole model of transformers, by the implementation of its attention (`attn_implementation`).

worker/step/ builds and runs the model. This file has the limits of each implementation, its name in transformers, and
the kernels that must run in each layer, because transformers may silently run others (a kernel of its hub instead of
flash-attn, SDPA's math instead of its fused kernels).

Where a window hides keys, transformers gives SDPA an explicit mask and repeats grouped keys. For flash-attn it pads the
values of MLA. Checked against 5.17.0 and 5.23.0 on a CPU, and 5.17.0 on an H100 and an H200.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import ClassVar

from attnbench.backends.base import BackendBase, scores_workspace
from attnbench.backends.flash_attn.fa2 import FlashAttention2
from attnbench.backends.flash_attn.fa3 import FlashAttention3
from attnbench.backends.flash_attn.fa4 import FlashAttention4
from attnbench.backends.limits import TORCH_LIMITS, Limits
from attnbench.backends.pytorch import compiled, sdpa
from attnbench.backends.pytorch.eager import eager_signature
from attnbench.backends.transformers.functions import HuggingFace
from attnbench.core.backend import Probe, Signature, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.flops import input_bytes
from attnbench.core.machine import Device

ANY = replace(TORCH_LIMITS, window=True, softcap=True, sink=True)


class StepBackend(HuggingFace):
    """The step of a model with one implementation of attention."""

    steps = True
    min_version = "5.0"  # the first version with the caches, masks and attention functions of worker/step/
    limits: ClassVar[Limits | None] = ANY
    switch = ""  # torch's name of the one backend of SDPA that is left on

    def probe(self) -> Probe:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, so that no kernel is downloaded in place of a library
        return super().probe()

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if not case.model_step:
            return "it computes steps of a whole model: use attnbench step"
        return self._refusal(case, device)

    def _refusal(self, case: Case, device: Device) -> str | None:
        """Return why the implementation cannot run a step that its limits allow; None where it can."""
        return None

    def workspace(self, case: Case) -> Workspace:
        """Return the workspace of a step, beyond its weights and their gradients.

        It is the activations or the float32 weights of the exact answer, which recomputes activations, whichever is
        larger. For each token a layer keeps some 14 rows of the model's width and 4 of the MLP's, and training keeps
        three rows of logits.
        """
        step = case.model_step
        if step is None:
            return Workspace()
        tokens, size = case.shape.batch * case.shape.seqlen_q, ITEMSIZE[case.dtype]
        mlp = max(step.intermediate, (step.expert or step.intermediate) * (step.taken + step.shared))
        layer = tokens * (14 * step.hidden + 4 * mlp)
        logits = 12 * step.vocab * tokens if case.has_backward else 0
        exact = input_bytes(case) * (4 // size - 1) * (2 if case.has_backward else 1) + 4 * layer
        own = layer * size * (step.layers if case.has_backward else 1)
        return Workspace(nbytes=max(own, exact) + logits, what="activations, or weights in float32")


class Eager(StepBackend):
    name = "step-eager"
    implementation = "eager"

    def workspace(self, case: Case) -> Workspace:
        scores = scores_workspace(case, copies_fwd=5, copies_bwd=4 * (case.model_step.layers if case.model_step else 1))
        return replace(scores, nbytes=scores.nbytes + super().workspace(case).nbytes, dense=False)

    def signature(self, case: Case, device: Device) -> Signature:
        return eager_signature(case, device)


class Sdpa(StepBackend):
    """SDPA with the backend that torch chooses in each layer."""

    name = "step-sdpa"
    implementation = "sdpa"
    limits: ClassVar = replace(ANY, softcap=False, sink=False)
    kernels_of: ClassVar[type[BackendBase] | None] = sdpa.Choice


class SdpaMath(Sdpa):
    name = "step-sdpa-math"
    switch = sdpa.Math.switch
    kernels_of = sdpa.Math

    def workspace(self, case: Case) -> Workspace:
        return Eager().workspace(case)


class SdpaEfficient(Sdpa):
    name = "step-sdpa-efficient"
    switch = sdpa.Efficient.switch
    limits: ClassVar = replace(sdpa.Efficient.limits, window=True, gqa=True)
    kernels_of = sdpa.Efficient

    def _refusal(self, case: Case, device: Device) -> str | None:
        grouped = case.shape.nheads != case.shape.nheads_k and not _needs_mask(case)
        return "transformers leaves grouped heads to SDPA, and this kernel takes none" if grouped else None


class SdpaFlash(Sdpa):
    name = "step-sdpa-flash"
    switch = sdpa.Flash.switch
    kernels_of = sdpa.Flash

    def _refusal(self, case: Case, device: Device) -> str | None:
        if device.kind != "cpu" and _needs_mask(case):
            return "a window is an explicit mask to transformers' SDPA, which this kernel does not take"
        return sdpa.Flash().unsupported(replace(case, step="", window_size=(None, None)), device)


class SdpaCudnn(Sdpa):
    name = "step-sdpa-cudnn"
    switch = sdpa.Cudnn.switch
    limits: ClassVar = replace(sdpa.Cudnn.limits, window=True, unequal_causal=True)
    kernels_of = sdpa.Cudnn


class Flash2(StepBackend):
    name = "step-flash_attention_2"
    implementation = "flash_attention_2"
    limits: ClassVar = replace(FlashAttention2.limits.without_cache, headdim_v=True)
    kernels_of = FlashAttention2


class Flash3(StepBackend):
    name = "step-flash_attention_3"
    implementation = "flash_attention_3"
    limits: ClassVar = replace(FlashAttention3.limits.without_cache, dtypes=("bf16", "fp16"), headdim_v=True)
    kernels_of = FlashAttention3


class Flash4(StepBackend):
    name = "step-flash_attention_4"
    implementation = "flash_attention_4"
    limits: ClassVar = replace(FlashAttention4.limits.without_cache, dtypes=("bf16", "fp16"), headdim_v=True)
    kernels_of = FlashAttention4


class Flex(StepBackend):
    """FlexAttention, which transformers compiles. On a CPU it has neither a backward nor sinks."""

    name = "step-flex_attention"
    implementation = "flex_attention"
    starts_compiler = True
    kernels_of = compiled.Flex

    def _refusal(self, case: Case, device: Device) -> str | None:
        return "compiled FlexAttention is measured on a CUDA GPU only" if device.kind == "cpu" else None


def _needs_mask(case: Case) -> bool:
    """Return whether some layer of a step has a window that hides keys."""
    step = case.model_step
    lefts = [case.window_size[0]] + [of - 1 for of in step.windows if of] if step else []
    return any(left is not None and left + 1 < case.shape.seqlen_k for left in lefts)
