"""Stand-in for Transformer Engine 2.20: DotProductAttention, whose output is (batch, seqlen, nheads * headdim_v).

With the format "thd" tensors are (total, nheads, headdim), the mask is a padding one, and the output is
(total, nheads * headdim_v).

In fp8 the scales of the output and of the gradients are those of their quantizers, and what is larger is clipped. The
update of scales after a call, which is made where gradients are on, is not here.
"""

from __future__ import annotations

import logging
import math
import os
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from standins import module
from standins.attend import attend, check_half, opened

VERSIONS = {"transformer-engine": "2.20.0"}
E4M3, E5M2 = "DType.kFloat8E4M3", "DType.kFloat8E5M2"
FORMATS = {E4M3: (torch.float8_e4m3fn, 448), E5M2: (torch.float8_e5m2, 57344)}
META_O, META_S = 3, 6
META_DQKV, META_DO, META_DP = 0, 3, 5


class DelayedScaling:
    def __init__(self, *, fp8_dpa: bool = False, fp8_mha: bool = False, reduce_amax: bool = True) -> None:
        assert fp8_dpa
        assert fp8_mha, "else it takes and returns 16 bits"
        assert not reduce_amax


class Float8Quantizer:
    def __init__(
        self, scale: Tensor, amax: Tensor, fp8_dtype: object, *, rowwise: bool = True, columnwise: bool = True
    ) -> None:
        assert scale.shape == amax.shape == (1,)
        assert rowwise
        assert not columnwise
        self.scale, self.amax, self.dtype = scale, amax, str(fp8_dtype)

    def __call__(self, t: Tensor) -> Float8Tensor:
        assert t.is_contiguous()
        self.amax.copy_(t.abs().max())
        dtype, largest = FORMATS[self.dtype]
        small = (t.float() * self.scale).clamp(-largest, largest).to(dtype)
        return Float8Tensor.of(small.view(torch.uint8), 1 / self.scale, self.dtype)


class Float8Tensor(torch.Tensor):
    """A bf16 tensor by its dtype; its values are those of `_data`."""

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
    """Attention of Float8Tensors, whose gradients are e5m2. Drops what its backward needs when that has run."""

    @staticmethod
    def forward(ctx: Any, q: Float8Tensor, k: Float8Tensor, v: Float8Tensor, module: Any) -> Float8Tensor:
        with torch.enable_grad():
            given = [t.dequantize().requires_grad_() for t in (q, k, v)]
            out = module._attend(*given)
        ctx.backward_objects, ctx.tensor_objects, ctx.module = (out, given), [], module
        found: Float8Tensor = module.of_output(out.detach())
        return found

    @staticmethod
    def backward(ctx: Any, *dout: Any) -> Any:
        assert ctx.tensor_objects is not None
        (out, given), scaling = ctx.backward_objects, ctx.module.quantizers["scaling_bwd"]
        assert dout[0]._format == E5M2
        values = dout[0].dequantize()
        v = given[2].repeat_interleave(ctx.module.heads // ctx.module.groups, dim=2)
        products = values.view(*out.shape[:2], -1, v.shape[-1]).transpose(1, 2) @ v.permute(0, 2, 3, 1)
        assert float(products.abs().max() * scaling[META_DP].scale) <= 57344
        found = torch.autograd.grad(out, given, values, retain_graph=True)
        ctx.backward_objects = ctx.tensor_objects = None
        return (*(scaling[META_DQKV](t.contiguous()) for t in found), None)


class autocast:  # noqa: N801  its name there
    inside = False

    def __init__(self, *, enabled: bool, recipe: DelayedScaling) -> None:
        assert enabled
        assert isinstance(recipe, DelayedScaling)

    def __enter__(self) -> None:
        autocast.inside = True

    def __exit__(self, *_: object) -> None:
        autocast.inside = False
        assert not torch.is_grad_enabled(), "the scales would be updated"


class DotProductAttention(torch.nn.Module):
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool | None = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        assert qkv_format in ("bshd", "thd")
        masks = ("no_mask", "causal", "causal_bottom_right")
        assert attn_mask_type in (masks if qkv_format == "bshd" else ("padding", *(f"padding_{m}" for m in masks[1:])))
        assert softmax_scale is not None
        assert window_size is not None
        if "causal" in attn_mask_type:
            assert window_size[1] in (-1, 0)
            window_size = (window_size[0], 0)
        else:  # check_set_window_size
            assert window_size == (-1, -1) or min(window_size) >= 0, "window_size should be (-1, -1) or (>=0, >=0)"
        self.left, self.right = opened(window_size)
        # A causal mask without the suffix, and its window, are aligned top-left.
        self.bottom_right = attn_mask_type not in ("causal", "padding_causal")
        self.scale, self.heads, self.groups = softmax_scale, num_attention_heads, num_gqa_groups
        assert softmax_type in ("vanilla", "learnable")
        self.softmax_offset = (
            torch.nn.Parameter(torch.zeros(num_attention_heads)) if softmax_type == "learnable" else None
        )
        self.channels, self.dropout, self.format = kv_channels, attention_dropout, qkv_format
        self.of_output = Float8Quantizer(torch.ones(1), torch.zeros(1), E4M3, columnwise=False)
        self.of_scores = Float8Quantizer(torch.ones(1), torch.zeros(1), E4M3, columnwise=False)
        backward = (META_DQKV, META_DO, META_DP)
        self.quantizers = {
            "scaling_fwd": {META_O: self.of_output, META_S: self.of_scores},
            "scaling_bwd": {
                n: Float8Quantizer(torch.ones(1), torch.zeros(1), E5M2, columnwise=False) for n in backward
            },
        }

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        core_attention_bias_type: str = "no_bias",
        fp8_output: bool = False,
    ) -> Any:
        given = (query_layer, key_layer, value_layer)
        assert autocast.inside == isinstance(query_layer, Float8Tensor) == fp8_output
        if isinstance(query_layer, Float8Tensor):
            self.alibi = False
            assert self.of_scores.scale in (1, 448), "of the first call, or of the largest probability"
            assert self.channels == (128, 128) or not self.training, "cuDNN's backward on Hopper"
            return _Fp8Attention.apply(*given, self)
        check_half(*given)
        assert (query_layer.shape[-2], key_layer.shape[-2]) == (self.heads, self.groups)
        assert (query_layer.shape[-1], value_layer.shape[-1]) == self.channels
        assert core_attention_bias_type in ("no_bias", "alibi")
        self.alibi = core_attention_bias_type == "alibi"
        assert self.training == (query_layer.requires_grad or self.dropout > 0)
        if self.format == "bshd":
            return _fused(self._attend(*given))
        assert {t.ndim for t in given} == {3}, "Queries, keys and values must be 3D tensors when qkv_format = thd!"
        assert cu_seqlens_q is not None
        assert cu_seqlens_kv is not None
        assert cu_seqlens_q.dtype == cu_seqlens_kv.dtype == torch.int32
        assert isinstance(max_seqlen_q, int), "without it the lengths are read, which waits for the device"
        assert isinstance(max_seqlen_kv, int)
        assert (cu_seqlens_q[-1], cu_seqlens_kv[-1]) == (len(query_layer), len(key_layer))
        lengths = [t.diff().tolist() for t in (cu_seqlens_q, cu_seqlens_kv, cu_seqlens_kv)]
        assert (max(lengths[0]), max(lengths[1])) == (max_seqlen_q, max_seqlen_kv)
        parts = zip(*(t.split(of) for t, of in zip(given, lengths, strict=True)), strict=True)
        return _fused(torch.cat([self._attend(*(t.unsqueeze(0) for t in part)).squeeze(0) for part in parts]))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        band: dict[str, Any] = {"left": self.left, "right": self.right, "bottom_right": self.bottom_right}
        band["sink"] = None if self.softmax_offset is None else self.softmax_offset.float()
        if self.alibi:  # get_alibi: bottom-right for flash-attn 2 alone
            band["slopes"] = torch.tensor(_slopes(self.heads))
            if os.environ["NVTE_FUSED_ATTN"] == "1":
                assert self.format == "bshd", "no ALiBi with padding masks"
                assert self.right == 0, "no ALiBi without a causal mask"
                assert q.shape[1] == k.shape[1], "ALiBi is aligned top-left"
        out, _ = attend(q, k, v, scale=self.scale, dropout_p=self.dropout if self.training else 0.0, **band)
        return out.flatten(2)


def _fused(out: Tensor) -> Tensor:
    found: Tensor = FusedAttnFunc.apply(out) if os.environ.get("NVTE_FUSED_ATTN", "1") == "1" else out
    return found


class FusedAttnFunc(torch.autograd.Function):
    """Drops what its backward needs when that has run, as the function of this name does."""

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


def _slopes(heads: int) -> list[float]:
    """Return Transformer Engine's slopes of ALiBi (get_alibi in dot_product_attention/utils.py)."""
    n = 2 ** math.floor(math.log2(heads))
    first, more = 2.0 ** (-8.0 / n), 2.0 ** (-4.0 / n)
    return [*(first**i for i in range(1, 1 + n)), *(more**i for i in range(1, 1 + 2 * (heads - n), 2))]


def version_2_20(*, flash_attn: str | None = "2.8.3") -> dict[str, Any]:
    """Return its modules; `flash_attn` is the version of flash-attn 2 that it finds, None for none."""
    package = "transformer_engine.pytorch.attention.dot_product_attention"
    flash = SimpleNamespace(is_installed=bool(flash_attn), version=flash_attn, v3_is_installed=False, fa3_version="0")
    utils = module(
        f"{package}.utils", FlashAttentionUtils=flash, AttentionLogging=SimpleNamespace(_log_level=logging.WARNING)
    )
    choice = module(f"{package}.dot_product_attention", _attention_backends={})
    return {
        "transformer_engine": module("transformer_engine"),
        "transformer_engine.pytorch": module(
            "transformer_engine.pytorch",
            DotProductAttention=DotProductAttention,
            DType=SimpleNamespace(kFloat8E4M3=E4M3, kFloat8E5M2=E5M2),
            Float8Quantizer=Float8Quantizer,
            autocast=autocast,
        ),
        "transformer_engine.pytorch.cpp_extensions": module("transformer_engine.pytorch.cpp_extensions"),
        "transformer_engine.pytorch.cpp_extensions.fused_attn": module(
            "transformer_engine.pytorch.cpp_extensions.fused_attn",
            META_O=META_O,
            META_S=META_S,
            META_DP=META_DP,
            META_DQKV=META_DQKV,
        ),
        "transformer_engine.common": module("transformer_engine.common"),
        "transformer_engine.common.recipe": module("transformer_engine.common.recipe", DelayedScaling=DelayedScaling),
        "transformer_engine.pytorch.attention": module("transformer_engine.pytorch.attention"),
        package: module(package),
        utils.__name__: utils,
        choice.__name__: choice,
    }
