"""`transformer-engine`: NVIDIA Transformer Engine's DotProductAttention, with the backend that it chooses itself.

Checked against the source of 2.20.0.dev0 (commit d0067d0). It chooses among flash-attn 2, 3 and 4 where they are
installed, cuDNN, and an unfused backend; the kernels in the record show which. The unfused backend is not accepted,
since it is eager attention. Its mask "causal" is aligned top-left, "causal_bottom_right" bottom-right. It returns the
output as (batch, seqlen, nheads * headdim_v).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.libraries import Library
from attnbench.backends.limits import Limits
from attnbench.backends.masks import flash_window
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs


class TransformerEngine(Library):
    name = "transformer-engine"
    efficiency = 0.65
    runtime_checker = "Transformer Engine"
    module = "transformer_engine.pytorch"
    distributions: ClassVar = ("transformer-engine",)
    install = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
    min_version = "2.0"
    limits: ClassVar = Limits(headdim_v=True, window=True, dropout=True, empty_rows=False)
    forward_kernels = "cudnn.*(fprop|sdpa)|flash_fwd|FlashAttnFwd|FlashAttentionForward"
    backward_kernels = "cudnn.*(bprop|sdpa)|flash_bwd|FlashAttnBwd|FlashAttentionBackward"
    other_kernels: ClassVar = ("scaled_\\w*softmax",)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        left, right = flash_window(case)
        if not _causal(case) and (left < 0) != (right < 0):
            return "its window has both sides, or is causal"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from transformer_engine.pytorch import DotProductAttention

        s = case.shape
        left, right = flash_window(case)
        causal = _causal(case)
        mask = "no_mask" if not causal else "causal" if s.seqlen_q == s.seqlen_k else "causal_bottom_right"
        attention = DotProductAttention(
            num_attention_heads=s.nheads,
            kv_channels=(s.headdim, s.headdim_v),
            num_gqa_groups=s.nheads_k,
            attention_dropout=case.dropout_p,
            qkv_format="bshd",
            attn_mask_type=mask,
            window_size=(left, 0 if causal else right),
            softmax_scale=case.softmax_scale,
        )
        attention.train(case.has_backward or case.dropout_p > 0)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = attention(q, k, v)
            return out.view(s.batch, s.seqlen_q, s.nheads, s.headdim_v)

        return autograd_prepared(case, inputs, call, strided=True)


def _causal(case: Case) -> bool:
    """Return whether a causal mask must be passed; a single query sees every key without one."""
    return case.causal and case.shape.seqlen_q > 1
