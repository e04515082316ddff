"""fp8: what a case of that dtype is, and how values are rounded to it.

An fp8 case is a forward whose q, k and v are e4m3 (4 bits of exponent, 3 of mantissa: steps of 1/8 within a factor of
two, up to 448). Its inputs are made in bf16. A backend rounds them in `prepare`, outside of what is timed, with one
scale per tensor, and says in `Prepared.reads` where its e4m3 copies are. The result is bf16; where a library can write
e4m3 only it goes with one float32 on the device, "descale_out", by which it is to be multiplied, beside "out" in what
`canonical` gives. Errors are against the exact attention of the inputs before they were rounded.

Kernels round their probabilities to e4m3 too, as the tensor cores multiply e4m3 by e4m3: divided by the row's largest,
so at most 1, and scaled to the format's range (FlashAttention-3, arXiv 2407.08608; its kernels scale by 2^8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

LARGEST = 448.0  # of e4m3
WEIGHTS = 2.0**8  # scale of probabilities


def descale(t: Tensor) -> Tensor:
    """float32, (1,): what to divide by so that the largest value becomes e4m3's largest."""
    return (t.abs().amax().float() / LARGEST).clamp(min=1e-12).reshape(1)


def quantize(t: Tensor) -> tuple[Tensor, Tensor]:
    """(t / descale in float8_e4m3fn, descale)."""
    import torch

    factor = descale(t)
    return (t / factor).to(torch.float8_e4m3fn), factor


def quantized(inputs: Inputs) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """q, k and v in e4m3, and the descale of each, by name."""
    pairs = {name: quantize(getattr(inputs, name)) for name in ("q", "k", "v")}
    return {name: t for name, (t, _) in pairs.items()}, {name: factor for name, (_, factor) in pairs.items()}


def rounded(t: Tensor, factor: Tensor) -> Tensor:
    """What `quantize` leaves of t, in float32."""
    import torch

    return (t / factor).to(torch.float8_e4m3fn).float() * factor


def rounded_weights(p: Tensor) -> Tensor:
    """What a kernel leaves of probabilities (..., keys) in float32."""
    import torch

    top = p.amax(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)  # rows that see no key stay 0
    return (p / top * WEIGHTS).to(torch.float8_e4m3fn).to(p.dtype) * (top / WEIGHTS)
