"""Stand-in for SageAttention 1.0.6 and 2.2.0: its Triton attention with q and k in int8."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from standins import function, modules
from standins.attend import attend, check_half


def _int8(t: Tensor, block: int) -> Tensor:
    """Round a tensor (batch, seqlen, nheads, headdim) in blocks of tokens of each head."""
    parts = []
    for part in t.float().split(block, dim=1):
        scale = part.abs().amax((1, 3), keepdim=True) / 127
        parts.append(torch.trunc(part / scale + 0.5 * part.sign()) * scale)
    return torch.cat(parts, dim=1)


def _attend(of: Any) -> Tensor:
    check_half(of.q, of.k, of.v)
    assert of.tensor_layout == "NHD"
    k = of.k - of.k.mean(dim=1, keepdim=True) if getattr(of, "smooth_k", True) else of.k
    right = 0 if of.is_causal else None
    out, _ = attend(_int8(of.q, 128), _int8(k, 64), of.v.to(torch.float16), scale=of.sm_scale, right=right)
    return out.to(of.q.dtype)


PARAMETERS = 'q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None'


def version_1() -> dict[str, ModuleType]:
    return modules({"sageattention": {"sageattn": function(f"{PARAMETERS}, smooth_k=True", _attend)}})


def version_2() -> dict[str, ModuleType]:
    return modules({"sageattention": {"sageattn_qk_int8_pv_fp16_triton": function(PARAMETERS, _attend)}})
