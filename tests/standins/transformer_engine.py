"""Stand-in for Transformer Engine 2.20: DotProductAttention, whose output is (batch, seqlen, nheads * headdim_v).

With the format "thd" tensors are (total, nheads, headdim), the mask is a padding one, and the output is
(total, nheads * headdim_v).

In fp8 the scales of the output and of the gradients are their quantizers', and larger values are clipped. Scales are
not updated after a call, unlike in the library with gradients on.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from standins import function, modules
from standins.attend import alibi_slopes, attend, attend_varlen, check_half, opened

VERSIONS = {"transformer-engine": "2.20.0"}
E4M3, E5M2 = "DType.kFloat8E4M3", "DType.kFloat8E5M2"
FORMATS = {E4M3: (torch.float8_e4m3fn, 448), E5M2: (torch.float8_e5m2, 57344)}
META = {"META_O": 3, "META_S": 6, "META_DQKV": 0, "META_DP": 5}


class Float8Quantizer:
    def __init__(self, scale: Tensor, amax: Tensor, fp8_dtype: object, *, columnwise: bool = True) -> None:
        assert scale.shape == amax.shape == (1,)
        assert not columnwise
        self.scale, self.amax, self.dtype = scale, amax, str(fp8_dtype)

    def __call__(self, t: Tensor) -> Float8Tensor:
        assert t.is_contiguous()
        dtype, largest = FORMATS[self.dtype]
        small = (t.float() * self.scale).clamp(-largest, largest).to(dtype)
        return Float8Tensor.of(small.view(torch.uint8), 1 / self.scale, self.dtype)


class Float8Tensor(torch.Tensor):
    """A tensor of dtype bf16 whose values are in `_data`."""

    _data: Tensor
    _scale_inv: Tensor
    _format: str
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, data: Tensor, scale_inv: Tensor, name: str) -> Float8Tensor:
        made: Float8Tensor = torch.empty(data.shape, dtype=torch.bfloat16).as_subclass(cls)
        made._data, made._scale_inv, made._format = data, scale_inv, name
        return made

    def view(self, *shape: Any) -> Float8Tensor:
        found: Float8Tensor = _View.apply(self, shape)
        return found

    def dequantize(self) -> Tensor:
        return self._data.view(FORMATS[self._format][0]).float() * self._scale_inv


class _View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Float8Tensor, shape: Any) -> Float8Tensor:
        ctx.shape = t.shape
        return Float8Tensor.of(t._data.view(*shape), t._scale_inv, t._format)

    @staticmethod
    def backward(ctx: Any, *dout: Any) -> Any:
        (t,) = dout
        return Float8Tensor.of(t._data.view(ctx.shape), t._scale_inv, t._format), None


class _Fp8Attention(torch.autograd.Function):
    """Attention of Float8Tensors with e5m2 gradients. After a backward it drops the objects that a backward needs."""

    @staticmethod
    def forward(ctx: Any, q: Float8Tensor, k: Float8Tensor, v: Float8Tensor, module: Any) -> Float8Tensor:
        with torch.enable_grad():
            given = [t.dequantize().requires_grad_() for t in (q, k, v)]
            out = module._attend(*given)
        ctx.backward_objects, ctx.tensor_objects, ctx.module = (out, given), [], module
        found: Float8Tensor = module.quantizers["scaling_fwd"][META["META_O"]](out.detach())
        return found

    @staticmethod
    def backward(ctx: Any, *dout: Any) -> Any:
        (out, given), scaling = ctx.backward_objects, ctx.module.quantizers["scaling_bwd"]
        assert dout[0]._format == E5M2
        values = dout[0].dequantize()
        v = given[2].repeat_interleave(given[0].shape[2] // given[2].shape[2], dim=2)
        products = values.view(*out.shape[:2], -1, v.shape[-1]).transpose(1, 2) @ v.permute(0, 2, 3, 1)
        assert float(products.abs().max() * scaling[META["META_DP"]].scale) <= FORMATS[E5M2][1]
        found = torch.autograd.grad(out, given, values, retain_graph=True)
        ctx.backward_objects = ctx.tensor_objects = None
        return (*(scaling[META["META_DQKV"]](t.contiguous()) for t in found), None)


class autocast:  # noqa: N801  its name there
    inside = False

    def __init__(self, *, enabled: bool, recipe: object) -> None:
        assert enabled

    def __enter__(self) -> None:
        autocast.inside = True

    def __exit__(self, *_: object) -> None:
        autocast.inside = False
        assert not torch.is_grad_enabled(), "the scales would be updated"


def _make(of: Any) -> None:
    """Make a module. Without a causal mask a window has two sides or none (check_set_window_size)."""
    torch.nn.Module.__init__(of.self)
    window = (of.window_size[0], 0) if "causal" in of.attn_mask_type else of.window_size
    assert window == (-1, -1) or min(window) >= 0 or "causal" in of.attn_mask_type
    assert ("padding" in of.attn_mask_type) == (of.qkv_format == "thd")
    left, right = opened(window)
    # A causal mask without the suffix, and its window, are aligned top-left.
    bottom_right = of.attn_mask_type not in ("causal", "padding_causal")
    of.self.options = {"scale": of.softmax_scale, "left": left, "right": right, "bottom_right": bottom_right}
    of.self.made, of.self.alibi = of, False
    learnable = of.softmax_type == "learnable"
    of.self.softmax_offset = torch.nn.Parameter(torch.zeros(of.num_attention_heads)) if learnable else None

    def quantizers(name: str, *indices: str) -> dict[int, Float8Quantizer]:
        return {META[of]: Float8Quantizer(torch.ones(1), torch.zeros(1), name, columnwise=False) for of in indices}

    forward, backward = quantizers(E4M3, "META_O", "META_S"), quantizers(E5M2, "META_DQKV", "META_DP")
    of.self.quantizers = {"scaling_fwd": forward, "scaling_bwd": backward}


def _forward(of: Any) -> Any:
    self, given = of.self, (of.query_layer, of.key_layer, of.value_layer)
    assert autocast.inside == isinstance(given[0], Float8Tensor) == of.fp8_output
    assert (given[0].shape[-2], given[1].shape[-2]) == (self.made.num_attention_heads, self.made.num_gqa_groups)
    assert (given[0].shape[-1], given[2].shape[-1]) == self.made.kv_channels
    if isinstance(given[0], Float8Tensor):
        return _Fp8Attention.apply(*given, self)
    check_half(*given)
    assert self.training == (given[0].requires_grad or self.made.attention_dropout > 0)
    self.alibi = of.core_attention_bias_type == "alibi"
    if self.made.qkv_format == "bshd":
        return _fused(self._attend(*given))
    lengths = (of.cu_seqlens_q, of.cu_seqlens_kv, of.max_seqlen_q, of.max_seqlen_kv)
    return _fused(attend_varlen(*given, *lengths, **self._options()).flatten(1))


class DotProductAttention(torch.nn.Module):
    __init__ = function(
        'self, num_attention_heads, kv_channels, num_gqa_groups=None, attention_dropout=0.0, qkv_format="sbhd", '
        'attn_mask_type="causal", window_size=(-1, -1), bottom_right_diagonal=None, sequence_parallel=False, '
        "tp_size=1, get_rng_state_tracker=None, tp_group=None, layer_number=None, attention_type='self', "
        "cp_group=None, cp_global_ranks=None, cp_stream=None, cp_comm_type='p2p', softmax_scale=None, "
        "softmax_type='vanilla', return_max_logit=False, name=None",
        _make,
    )
    forward = function(
        "self, query_layer, key_layer, value_layer, attention_mask=None, qkv_format=None, cu_seqlens_q=None, "
        "cu_seqlens_kv=None, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None, max_seqlen_q=None, "
        "max_seqlen_kv=None, core_attention_bias_type='no_bias', fp8_output=False",
        _forward,
    )

    def _options(self) -> dict[str, Any]:
        options = self.options | {"dropout_p": self.made.attention_dropout if self.training else 0.0}
        if self.softmax_offset is not None:
            options["sink"] = self.softmax_offset.float()
        if self.alibi:
            options["slopes"] = alibi_slopes(self.made.num_attention_heads)
            # cuDNN's ALiBi is causal and aligned top-left (get_alibi: bottom-right for flash-attn 2 only)
            assert os.environ["NVTE_FUSED_ATTN"] != "1" or self.options["right"] == 0
        return options

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, **self._options())[0].flatten(2)


def _fused(out: Tensor) -> Tensor:
    found: Tensor = FusedAttnFunc.apply(out) if os.environ.get("NVTE_FUSED_ATTN", "1") == "1" else out
    return found


class FusedAttnFunc(torch.autograd.Function):
    """A function that drops the objects of its backward after it has run, like the library's of this name."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        ctx.backward_objects, ctx.tensor_objects = SimpleNamespace(grad_output=None), []
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *dout: Tensor) -> Tensor:
        (ctx.backward_objects.grad_output,) = dout
        assert ctx.tensor_objects is not None
        found: Tensor = ctx.backward_objects.grad_output
        ctx.backward_objects = ctx.tensor_objects = None
        return found


def version_2_20(*, flash_attn: str | None = "2.8.3") -> dict[str, ModuleType]:
    """Return the library's modules; `flash_attn` is the version of flash-attn 2 that it finds, or None."""
    package = "transformer_engine.pytorch.attention.dot_product_attention"
    flash = SimpleNamespace(is_installed=bool(flash_attn), version=flash_attn, v3_is_installed=False, fa3_version="0")
    log = SimpleNamespace(_log_level=logging.WARNING)
    top = {
        "DotProductAttention": DotProductAttention,
        "DType": SimpleNamespace(kFloat8E4M3=E4M3, kFloat8E5M2=E5M2),
        "Float8Quantizer": Float8Quantizer,
        "autocast": autocast,
    }
    recipe = function("*, fp8_dpa=False, fp8_mha=False, reduce_amax=True", lambda of: of)
    return modules(
        {
            "transformer_engine.pytorch": top,
            "transformer_engine.pytorch.cpp_extensions.fused_attn": META,
            "transformer_engine.common.recipe": {"DelayedScaling": recipe},
            f"{package}.utils": {"FlashAttentionUtils": flash, "AttentionLogging": log},
            f"{package}.dot_product_attention": {"_attention_backends": {}},
        }
    )
