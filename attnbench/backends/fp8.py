"""fp8 (e4m3) inputs: quantised from the given ones with one scale per tensor, outside of what is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.types import Case

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0  # of e4m3


def is_fp8(case: Case) -> bool:
    return str(case.dtype) == "fp8"


def quantize(t: Tensor) -> tuple[Tensor, Tensor]:
    """(t / descale in float8_e4m3fn, descale), so that the largest value is e4m3's largest. descale: float32, (1,)."""
    import torch

    descale = (t.abs().amax().float() / LARGEST).clamp(min=1e-12).reshape(1)
    return (t.float() / descale).to(torch.float8_e4m3fn), descale
