"""Stand-in for xFormers 0.0.35: memory_efficient_attention, its attn_bias objects and its operators."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from standins import module
from standins.attend import attend, attend_paged, attend_varlen

VERSIONS = {"xformers": "0.0.35"}


class LowerTriangularFromBottomRightMask:
    band: tuple[int | None, int | None] = (None, 0)


class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    def __init__(self, _window_size: int) -> None:
        if _window_size <= 0:
            raise ValueError(f"Expected `window_size > 0`, but window_size={_window_size}")
        self.band = (_window_size - 1, 0)


class LocalAttentionFromBottomRightMask:
    def __init__(self, window_left: int, window_right: int) -> None:
        if window_left < 0 or window_right < 0:
            raise ValueError("Invalid window value")
        self.band = (window_left, window_right)


@dataclass(frozen=True)
class SeqLenInfo:
    seqlens: tuple[int, ...]

    @property
    def seqstart(self) -> Tensor:
        return torch.tensor([0, *itertools.accumulate(self.seqlens)], dtype=torch.int32)


@dataclass
class BlockDiagonalMask:
    q_seqinfo: SeqLenInfo
    k_seqinfo: SeqLenInfo
    band: tuple[int | None, int | None] = (None, None)

    @classmethod
    def from_seqlens(cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None) -> BlockDiagonalMask:
        """Return the mask, on the default device of masks, which is a GPU where there is one."""
        assert kv_seqlen is None or len(q_seqlen) == len(kv_seqlen)
        q_seqinfo = SeqLenInfo(tuple(q_seqlen))
        return cls(q_seqinfo, q_seqinfo if kv_seqlen is None else SeqLenInfo(tuple(kv_seqlen)))

    def to(self, device: torch.device) -> BlockDiagonalMask:
        assert type(self) is BlockDiagonalMask
        assert isinstance(device, torch.device)
        return self

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, (None, 0))

    def make_local_attention_from_bottomright(self, window_size: int) -> BlockDiagonalMask:
        band = (window_size - 1, 0)
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, band)


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    def __post_init__(self) -> None:
        for num_queries, num_keys in zip(self.q_seqinfo.seqlens, self.k_seqinfo.seqlens, strict=True):
            if num_keys < num_queries:
                raise ValueError("Expected `num_keys >= num_queries`")


class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    pass


@dataclass
class BlockDiagonalGappyKeysMask:
    q_seqinfo: SeqLenInfo
    k_seqinfo: SeqLenInfo
    band: tuple[int | None, int | None] = (None, None)

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqstarts: Sequence[int], kv_seqlen: Sequence[int]
    ) -> BlockDiagonalGappyKeysMask:
        """Return the mask; here keys must have no gaps, as in a packed batch."""
        assert len(kv_seqstarts) == len(kv_seqlen) + 1 == len(q_seqlen) + 1
        found = SeqLenInfo(tuple(kv_seqlen))
        assert found.seqstart.tolist() == list(kv_seqstarts)
        return cls(SeqLenInfo(tuple(q_seqlen)), found)

    def to(self, device: torch.device) -> BlockDiagonalGappyKeysMask:
        assert isinstance(device, torch.device)
        return self


@dataclass
class PagedBlockDiagonalPaddedKeysMask:
    q_seqinfo: SeqLenInfo
    k_seqinfo: SeqLenInfo
    block_tables: Tensor
    page_size: int
    band: ClassVar[tuple[int | None, int | None]] = (None, None)

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int],
        block_tables: Tensor,
        page_size: int,
        *,
        device: torch.device | None = None,
    ) -> PagedBlockDiagonalPaddedKeysMask:
        assert len(q_seqlen) == len(kv_seqlen)
        assert device == block_tables.device, "the default is a GPU where there is one"
        assert all(seqlen <= block_tables.shape[1] * page_size for seqlen in kv_seqlen)
        return cls(SeqLenInfo(tuple(q_seqlen)), SeqLenInfo(tuple(kv_seqlen)), block_tables, page_size)


class PagedBlockDiagonalCausalWithOffsetPaddedKeysMask(PagedBlockDiagonalPaddedKeysMask):
    band: ClassVar[tuple[int | None, int | None]] = (None, 0)


@dataclass
class Inputs:
    query: Tensor
    key: Tensor
    value: Tensor
    attn_bias: Any = None
    p: float = 0.0
    scale: float | None = None
    output_dtype: torch.dtype | None = None
    is_partial: bool = False


class Operator:
    NAME: ClassVar[str]
    DTYPES: ClassVar = {torch.float16, torch.bfloat16}
    MAX_K: ClassVar = 256
    BIASES: ClassVar[tuple[type, ...]] = (
        type(None),
        *LowerTriangularFromBottomRightLocalAttentionMask.__mro__[:2],
        *BlockDiagonalCausalLocalAttentionFromBottomRightMask.__mro__[:3],
    )
    HEADDIM_V: ClassVar = False
    DROPOUT: ClassVar = True
    BMGHK: ClassVar = True

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def not_supported_reasons(cls, d: Inputs) -> list[str]:
        k, kv = d.query.shape[-1], d.value.shape[-1]
        reasons = []
        if max(k, kv) > cls.MAX_K:
            reasons.append(f"max(query.shape[-1], value.shape[-1]) > {cls.MAX_K}")
        if k != kv and not cls.HEADDIM_V:
            reasons.append("query.shape[-1] != value.shape[-1]")
        if d.query.dtype not in cls.DTYPES:
            reasons.append(f"dtype={d.query.dtype} (supported: {cls.DTYPES})")
        if type(d.attn_bias) not in cls.BIASES:
            reasons.append(f"attn_bias type is {type(d.attn_bias)}")
        if d.p and not cls.DROPOUT:
            reasons.append("dropout > 0.0")
        if d.query.ndim == 5 and not cls.BMGHK:
            reasons.append("operator does not support BMGHK format")
        return reasons


class CutlassFwOp(Operator):
    NAME = "cutlassF-pt"
    DTYPES: ClassVar = {torch.float32, torch.float16, torch.bfloat16}
    MAX_K = 65536
    HEADDIM_V = True
    BIASES: ClassVar[tuple[type, ...]] = (*Operator.BIASES, Tensor)

    @classmethod
    def not_supported_reasons(cls, d: Inputs) -> list[str]:
        reasons = super().not_supported_reasons(d)
        if isinstance(d.attn_bias, Tensor):
            if any(stride % (16 // d.attn_bias.element_size()) for stride in d.attn_bias.stride()[:-1]):
                reasons.append(f"attn_bias.stride(-2) % 8 != 0 (attn_bias.stride() = {d.attn_bias.stride()})")
            assert d.attn_bias.dtype == d.query.dtype
            assert d.attn_bias.shape == (len(d.query), *d.query.shape[2:-1], d.query.shape[1], d.key.shape[1])
        return reasons


class CutlassBwOp(CutlassFwOp):
    NAME = "cutlassB-pt"
    BIASES: ClassVar = (
        type(None),
        Tensor,
        LowerTriangularFromBottomRightMask,
        BlockDiagonalMask,
        BlockDiagonalCausalFromBottomRightMask,
    )
    BMGHK = False


class FlashFwOp(Operator):
    NAME = "fa2F@2.5.7-pt"
    BIASES: ClassVar = (*Operator.BIASES, LocalAttentionFromBottomRightMask)


class FlashBwOp(FlashFwOp):
    NAME = "fa2B@2.5.7-pt"
    BMGHK = False


class Flash3FwOp(FlashFwOp):
    NAME = "fa3F@pip_pkg"
    DROPOUT = False
    HEADDIM_V = True


class Flash3BwOp(Flash3FwOp):
    NAME = "fa3B@pip_pkg"
    BMGHK = False


class SplitKFwOp(Operator):
    NAME = "triton_splitKF"
    DROPOUT = False
    BIASES: ClassVar = (
        type(None),
        BlockDiagonalGappyKeysMask,
        PagedBlockDiagonalPaddedKeysMask,
        PagedBlockDiagonalCausalWithOffsetPaddedKeysMask,
    )
    BLOCK_N = 64

    @classmethod
    def not_supported_reasons(cls, d: Inputs) -> list[str]:
        reasons = super().not_supported_reasons(d)
        if d.query.shape[-1] not in {16, 32, 64, 128, 256, 512}:
            reasons.append(f"Embed dim {d.query.shape[-1]} not supported")
        if isinstance(d.attn_bias, PagedBlockDiagonalPaddedKeysMask):
            queries = d.attn_bias.q_seqinfo.seqlens
            if d.query.shape[1] != sum(queries):
                reasons.append(f"Expected total {sum(queries)} queries not {d.query.shape[1]}")
            if d.attn_bias.page_size % cls.BLOCK_N or d.key.shape[1] % d.attn_bias.page_size:
                reasons.append("For paged attention, page size should be divisible by the block size")
            if isinstance(d.attn_bias, PagedBlockDiagonalCausalWithOffsetPaddedKeysMask):
                if max(queries) != min(queries):
                    reasons.append("Variable query len is not supported for causal masks")
                if max(queries) > 16:
                    reasons.append("Query length should not be larger than 16 for causal or local attention biases")
        return reasons


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: tuple[Any, Any] | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute attention; as in the library, a forced forward operator is checked, a forced backward one is not."""
    assert scale is not None
    given = Inputs(query, key, value, attn_bias, p, scale)
    needs_gradient = any(t.requires_grad for t in (query, key, value))
    if not query.ndim == key.ndim == value.ndim or query.shape[2:-1] != key.shape[2:-1]:
        raise ValueError("Incompatible shapes for attention inputs")
    if op is None:
        _dispatch("memory_efficient_attention_forward", [FlashFwOp, CutlassFwOp], given)
        if needs_gradient:
            _dispatch("memory_efficient_attention_backward", [FlashBwOp, CutlassBwOp], given)
    elif reasons := op[0].not_supported_reasons(given):
        raise ValueError(f"Operator `memory_efficient_attention` does not support inputs:\n{_why(op[0], reasons)}")
    heads = query.shape[2:-1]
    q, k, v = (t.flatten(2, -2) for t in (query, key, value))
    if isinstance(attn_bias, Tensor):
        bias = attn_bias.flatten(1, -3).float()
        return attend(q, k, v, scale=scale, bias=bias)[0].unflatten(2, heads)
    left, right = (None, None) if attn_bias is None else attn_bias.band
    if isinstance(attn_bias, PagedBlockDiagonalPaddedKeysMask):
        caches = (t[0].unflatten(0, (-1, attn_bias.page_size)) for t in (k, v))
        lengths_k = attn_bias.k_seqinfo.seqstart.diff()
        starts = attn_bias.q_seqinfo.seqstart
        paged = attend_paged(
            q[0], *caches, attn_bias.block_tables, lengths_k, starts_q=starts, scale=scale, left=left, right=right
        )
        return paged[None].unflatten(2, heads)
    if isinstance(attn_bias, BlockDiagonalMask | BlockDiagonalGappyKeysMask):
        assert len(q) == 1
        infos = (attn_bias.q_seqinfo, attn_bias.k_seqinfo)
        lengths = (*(info.seqstart for info in infos), *(max(info.seqlens) for info in infos))
        options: dict[str, Any] = {"scale": scale, "left": left, "right": right, "dropout_p": p}
        return attend_varlen(q[0], k[0], v[0], *lengths, **options)[None].unflatten(2, heads)
    return attend(q, k, v, scale=scale, left=left, right=right, dropout_p=p)[0].unflatten(2, heads)


def _dispatch(name: str, operators: list[Any], given: Inputs) -> None:
    refused = [(op, op.not_supported_reasons(given)) for op in operators]
    if all(reasons for _, reasons in refused):
        raise NotImplementedError(
            "\n".join([f"No operator found for `{name}` with inputs:", *(_why(*r) for r in refused)])
        )


def _why(op: Any, reasons: list[str]) -> str:
    return f"`{op.NAME}` is not supported because:\n    " + "\n    ".join(reasons)


def version_0_0_35() -> dict[str, Any]:
    operators = {
        "cutlass": module("xformers.ops.fmha.cutlass", FwOp=CutlassFwOp, BwOp=CutlassBwOp),
        "flash": module("xformers.ops.fmha.flash", FwOp=FlashFwOp, BwOp=FlashBwOp),
        "flash3": module("xformers.ops.fmha.flash3", FwOp=Flash3FwOp, BwOp=Flash3BwOp),
        "triton_splitk": module("xformers.ops.fmha.triton_splitk", FwOp=SplitKFwOp),
    }
    biases = (
        LowerTriangularFromBottomRightMask,
        LowerTriangularFromBottomRightLocalAttentionMask,
        LocalAttentionFromBottomRightMask,
        BlockDiagonalMask,
        BlockDiagonalGappyKeysMask,
        PagedBlockDiagonalPaddedKeysMask,
        PagedBlockDiagonalCausalWithOffsetPaddedKeysMask,
    )
    return {
        "xformers": module("xformers", __version__="0.0.35"),
        "xformers.ops": module("xformers.ops", memory_efficient_attention=memory_efficient_attention),
        "xformers.ops.fmha": module("xformers.ops.fmha", Inputs=Inputs),
        "xformers.ops.fmha.attn_bias": module("xformers.ops.fmha.attn_bias", **{b.__name__: b for b in biases}),
        **{m.__name__: m for m in operators.values()},
    }
