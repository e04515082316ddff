"""fp8 cases: their dtypes, and the rounding of values to 8 bits.

In an fp8 case q, k and v are e4m3 (4 bits of exponent, 3 of mantissa: 8 steps between a power of two and the next,
largest value 448), and in its backward dout is e5m2 (2 bits of mantissa, largest value 57344), as in Transformer
Engine's recipes, or e4m3. Its inputs are made in bf16. A backend rounds them in `prepare`, outside of the timed call,
with one scale per tensor, and names its copies in `Prepared.reads`. A result is bf16. Where a library can write 8 bits
only, `canonical` has "descale_out" beside "out", and so on: one float32 on the device, by which the result must be
multiplied. Errors are measured against the exact attention of the inputs before rounding.

Kernels also round the probabilities to e4m3, since the tensor cores multiply e4m3 by e4m3. They divide them by the
largest of the row, so that they are at most 1, and scale them up to the range of the format (FlashAttention-3, arXiv
2407.08608; its kernels scale by 2^8). In a backward the gradient of the scores is rounded to e5m2, for the same reason.
The exponents of e5m2 reach from 2^-16 to 2^15, so that its scale matters little.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs
from attnbench.core.layouts import find_packed, lay_out

if TYPE_CHECKING:
    import torch
    from torch import Tensor

E4M3_MAX = 448.0
E5M2_MAX = 57344.0
PROBABILITY_SCALE = 2.0**8  # the factor by which kernels multiply probabilities before they round them
# Room below the largest e5m2 value for gradients larger than the ones from which the scale was computed. It costs e5m2
# no precision.
GRADIENT_MARGIN = 2.0**5


def descale(t: Tensor, largest: float = E4M3_MAX) -> Tensor:
    """Return the divisor that makes the largest |value| of t equal to `largest`: float32 of shape (1,)."""
    return (t.abs().amax().float() / largest).clamp(min=1e-12).reshape(1)


def quantize(t: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return t in an 8-bit dtype, float8_e4m3fn by default, and the factor by which the result must be multiplied."""
    import torch

    dtype = dtype or torch.float8_e4m3fn
    factor = descale(t, torch.finfo(dtype).max)
    return (t / factor).to(dtype), factor


def quantize_inputs(inputs: Inputs) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return q, k and v in e4m3 and dout, where there is one, in e5m2, by name, and the factor of each by name.

    The copies have the layout of the inputs.
    """
    import torch

    pairs = {name: quantize(getattr(inputs, name)) for name in ("q", "k", "v")}
    operands = {name: t for name, (t, _) in pairs.items()}
    if find_packed(inputs) is not None:
        packed = lay_out("packed", inputs.with_values(operands))
        operands = {"q": packed.q, "k": packed.k, "v": packed.v}
    if inputs.dout is not None:
        pairs["dout"] = quantize(inputs.dout, torch.float8_e5m2)
        operands["dout"] = pairs["dout"][0]
    return operands, {name: factor for name, (_, factor) in pairs.items()}


def gradient_scale(*gradients: Tensor) -> float:
    """Return the factor for e5m2 that leaves GRADIENT_MARGIN above the largest |value|; 1 where all values are 0."""
    largest = max(float(t.float().abs().amax()) for t in gradients)
    return E5M2_MAX / (GRADIENT_MARGIN * largest) if largest else 1.0


def largest_score_gradient(dout: Tensor, v: Tensor) -> float:
    """Return a bound on the gradients of all scores, for dout and v of shape (batch, seqlen, nheads, headdim_v).

    A gradient is p (dout . v - dout . out), where p is at most 1 and out is a mean of rows of v.
    """
    longest = (float(t.float().norm(dim=-1).amax()) for t in (dout, v))
    return max(2 * math.prod(longest), 1e-12)


def round_to_e4m3(t: Tensor, factor: Tensor) -> Tensor:
    """Return t after rounding to e4m3 with this descale factor and back, in float32."""
    import torch

    return (t / factor).to(torch.float8_e4m3fn).float() * factor


def round_to_e5m2(t: Tensor) -> Tensor:
    """Return t after rounding to e5m2 with one scale and back, in float32."""
    import torch

    factor = descale(t, E5M2_MAX)
    return (t / factor).to(torch.float8_e5m2).float() * factor


def round_probabilities(p: Tensor) -> Tensor:
    """Return probabilities (..., keys) after a kernel's rounding to e4m3, in the dtype of p."""
    import torch

    top = p.amax(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)  # rows that see no key stay 0
    return (p / top * PROBABILITY_SCALE).to(torch.float8_e4m3fn).to(p.dtype) * (top / PROBABILITY_SCALE)
