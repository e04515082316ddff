"""`transformer-engine-fp8`: Transformer Engine's FusedAttention in fp8, by its recipe DelayedScaling.

Checked against the source of 2.20.2. On Hopper its fp8 attention takes this recipe only, in which the scales of results
come from earlier calls (Float8CurrentScaling needs Blackwell; its FlashAttention refuses the recipe). The forward is in
e4m3; dout, the gradient of the scores ("dP") and dq, dk and dv are in e5m2. q, k, v and dout are Float8Tensors, as
between layers with fp8_mha, and so are the results; as in other backends they are quantised outside of the time.

Scales of an earlier call would clip larger values of the next, so the forward has scales for the largest possible
probability, 1, and the largest possible output, the largest value of v, as in cudnn/fp8.py. The scale of dP is for its
largest possible value, too. The scales of dq, dk and dv are an earlier call's with a margin, which costs e5m2 no
precision. A launch changes no scale, because it runs with gradients off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import backward_prepared
from attnbench.backends.cudnn.fp8 import CudnnFp8, fp8_refusal, in_8_bits
from attnbench.backends.paste import BSHD, Paste
from attnbench.backends.transformer_engine.dot_product import CALL, Fused, call_module, dot_product_attention
from attnbench.core import fp8
from attnbench.core.backend import Prepared, Signature
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
    """Transformer Engine's FusedAttention in fp8."""

    name = "transformer-engine-fp8"
    paste = Paste((), {"fp8": PASTE}, full='attn_mask_type="no_mask"', causal='attn_mask_type="causal"')
    efficiency = 1.1
    compiles = 0.6
    min_version = "2.20"  # the first version with the names that are imported here
    limits: ClassVar = replace(CudnnFp8.limits, unequal_causal=False)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if reason := fp8_refusal(case, device):
            return reason
        return f"no layout {case.layout}" if case.layout != "native" else None

    def signature(self, case: Case, device: Device) -> Signature:
        return in_8_bits(super().signature(case, device), case, device)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from transformer_engine.common.recipe import DelayedScaling
        from transformer_engine.pytorch import DType, Float8Quantizer, autocast
        from transformer_engine.pytorch.cpp_extensions.fused_attn import META_DP, META_DQKV, META_O, META_S

        formats = {DType.kFloat8E4M3: fp8.E4M3_MAX, DType.kFloat8E5M2: fp8.E5M2_MAX}

        def quantized(t: Tensor, dtype: Any = DType.kFloat8E4M3) -> Any:
            amax = torch.zeros(1, device=t.device)
            quantizer = Float8Quantizer(1 / fp8.descale(t, formats[dtype]), amax, dtype, columnwise=False)
            return quantizer(t.contiguous())

        attention = dot_product_attention(case)
        given = tuple(quantized(t) for t in (inputs.q, inputs.k, inputs.v))
        reads = {name: t._data.view(torch.float8_e4m3fn) for name, t in zip("qkv", given, strict=True)}
        recipe = DelayedScaling(fp8_dpa=True, fp8_mha=True, reduce_amax=False)

        def attend(q: Any, k: Any, v: Any) -> Any:
            with torch.no_grad(), autocast(enabled=True, recipe=recipe), torch.set_grad_enabled(case.has_backward):
                return attention(q, k, v, fp8_output=True)

        def forward() -> Any:
            return call_module(case, attend, *given)

        def scales(of: str, *indices: int) -> tuple[Tensor, ...]:
            return tuple(attention.quantizers[of][index].scale for index in indices)

        forward()  # creates the quantizers, with scales of 1
        of_scores, of_out = scales("scaling_fwd", META_S, META_O)
        of_scores.fill_(fp8.E4M3_MAX)
        of_out.copy_(given[2]._scale_inv.reciprocal().view_as(of_out))
        if not case.has_backward:
            return Prepared(forward, lambda out: _named({"out": out}), reads=reads)

        assert inputs.dout is not None
        dout = quantized(inputs.dout, DType.kFloat8E5M2)
        reads["dout"] = dout._data.view(torch.float8_e5m2)
        for t in given:
            t.requires_grad_()

        def grads(out: Any, *, keep: bool) -> tuple[Any, ...]:
            return torch.autograd.grad(out, given, dout, retain_graph=keep)

        def named(out: Any, *found: Any) -> dict[str, Tensor]:
            return _named({"out": out, **dict(zip(("dq", "dk", "dv"), found, strict=True))})

        of_dp, of_gradients = scales("scaling_bwd", META_DP, META_DQKV)
        of_dp.fill_(fp8.E5M2_MAX / fp8.largest_score_gradient(inputs.dout, inputs.v))
        of_gradients.fill_(fp8.gradient_scale(*(t.dequantize() for t in grads(forward(), keep=False))))
        return backward_prepared(case, forward, grads, named, reads=reads)


def _named(results: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the 8-bit values of each Float8Tensor by name, and as "descale_NAME" the factor to multiply them by."""
    import torch

    found: dict[str, Tensor] = {}
    for name, t in results.items():
        dtype = torch.float8_e4m3fn if name == "out" else torch.float8_e5m2
        found |= {name: t._data.view(dtype).view(t.shape), f"descale_{name}": t._scale_inv}
    return found
