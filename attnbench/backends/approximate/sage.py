"""`sage`: attention with q k^T in int8 (Zhang et al., "SageAttention", arXiv 2410.02367). Checked against 1.0.6, 2.2.0.

q and k are rounded to int8, k after its mean over the tokens is subtracted, which changes no probability. There is one
scale for each block of 64 keys and of 128 queries. Probabilities and v are fp16, and their products are summed in fp16
within a block of keys. It is forward only, and the time of a call includes the rounding. The backend calls the Triton
kernel that all versions have, in 2.x under another name, and none of the CUDA kernels, which have v in e4m3.

1.0.6 would subtract the mean from the caller's k in place, so the backend subtracts it first. Without a causal mask it
does not mask the keys behind the last one, so the keys must be whole blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.approximate.base import Approximate, in_blocks, positions
from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

BLOCK_Q, BLOCK_K = 128, 64
KERNEL_OF_2 = "sageattn_qk_int8_pv_fp16_triton"


def rounded(t: Tensor, block: int) -> Tensor:
    """Return t (..., seqlen, headdim) rounded to int8 and back, with one float32 scale for each block of tokens."""
    import torch

    blocks = in_blocks(t.to(torch.promote_types(t.dtype, torch.float32)), block)
    scale = blocks.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
    whole = torch.trunc(blocks / scale + 0.5 * blocks.sign())
    return (whole * scale).flatten(-3, -2)[..., : t.shape[-2], :].to(t.dtype)


class Sage(Approximate, Library):
    name = "sage"
    what = "attention with q and k rounded to int8, a scale for each block of tokens"
    module = "sageattention"
    distributions: ClassVar = ("sageattention",)
    install = "pip install sageattention"
    min_version = "1.0.6"
    forward_kernels = "_attn_fwd"
    limits: ClassVar = Limits(
        headdim_pairs=((64, 64), (128, 128)), backward=False, unequal_causal=False, empty_rows=False
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if not (case.causal and case.shape.seqlen_q > 1) and case.shape.seqlen_k % BLOCK_K:
            return f"without a causal mask the keys must be whole blocks of {BLOCK_K}"
        return None

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        nbytes = s.batch * (s.nheads * s.seqlen_q + 3 * s.nheads_k * s.seqlen_k) * s.headdim
        return Workspace(nbytes, "q, k and v in int8 and fp16", passes=2.0)

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        return super().definition(case, rounded(q, BLOCK_Q), rounded(k - k.mean(0), BLOCK_K), v, selected)

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        import torch

        keys = torch.arange(len(k), device=k.device)
        last: Tensor = positions(case, rows) if case.causal else torch.full_like(rows, len(k) - 1)
        return keys <= last[..., None]

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import sageattention

        of_2 = getattr(sageattention, KERNEL_OF_2, None)
        causal = case.causal and case.shape.seqlen_q > 1  # its causal kernel takes as many queries as keys
        options = {"tensor_layout": "NHD", "is_causal": causal, "sm_scale": case.softmax_scale}

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, seqlen, nheads, headdim)
            out: Tensor
            if of_2 is not None:
                out = of_2(q, k, v, **options)
            else:
                out = sageattention.sageattn(q, k - k.mean(1, keepdim=True), v, smooth_k=False, **options)
            return out

        return autograd_prepared(case, inputs, call, strided=True)
