"""`hf-*`: Hugging Face's attention functions, so that one sees what the integration costs over the kernel.

Called as a model's layer calls them: through ALL_ATTENTION_FUNCTIONS (eager is Llama's own), on (batch, nheads, seqlen,
headdim) views of what the projections wrote, with the mask that the model would have made. Checked against 5.23.0.
`hf-flash_attention_2` wants flash-attn installed, since transformers would download a kernel in its stead.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared, scores_workspace
from attnbench.backends.compiled import Compiler
from attnbench.backends.eager import eager_signature
from attnbench.backends.fa2 import FlashAttention2
from attnbench.backends.installed import Library, Limits
from attnbench.backends.masks import band, block_mask, block_mask_workspace, visible
from attnbench.core.backend import Prepared, Probe, Signature, Workspace, torch_dtype
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

ALL = ("bf16", "fp16", "fp32")
BY_TORCH = Limits(  # what torch computes by itself, on any device
    dtypes=ALL,
    capability=(5, 0),
    headdim=(1, 2**20),
    multiple=1,
    headdim_v=True,
    window=True,
    dropout=True,
    empty_rows=False,
    on_cpu=True,
)
FUSED = "flash_(fwd|bwd)|fmha_cutlass|cudnn.*(fprop|bprop|sdpa)|flash_attention|_softmax"


class HuggingFace(Library):
    """One attn_implementation, by the name that a model's configuration has it under."""

    implementation = ""
    module = "transformers"
    distributions: ClassVar = ("transformers",)
    install = "pip install transformers"
    oldest = "4.57"  # 4.48 was the first with ALL_ATTENTION_FUNCTIONS; its windows had a key more
    checked: ClassVar = ("5.23.0",)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        attend = self._function()
        layer = _layer(case, self.implementation)
        options: dict[str, Any] = {"scaling": case.softmax_scale, "dropout": case.dropout_p}
        options.update(self._options(case, inputs.q.device))

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = attend(layer, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)[0]
            return out

        return autograd_prepared(case, inputs, call)

    def _function(self) -> Any:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS[self.implementation]

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        raise NotImplementedError


class Eager(HuggingFace):
    name = "hf-eager"
    verified: ClassVar = ("NVIDIA H200, transformers 5.17",)
    implementation = "eager"
    limits: ClassVar = BY_TORCH

    def workspace(self, case: Case) -> Workspace:
        return scores_workspace(case, copies_fwd=5, copies_bwd=8)  # its softmax is in float32

    def signature(self, case: Case, device: Device) -> Signature:
        return eager_signature(case, device)

    def _function(self) -> Any:
        from transformers.models.llama.modeling_llama import eager_attention_forward

        return eager_attention_forward

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        """An additive mask, as large as a value can be, not infinite."""
        import torch

        seen = visible(case, device)
        if seen is None:
            return {"attention_mask": None}
        dtype = torch_dtype(case)
        mask = torch.zeros(1, 1, *seen.shape, dtype=dtype, device=device)
        return {"attention_mask": mask.masked_fill_(~seen, torch.finfo(dtype).min)}


class Sdpa(HuggingFace):
    """SDPA with torch's choice of its backend. Its causal flag serves equal lengths; else the model makes a mask."""

    name = "hf-sdpa"
    verified: ClassVar = ("NVIDIA H200, transformers 5.17",)
    implementation = "sdpa"
    limits: ClassVar = BY_TORCH

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(runs=(FUSED,))

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        equal = case.shape.seqlen_q == case.shape.seqlen_k
        if case.window_size == (None, None) and (equal or band(case) == (None, None)):
            # transformers 4 takes the flag as it is, which hides all keys but one from a lone query
            return {"attention_mask": None, "is_causal": case.causal and case.shape.seqlen_q > 1}
        seen = visible(case, device)
        return {"attention_mask": None if seen is None else seen[None, None], "is_causal": False}


class Flash2(HuggingFace):
    name = "hf-flash_attention_2"
    verified: ClassVar = ("NVIDIA H200, transformers 5.17, flash-attn 2.8.3",)
    efficiency = 0.45
    implementation = "flash_attention_2"
    limits: ClassVar = Limits(headdim_v=True, window=True, softcap=True, dropout=True)
    forward_kernels = "flash_fwd"
    backward_kernels = "flash_bwd"
    other_kernels: ClassVar = ("pytorch_flash",)

    def probe(self) -> Probe:
        kernel, found = FlashAttention2().probe(), super().probe()
        if not kernel.usable or not found.usable:
            return found if kernel.usable else kernel
        return Probe(version=f"{found.version}, {kernel.version}")

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if case.softcap and case.dropout_p:
            return "softcap and dropout exclude each other"
        if case.shape.headdim_v > case.shape.headdim:
            return "pads v to the headdim of q and k, which is smaller"
        if case.window_size != (None, None) and (not case.causal or case.window_size[0] is None):
            return "its sliding window is causal, with a left side"
        return None

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        left = case.window_size[0]
        return {
            "attention_mask": None,
            "is_causal": case.causal,
            "sliding_window": None if left is None else left + 1,  # it counts the query's own place
            "softcap": case.softcap or None,
        }


class Flex(HuggingFace):
    name = "hf-flex_attention"
    verified: ClassVar = ("NVIDIA H200, transformers 5.17",)
    efficiency = 0.5
    implementation = "flex_attention"
    limits: ClassVar = Limits(dtypes=ALL, headdim=(16, 256), multiple=1, headdim_v=True, window=True, softcap=True)

    def __init__(self) -> None:
        self._compiler = Compiler()

    def probe(self) -> Probe:
        return self._compiler.load(super().probe())

    def workspace(self, case: Case) -> Workspace:
        return block_mask_workspace(case)

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(runs=("triton_tem",))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        self._compiler.ready(case)
        return super().prepare(case, inputs)

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        return {"attention_mask": block_mask(case, device), "softcap": case.softcap or None}


def _layer(case: Case, implementation: str) -> Any:
    """What the functions read of the layer that calls them."""
    import torch

    layer: Any = torch.nn.Module()
    layer.config = SimpleNamespace(_attn_implementation=implementation)
    layer.num_key_value_groups = case.shape.nheads // case.shape.nheads_k
    layer.is_causal = case.causal
    layer.layer_idx = 0
    return layer.train(case.has_backward or case.dropout_p > 0)
