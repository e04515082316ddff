"""Stand-in for SageAttention 1.0.6 and 2.2.0: its Triton attention with q and k in int8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from standins import module
from standins.attend import attend

VERSIONS = {"sageattention": "1.0.6"}


def _int8(t: Tensor, block: int) -> Tensor:
    """Round a tensor (batch, seqlen, nheads, headdim) in blocks of tokens of each head."""
    parts = []
    for part in t.float().split(block, dim=1):
        scale = part.abs().amax((1, 3), keepdim=True) / 127
        parts.append(torch.trunc(part / scale + 0.5 * part.sign()) * scale)
    return torch.cat(parts, dim=1)


def _attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, sm_scale: float) -> Tensor:
    assert not is_causal or q.shape[1] == k.shape[1], "qo_len and kv_len must be equal for causal attention"
    right = 0 if is_causal else None
    if not is_causal and k.shape[1] % 64:  # keys beyond the last count as zeros
        raise AssertionError("1.0.6 is wrong here")
    out, _ = attend(_int8(q, 128), _int8(k, 64), v.to(torch.float16), scale=sm_scale, right=right)
    return out.to(q.dtype)


def sageattn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    smooth_k: bool = True,
    **kwargs: Any,
) -> Tensor:
    assert not kwargs, "they would be ignored"
    assert q.size(-1) in (64, 96, 128), "headdim should be in [64, 96, 128]."
    assert (tensor_layout, q.dtype == k.dtype == v.dtype) == ("NHD", True)
    assert q.dtype in (torch.float16, torch.bfloat16)
    if smooth_k:
        k -= k.mean(dim=1, keepdim=True)
    return _attend(q, k, v, is_causal, sm_scale or q.size(-1) ** -0.5)


def sageattn_qk_int8_pv_fp16_triton(
    q: Tensor, k: Tensor, v: Tensor, tensor_layout: str = "HND", is_causal: bool = False, sm_scale: float | None = None
) -> Tensor:
    assert tensor_layout == "NHD"
    return _attend(q, k - k.mean(dim=1, keepdim=True), v, is_causal, sm_scale or q.size(-1) ** -0.5)


def version_1() -> dict[str, Any]:
    return {"sageattention": module("sageattention", sageattn=sageattn)}


def version_2() -> dict[str, Any]:
    return {"sageattention": module("sageattention", sageattn_qk_int8_pv_fp16_triton=sageattn_qk_int8_pv_fp16_triton)}
