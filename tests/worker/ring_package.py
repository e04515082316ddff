"""`ring-flash-attn` with the real package, over two functions of flash-attn for a CPU: a backend of test_ranks.py.

The package imports one name of transformers, which this module provides.
"""

# ruff: noqa: ARG001 (the arguments are flash-attn's)
from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from attnbench.backends.several_devices.ring_flash_attn import RingFlashAttention
from attnbench.core.backend import Probe, Signature


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
) -> tuple[Any, ...]:
    scores = _scores(q, k, softmax_scale, causal)
    lse = scores.logsumexp(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", (scores - lse[..., None]).exp(), _for_queries(v, q))
    return out.to(q.dtype), lse.float(), None, None


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    rng_state: Tensor | None = None,
) -> None:
    p = (_scores(q, k, softmax_scale, causal) - softmax_lse.double()[..., None]).exp()
    row_sums = (dout.double() * out.double()).sum(-1).transpose(1, 2)[..., None]
    dp = torch.einsum("bqhd,bkhd->bhqk", dout.double(), _for_queries(v, q))
    ds = p * (dp - row_sums) * softmax_scale
    groups = (-1, q.shape[2] // k.shape[2])
    dq.copy_(torch.einsum("bhqk,bkhd->bqhd", ds, _for_queries(k, q)))
    dk.copy_(torch.einsum("bhqk,bqhd->bkhd", ds, q.double()).unflatten(2, groups).sum(3))
    dv.copy_(torch.einsum("bhqk,bqhd->bkhd", p, dout.double()).unflatten(2, groups).sum(3))


def _for_queries(keys: Tensor, q: Tensor) -> Tensor:
    return keys.double().repeat_interleave(q.shape[2] // keys.shape[2], 2)


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), _for_queries(k, q)) * scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
    return scores.masked_fill(later, -math.inf) if causal else scores


def _install(name: str, **contents: Any) -> ModuleType:
    """Let `import name` find a module with the given contents."""
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(contents)
    return module


_unused = {f"_flash_attn_varlen_{name}": None for name in ("forward", "backward")}
_interface = _install(
    "flash_attn.flash_attn_interface",
    _flash_attn_forward=_flash_attn_forward,
    _flash_attn_backward=_flash_attn_backward,
    **_unused,
)
_install("flash_attn", flash_attn_interface=_interface)
_utils = _install("transformers.modeling_flash_attention_utils", is_flash_attn_greater_or_equal_2_10=None)
_install("transformers", modeling_flash_attention_utils=_utils)


class OnACpu(RingFlashAttention):
    inner = "sdpa"

    def probe(self) -> Probe:
        return Probe(version="0")

    def unsupported(self, case: Any, device: Any) -> str | None:
        return self.cannot_split(case, device) if case.ranks > 1 else None

    def signature(self, case: Any, device: Any) -> Signature:
        return Signature()
