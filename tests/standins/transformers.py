"""Stand-in for transformers 5.23: ALL_ATTENTION_FUNCTIONS, and the eager attention of Llama and gpt-oss.

Tensors are (batch, nheads, seqlen, headdim).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from standins import function, modules
from standins.attend import attend, attend_varlen, check_half

VERSIONS = {"transformers": "5.23.0", "flash-attn": "2.8.3.post1"}
GIVEN = "module, query, key, value, attention_mask"


def _on_heads(of: Any, seen: Tensor | None = None, **options: Any) -> tuple[Tensor, None]:
    if seen is not None:
        options["change"] = lambda scores: scores.masked_fill(~seen, -math.inf)
    q, k, v = (t.transpose(1, 2) for t in (of.query, of.key, of.value))
    return attend(q, k, v, scale=of.scaling, **options)[0], None


def _eager(of: Any) -> tuple[Tensor, None]:
    """Compute attention; gpt-oss reads the sinks of the layer, not those that a model passes on."""
    assert of.query.shape[1] == of.key.shape[1] * of.module.num_key_value_groups
    mask = of.attention_mask
    assert mask is None or mask.dtype == of.query.dtype
    change = None if mask is None else (lambda scores: scores + mask)
    dropout_p = of.dropout if of.module.training else 0.0
    return _on_heads(of, change=change, dropout_p=dropout_p, sink=getattr(of.module, "sinks", None))


def _sdpa(of: Any) -> tuple[Tensor, None]:
    """Compute SDPA; without a mask its causal form ignores keys beyond seqlen_q."""
    assert of.kwargs.get("softcap") is None, "`sdpa` attention does not support `softcap`."
    assert of.attention_mask is None or of.attention_mask.dtype == torch.bool
    if causal := of.query.shape[2] > 1 and of.attention_mask is None and of.is_causal:
        of.key, of.value = (t[:, :, : of.query.shape[2]] for t in (of.key, of.value))
    return _on_heads(of, of.attention_mask, right=0 if causal else None, dropout_p=of.dropout)


def _flash(of: Any) -> tuple[Tensor, None]:
    """Compute attention, of packed sequences if the four arguments of lengths are given."""
    assert of.attention_mask is None
    assert of.module.config._attn_implementation == "flash_attention_2"
    check_half(of.query, of.key, of.value)
    left = None if of.sliding_window is None or of.key.shape[2] <= of.sliding_window else of.sliding_window - 1
    options: dict[str, Any] = {"left": left, "right": 0 if of.is_causal else left, "softcap": of.softcap or 0.0}
    options["dropout_p"] = of.dropout
    if of.cu_seq_lens_q is None:
        return _on_heads(of, **options)
    packed = (t.transpose(1, 2).flatten(0, 1) for t in (of.query, of.key, of.value))
    lengths = (of.cu_seq_lens_q, of.cu_seq_lens_k, of.max_length_q, of.max_length_k)
    return attend_varlen(*packed, *lengths, scale=of.scaling, **options)[None], None


def _flex(of: Any) -> tuple[Tensor, None]:
    """Compute attention with the mask function of the block mask, for the blocks that it visits."""
    assert not of.kwargs.get("dropout")
    seen, mask = None, of.attention_mask
    if mask is not None:
        rows, keys = torch.arange(of.query.shape[2])[:, None], torch.arange(of.key.shape[2])
        (size_q, size_k), blocks = mask.BLOCK_SIZE, mask.to_dense()[0, 0].bool()
        visited = blocks.repeat_interleave(size_q, 0).repeat_interleave(size_k, 1)[: len(rows), : len(keys)]
        seen = mask.mask_mod(0, 0, rows, keys) & visited
    return _on_heads(of, seen, softcap=of.softcap or 0.0, sink=of.s_aux)


def version_5_23() -> dict[str, ModuleType]:
    functions = {
        "sdpa": function(
            f"{GIVEN}, dropout=0.0, scaling=None, is_causal=None, position_bias=None, cache=None, **kwargs", _sdpa
        ),
        "flash_attention_2": function(
            f"{GIVEN}, dropout=0.0, scaling=None, sliding_window=None, softcap=None, is_causal=None, s_aux=None, "
            "cache=None, cu_seq_lens_q=None, cu_seq_lens_k=None, max_length_q=None, max_length_k=None, **kwargs",
            _flash,
        ),
        "flex_attention": function(
            f"{GIVEN}, scaling=None, softcap=None, s_aux=None, position_bias=None, **kwargs", _flex
        ),
    }
    eager = {"eager_attention_forward": function(f"{GIVEN}, scaling, dropout=0.0, **kwargs", _eager)}
    models = {f"transformers.models.{name}.modeling_{name}": eager for name in ("llama", "gpt_oss")}
    return modules({"transformers.modeling_utils": {"ALL_ATTENTION_FUNCTIONS": functions}, **models})
