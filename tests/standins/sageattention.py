"""Stand-in for SageAttention 1.0.6 and 2.2.0: attention with q and k in int8, by Triton and by CUDA for Hopper."""

from __future__ import annotations

import math
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


def _int8_of_threads(t: Tensor, threads: list[list[int]]) -> Tensor:
    """Round (batch, seqlen, nheads, headdim); `threads` has the tokens with one scale, counted within a block."""
    block = sum(map(len, threads))
    out = torch.zeros_like(t, dtype=torch.float32)
    for start in range(0, t.shape[1], block):
        for tokens in threads:
            at = torch.tensor([start + token for token in tokens if start + token < t.shape[1]], dtype=torch.long)
            if len(at):
                out[:, at] = _int8(t[:, at], len(at))
    return out


OF_Q = [[thread, thread + 8] for thread in range(8)]
OF_K = [[8 * i + 2 * thread + j for i in range(16) for j in (0, 1)] for thread in range(4)]
OFFSET = 8.807  # log2 of the largest exponential


def e4m3(t: Tensor) -> Tensor:
    return t.to(torch.float8_e4m3fn).float()


def online(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, seen: Tensor | None = None) -> Tensor:
    """Return attention block by block of 128 keys, with float32 q and k, and probabilities in e4m3.

    `seen` (batch, nheads, seqlen_q, blocks) has the blocks of keys to compute, by default all.
    """
    group = q.shape[2] // k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, *(t.repeat_interleave(group, 2) for t in (k, v))))
    largest, total, out = torch.full_like(q[..., :1], -5e6), torch.ones_like(q[..., :1]), torch.zeros_like(q)
    for block, start in enumerate(range(0, k.shape[2], 128)):
        keys = torch.arange(start, min(start + 128, k.shape[2]))
        s = q @ k[:, :, keys].mT * (scale * math.log2(math.e))
        hidden = (keys > torch.arange(q.shape[2])[:, None]) & causal
        if seen is not None:
            hidden = hidden | ~seen[..., block, None]
        s = s.masked_fill(hidden, -math.inf)
        last, largest = largest, torch.maximum(largest, s.amax(-1, keepdim=True) - OFFSET)
        p, shrink = (s - largest).exp2(), (last - largest).exp2()
        total = total * shrink + p.sum(-1, keepdim=True)
        out = out * shrink + e4m3(p) @ v[:, :, keys]
    return (out / total).transpose(1, 2)


def columns(v: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Return v (batch, seqlen, nheads, headdim) in e4m3, and a scale for each of its columns."""
    scale = v.float().abs().amax(1, keepdim=True) / most
    return e4m3(v.float() / scale), scale


def _on_hopper(of: Any) -> Tensor:
    check_half(of.q, of.k, of.v)
    assert of.tensor_layout == "NHD"
    v, of_v = columns(of.v, 448.0)
    k = of.k - of.k.mean(dim=1, keepdim=True)
    out = online(_int8_of_threads(of.q, OF_Q), _int8_of_threads(k, OF_K), v, of.sm_scale, of.is_causal)
    return (out * of_v.repeat_interleave(out.shape[2] // v.shape[2], 2)).to(of.q.dtype)


PARAMETERS = 'q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None'


def version_1() -> dict[str, ModuleType]:
    return modules({"sageattention": {"sageattn": function(f"{PARAMETERS}, smooth_k=True", _attend)}})


def version_2(fixed: bool = True) -> dict[str, ModuleType]:
    """Return the modules of a commit after the tag 2.2.0, or of the tag, where the call for Hopper launches nothing."""
    op = "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf"
    names = {
        "sageattn": function(f"{PARAMETERS}, return_lse=False, **kwargs", _on_hopper),
        "sageattn_qk_int8_pv_fp16_triton": function(PARAMETERS, _attend),
    }
    ops = {op: None, f"{op}_fake_impl": None} if fixed else {op: None}
    return modules({"sageattention": names, "sageattention.sm90_compile": ops})
