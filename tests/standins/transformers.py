"""Stand-in for transformers 5.23: ALL_ATTENTION_FUNCTIONS and Llama's eager attention.

Tensors are (batch, nheads, seqlen, headdim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from standins import module
from standins.attend import attend, attend_varlen, check_half

VERSIONS = {"transformers": "5.23.0", "flash-attn": "2.8.3.post1"}
Result = tuple[Tensor, Tensor | None]


def eager_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> Result:
    assert query.shape[1] == key.shape[1] * module.num_key_value_groups
    assert attention_mask is None or attention_mask.dtype == query.dtype
    dropout_p = dropout if module.training else 0.0
    return _on_heads(query, key, value, scale=scaling, bias=attention_mask, dropout_p=dropout_p), None


def eager_attention_forward_of_gpt_oss(module: torch.nn.Module, *given: Any, **options: Any) -> Result:
    """Compute attention with the sinks of the layer; the one that models pass on as `s_aux` is not read."""
    options.pop("s_aux", None)
    query, key, value = given
    scale, bias = options["scaling"], options["attention_mask"]
    return _on_heads(query, key, value, scale=scale, bias=bias, sink=module.sinks), None


def _sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> Result:
    """Compute SDPA; without a mask its causal form ignores keys beyond seqlen_q."""
    assert scaling is not None
    if kwargs.get("softcap") is not None:
        raise ValueError("`sdpa` attention does not support `softcap`.")
    is_causal = is_causal if is_causal is not None else module.is_causal
    is_causal = query.shape[2] > 1 and attention_mask is None and is_causal
    if is_causal:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    bias = None
    if attention_mask is not None:
        assert attention_mask.dtype == torch.bool
        bias = torch.zeros(attention_mask.shape).masked_fill(~attention_mask, float("-inf"))
    options: dict[str, Any] = {"right": 0 if is_causal else None, "dropout_p": dropout}
    return _on_heads(query, key, value, scale=scaling, bias=bias, **options), None


def _flash(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    cache: Any = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> Result:
    """Compute attention; with the four arguments of the lengths that of packed sequences, as it passes them on."""
    assert attention_mask is None
    assert scaling is not None
    assert module.config._attn_implementation == "flash_attention_2"
    check_half(query, key, value)
    is_causal = is_causal if is_causal is not None else module.is_causal
    left = None if sliding_window is None or key.shape[2] <= sliding_window else sliding_window - 1
    options: dict[str, Any] = {"left": left, "right": 0 if is_causal else left, "softcap": softcap or 0.0}
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        packed = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
        lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        return attend_varlen(*packed, *lengths, scale=scaling, dropout_p=dropout, **options)[None], None
    return _on_heads(query, key, value, scale=scaling, dropout_p=dropout, **options), None


def _flex(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Compute attention with the mask function of the block mask, for the blocks that it visits."""
    assert scaling is not None
    assert not kwargs.get("dropout")
    bias = None
    if attention_mask is not None:
        i, j = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])[None, :]
        seen = attention_mask.mask_mod(0, 0, i, j)
        blocks = attention_mask.to_dense()[0, 0].bool()
        size_q, size_k = attention_mask.BLOCK_SIZE
        seen = seen & blocks.repeat_interleave(size_q, 0).repeat_interleave(size_k, 1)[: len(i), : j.shape[1]]
        bias = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        blind = ~seen.any(-1)
        bias = bias.masked_fill(blind[:, None], 0.0)
        out = _on_heads(query, key, value, scale=scaling, bias=bias, softcap=softcap or 0.0, sink=s_aux)
        return out.masked_fill(blind[None, :, None, None], 0.0), None
    return _on_heads(query, key, value, scale=scaling, softcap=softcap or 0.0, sink=s_aux), None


def _on_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attend(*(t.transpose(1, 2) for t in (q, k, v)), **options)[0]


FUNCTIONS: dict[str, Callable[..., Result]] = {"sdpa": _sdpa, "flash_attention_2": _flash, "flex_attention": _flex}


def version_5_23() -> dict[str, Any]:
    llama = module("transformers.models.llama.modeling_llama", eager_attention_forward=eager_attention_forward)
    gpt_oss = module(
        "transformers.models.gpt_oss.modeling_gpt_oss", eager_attention_forward=eager_attention_forward_of_gpt_oss
    )
    packages = {"llama": {"modeling_llama": llama}, "gpt_oss": {"modeling_gpt_oss": gpt_oss}}
    return {
        "transformers": module("transformers"),
        "transformers.modeling_utils": module("transformers.modeling_utils", ALL_ATTENTION_FUNCTIONS=FUNCTIONS),
        "transformers.models": module("transformers.models"),
        **{f"transformers.models.{name}": module(f"transformers.models.{name}", **of) for name, of in packages.items()},
        llama.__name__: llama,
        gpt_oss.__name__: gpt_oss,
    }
