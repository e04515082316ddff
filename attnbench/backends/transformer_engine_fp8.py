"""`transformer-engine-fp8`: Transformer Engine's FusedAttention in e4m3, by its recipe DelayedScaling.

Checked against the source of 2.20.2. On Hopper its fp8 attention takes this recipe only: scales of the probabilities
and of the output come from the calls before (Float8CurrentScaling needs Blackwell; its FlashAttention refuses the
recipe). q, k and v are Float8Tensors, as between layers with fp8_mha, so that they are quantised outside of the time as
those of other backends are, and the output is one too. The scales are those of the largest probability and output that
there can be, 1 and the largest of v, as in cudnn.py: scales of one earlier call clip what is larger in the next, which
the check of a second launch found. A launch leaves them as they are, since nothing is updated where gradients are off.
Its backward in fp8 is not wired up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, Paste
from attnbench.backends.transformer_engine import CALL, Fused, call_module, dot_product_attention
from attnbench.core import fp8
from attnbench.core.backend import Prepared
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

PASTE = f"""\
from transformer_engine.common.recipe import DelayedScaling
from transformer_engine.pytorch import DotProductAttention, autocast

{BSHD}with autocast(enabled=True, recipe=DelayedScaling(fp8_dpa=True)):  # of 16 bits, quantised in the call
    {CALL.replace(chr(10), chr(10) + "    ")}"""


class Fp8(Fused):
    """Its FusedAttention in fp8, forward."""

    name = "transformer-engine-fp8"
    verified = ("NVIDIA H100, transformer-engine 2.20.2",)
    paste = Paste((), {"fp8": PASTE}, full='attn_mask_type="no_mask"', causal='attn_mask_type="causal"')
    efficiency = 1.1
    min_version = "2.20"  # of the names that are imported here
    limits: ClassVar = Limits(
        dtypes=("fp8",),
        capability=(9, 0),
        headdim=(16, 256),
        headdim_multiple=16,
        headdim_v=True,
        backward=False,
        unequal_causal=False,
        empty_rows=False,
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        return f"no layout {case.layout}" if case.layout != "native" else None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from transformer_engine.common.recipe import DelayedScaling
        from transformer_engine.pytorch import DType, Float8Quantizer, autocast
        from transformer_engine.pytorch.cpp_extensions.fused_attn import META_O, META_S

        def quantized(t: Tensor) -> Any:
            amax = torch.zeros(1, device=t.device)
            quantizer = Float8Quantizer(1 / fp8.descale(t), amax, DType.kFloat8E4M3, columnwise=False)
            return quantizer(t.contiguous())

        attention = dot_product_attention(case)
        given = tuple(quantized(t) for t in (inputs.q, inputs.k, inputs.v))
        recipe = DelayedScaling(fp8_dpa=True, fp8_mha=True, reduce_amax=False)

        def attend(q: Any, k: Any, v: Any) -> Any:
            with autocast(enabled=True, recipe=recipe):
                return attention(q, k, v, fp8_output=True)

        def call() -> Any:
            return call_module(case, attend, *given)

        def launch() -> Any:
            with torch.no_grad():
                return call()

        launch()  # makes the quantizers, with scales of 1
        scales = {index: attention.quantizers["scaling_fwd"][index].scale for index in (META_S, META_O)}
        scales[META_S].fill_(fp8.E4M3_MAX)
        scales[META_O].copy_(given[2]._scale_inv.reciprocal().view_as(scales[META_O]))

        reads = {name: t._data.view(torch.float8_e4m3fn) for name, t in zip("qkv", given, strict=True)}
        return Prepared(launch, _result, reads=reads)


def _result(out: Any) -> dict[str, Tensor]:
    """Return the e4m3 values of a Float8Tensor and the factor by which they must be multiplied."""
    import torch

    return {"out": out._data.view(torch.float8_e4m3fn).view(out.shape), "descale_out": out._scale_inv}
