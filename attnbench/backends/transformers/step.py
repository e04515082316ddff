"""`step-*`: a step of a whole model of transformers, by the implementation of its attention (`attn_implementation`).

They compute no attention of their own: worker/step/ builds the model and runs it. Here stands what an implementation
takes, what transformers calls it, and which kernels must run in each of its layers; transformers may run others
without a word (a kernel of its hub for flash-attn, SDPA's math for its fused kernels).

transformers gives SDPA an explicit mask where a window hides keys, and repeats grouped keys then. It pads the values
of MLA for flash-attn. Checked against 5.17.0 and 5.23.0 on a CPU, and 5.17.0 on an H100 and an H200.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import ClassVar

from attnbench.backends.base import scores_workspace
from attnbench.backends.flash_attn.fa2 import FlashAttention2
from attnbench.backends.flash_attn.fa3 import FlashAttention3
from attnbench.backends.flash_attn.fa4 import FlashAttention4
from attnbench.backends.limits import TORCH_LIMITS, Limits
from attnbench.backends.pytorch import compiled, sdpa
from attnbench.backends.pytorch.eager import eager_signature
from attnbench.backends.shared.libraries import Library
from attnbench.backends.transformers.functions import HuggingFace
from attnbench.core.backend import Probe, Signature, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.flops import input_bytes
from attnbench.core.machine import Device

ANY = replace(TORCH_LIMITS, window=True, softcap=True, sink=True)


class StepBackend(HuggingFace):
    """A model's step by one implementation of attention."""

    steps = True
    min_version = "5.0"  # caches, masks and attention functions have the interface that worker/step/ uses
    limits: ClassVar[Limits | None] = ANY
    kernel: ClassVar[type[Library] | None] = None  # the library that transformers calls
    switch = ""  # torch's name of the one backend of SDPA that is left on

    def probe(self) -> Probe:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: no kernel is downloaded in the place of a library
        found = super().probe()
        kernel = self.kernel().probe() if self.kernel and found.usable else found
        if not kernel.usable or not self.kernel:
            return kernel
        return Probe(version=f"{found.version}, {kernel.version}")

    def installed(self) -> Probe | None:
        found = super().installed()
        kernel = self.kernel().installed() if self.kernel and found and found.usable else found
        if not kernel or not kernel.usable or not self.kernel or not found:
            return kernel
        return Probe(version=f"{found.version}, {kernel.version}")

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if not case.model_step:
            return "it computes steps of a whole model: attnbench step"
        return self._refusal(case, device)

    def _refusal(self, case: Case, device: Device) -> str | None:
        """Return why the implementation cannot run a step that is within its limits, or None where it can."""
        return None

    def workspace(self, case: Case) -> Workspace:
        """Return what a step needs beyond its weights and their gradients.

        That is its activations, or where those are fewer the float32 weights of the exact answer, which recomputes
        activations. Some 14 rows of the model's width and 4 of the MLP's are kept of a token in a layer, and in
        training three of the logits.
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
    forward_kernels = sdpa.Choice.forward_kernels
    backward_kernels = sdpa.Choice.backward_kernels
    choices: ClassVar = sdpa.Choice.choices


class SdpaMath(Sdpa):
    name = "step-sdpa-math"
    switch = sdpa.Math.switch
    forward_kernels = sdpa.Math.forward_kernels
    backward_kernels = sdpa.Math.backward_kernels
    other_kernels = sdpa.Math.other_kernels

    def workspace(self, case: Case) -> Workspace:
        return Eager().workspace(case)


class SdpaEfficient(Sdpa):
    name = "step-sdpa-efficient"
    switch = sdpa.Efficient.switch
    limits: ClassVar = replace(sdpa.Efficient.limits, window=True, gqa=True)
    forward_kernels = sdpa.Efficient.forward_kernels
    backward_kernels = sdpa.Efficient.backward_kernels
    other_kernels = sdpa.Efficient.other_kernels

    def _refusal(self, case: Case, device: Device) -> str | None:
        grouped = case.shape.nheads != case.shape.nheads_k and not _needs_mask(case)
        return "transformers leaves grouped heads to SDPA, and this kernel takes none" if grouped else None


class SdpaFlash(Sdpa):
    name = "step-sdpa-flash"
    switch = sdpa.Flash.switch
    forward_kernels = sdpa.Flash.forward_kernels
    backward_kernels = sdpa.Flash.backward_kernels
    other_kernels = sdpa.Flash.other_kernels

    def _refusal(self, case: Case, device: Device) -> str | None:
        if device.kind != "cpu" and _needs_mask(case):
            return "a window is an explicit mask to transformers' SDPA, which this kernel does not take"
        return sdpa.Flash().unsupported(replace(case, step="", window_size=(None, None)), device)


class SdpaCudnn(Sdpa):
    name = "step-sdpa-cudnn"
    switch = sdpa.Cudnn.switch
    limits: ClassVar = replace(sdpa.Cudnn.limits, window=True, unequal_causal=True)
    forward_kernels = sdpa.Cudnn.forward_kernels
    backward_kernels = sdpa.Cudnn.backward_kernels
    other_kernels = sdpa.Cudnn.other_kernels


class Flash2(StepBackend):
    name = "step-flash_attention_2"
    uses: ClassVar = (*FlashAttention2.distributions, *FlashAttention2.uses)
    implementation = "flash_attention_2"
    kernel = FlashAttention2
    limits: ClassVar = replace(FlashAttention2.limits.without_cache, headdim_v=True)
    forward_kernels = FlashAttention2.forward_kernels
    backward_kernels = FlashAttention2.backward_kernels
    other_kernels = FlashAttention2.other_kernels


class Flash3(StepBackend):
    name = "step-flash_attention_3"
    uses: ClassVar = (*FlashAttention3.distributions, *FlashAttention3.uses)
    implementation = "flash_attention_3"
    kernel = FlashAttention3
    limits: ClassVar = replace(FlashAttention3.limits.without_cache, dtypes=("bf16", "fp16"), headdim_v=True)
    forward_kernels = FlashAttention3.forward_kernels
    backward_kernels = FlashAttention3.backward_kernels
    other_kernels = FlashAttention3.other_kernels


class Flash4(StepBackend):
    name = "step-flash_attention_4"
    uses: ClassVar = (*FlashAttention4.distributions, *FlashAttention4.uses)
    implementation = "flash_attention_4"
    kernel = FlashAttention4
    limits: ClassVar = replace(FlashAttention4.limits.without_cache, dtypes=("bf16", "fp16"), headdim_v=True)
    forward_kernels = FlashAttention4.forward_kernels
    backward_kernels = FlashAttention4.backward_kernels
    other_kernels = FlashAttention4.other_kernels


class Flex(StepBackend):
    """FlexAttention, which transformers compiles. It has no backward on a CPU, and no sinks there."""

    name = "step-flex_attention"
    implementation = "flex_attention"
    starts_compiler = True
    forward_kernels = compiled.Flex.forward_kernels
    backward_kernels = compiled.Flex.backward_kernels

    def _refusal(self, case: Case, device: Device) -> str | None:
        return "compiled FlexAttention is measured on a CUDA GPU only" if device.kind == "cpu" else None


def _needs_mask(case: Case) -> bool:
    """Return whether some layer of a step has a window that hides keys."""
    step = case.model_step
    lefts = [case.window_size[0]] + [of - 1 for of in step.windows if of] if step else []
    return any(left is not None and left + 1 < case.shape.seqlen_k for left in lefts)
