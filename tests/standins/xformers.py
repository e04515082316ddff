"""Stand-in for xFormers 0.0.35: memory_efficient_attention, its attn_bias objects and its operators."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from standins import function, modules
from standins.attend import attend, attend_paged, attend_varlen

VERSIONS = {"xformers": "0.0.35"}
Band = tuple[int | None, int | None]


class LowerTriangularFromBottomRightMask:
    band: Band = (None, 0)


class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    def __init__(self, _window_size: int) -> None:
        self.band = (_window_size - 1, 0)


class LocalAttentionFromBottomRightMask:
    def __init__(self, window_left: int, window_right: int) -> None:
        assert min(window_left, window_right) >= 0, "Invalid window value"
        self.band = (window_left, window_right)


@dataclass
class _Sequences:
    """Base of masks of several sequences: their lengths and, for a cache of pages, the page table."""

    queries: list[int]
    keys: list[int]
    band: Band = (None, None)
    block_tables: Tensor | None = None
    page_size: int = 0

    def to(self, device: torch.device) -> _Sequences:
        assert isinstance(device, torch.device)
        return self

    def starts(self) -> tuple[Tensor, Tensor]:
        of_both = ([0, *itertools.accumulate(lengths)] for lengths in (self.queries, self.keys))
        starts_q, starts_k = (torch.tensor(starts, dtype=torch.int32) for starts in of_both)
        return starts_q, starts_k


class BlockDiagonalMask(_Sequences):
    @classmethod
    def from_seqlens(cls, q_seqlen: list[int], kv_seqlen: list[int]) -> BlockDiagonalMask:
        return cls(q_seqlen, kv_seqlen)

    def make_causal_from_bottomright(self) -> _Sequences:
        assert all(keys >= queries for queries, keys in zip(self.queries, self.keys, strict=True))
        return BlockDiagonalCausalFromBottomRightMask(self.queries, self.keys, (None, 0))

    def make_local_attention_from_bottomright(self, window_size: int) -> _Sequences:
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(self.queries, self.keys, (window_size - 1, 0))


class BlockDiagonalCausalFromBottomRightMask(_Sequences):
    pass


class BlockDiagonalCausalLocalAttentionFromBottomRightMask(_Sequences):
    pass


class BlockDiagonalGappyKeysMask(_Sequences):
    @classmethod
    def from_seqlens(cls, q_seqlen: list[int], kv_seqstarts: list[int], kv_seqlen: list[int]) -> _Sequences:
        """Return the mask; keys must have no gaps, as in a packed batch."""
        assert kv_seqstarts == [0, *itertools.accumulate(kv_seqlen)]
        return cls(q_seqlen, kv_seqlen)


class PagedBlockDiagonalPaddedKeysMask(_Sequences):
    BAND: ClassVar[Band] = (None, None)

    @classmethod
    def from_seqlens(
        cls, q_seqlen: list[int], kv_seqlen: list[int], block_tables: Tensor, page_size: int, *, device: torch.device
    ) -> _Sequences:
        assert device == block_tables.device, "the default is a GPU where there is one"
        return cls(q_seqlen, kv_seqlen, cls.BAND, block_tables, page_size)


class PagedBlockDiagonalCausalWithOffsetPaddedKeysMask(PagedBlockDiagonalPaddedKeysMask):
    BAND = (None, 0)


class Operator:
    """An operator with its limits; other cases are refused with xFormers' reasons."""

    NAME: ClassVar[str]
    DTYPES: ClassVar = {torch.float16, torch.bfloat16}
    BIASES: ClassVar[tuple[type, ...]] = (
        type(None),
        LowerTriangularFromBottomRightMask,
        LowerTriangularFromBottomRightLocalAttentionMask,
        BlockDiagonalMask,
        BlockDiagonalCausalFromBottomRightMask,
        BlockDiagonalCausalLocalAttentionFromBottomRightMask,
    )
    DROPOUT: ClassVar = True
    BMGHK: ClassVar = True

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def not_supported_reasons(cls, d: Any) -> list[str]:
        bias = d.attn_bias
        refused = {
            f"dtype={d.query.dtype} (supported: {cls.DTYPES})": d.query.dtype not in cls.DTYPES,
            f"attn_bias type is {type(bias)}": type(bias) not in cls.BIASES,
            "dropout > 0.0": d.p and not cls.DROPOUT,
            "operator does not support BMGHK format": d.query.ndim == 5 and not cls.BMGHK,
            "attn_bias.stride(-2) % 8 != 0": isinstance(bias, Tensor)
            and any(stride % (16 // bias.element_size()) for stride in bias.stride()[:-1]),
        }
        return [reason for reason, holds in refused.items() if holds]


class CutlassFwOp(Operator):
    NAME = "cutlassF-pt"
    DTYPES: ClassVar = {torch.float32, torch.float16, torch.bfloat16}
    BIASES: ClassVar = (*Operator.BIASES, Tensor)


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


def _attention(of: Any) -> Tensor:
    """Compute attention. As in the library, a forced forward operator is checked, a forced backward one is not."""
    query, key, bias = of.query, of.key, of.attn_bias
    if query.shape[2:-1] != key.shape[2:-1]:
        raise ValueError("Incompatible shapes for attention inputs")
    if of.op is None:
        _dispatch("memory_efficient_attention_forward", (FlashFwOp, CutlassFwOp), of)
        if query.requires_grad:
            _dispatch("memory_efficient_attention_backward", (FlashBwOp, CutlassBwOp), of)
    elif reasons := of.op[0].not_supported_reasons(of):
        raise ValueError(f"Operator `memory_efficient_attention` does not support inputs:\n{_why(of.op[0], reasons)}")
    q, k, v = (t.flatten(2, -2) for t in (query, key, of.value))
    options: dict[str, Any] = {"scale": of.scale}
    if isinstance(bias, Tensor):
        of_heads = bias.flatten(1, -3).float()
        out = attend(q, k, v, change=lambda scores: scores + of_heads, **options)[0]
        return out.unflatten(2, query.shape[2:-1])
    options |= dict(zip(("left", "right"), (None, None) if bias is None else bias.band, strict=True))
    if not isinstance(bias, _Sequences):
        return attend(q, k, v, dropout_p=of.p, **options)[0].unflatten(2, query.shape[2:-1])
    starts = bias.starts()
    if bias.block_tables is None:
        longest = (max(bias.queries), max(bias.keys))
        out = attend_varlen(q[0], k[0], v[0], *starts, *longest, dropout_p=of.p, **options)
    else:
        caches = (t[0].unflatten(0, (-1, bias.page_size)) for t in (k, v))
        out = attend_paged(q[0], *caches, bias.block_tables, starts[1].diff(), starts_q=starts[0], **options)
    return out[None].unflatten(2, query.shape[2:-1])


def _dispatch(name: str, operators: tuple[Any, ...], of: Any) -> None:
    refused = [(op, op.not_supported_reasons(of)) for op in operators]
    if all(reasons for _, reasons in refused):
        why = "\n".join(_why(*one) for one in refused)
        raise NotImplementedError(f"No operator found for `{name}` with inputs:\n{why}")


def _why(op: Any, reasons: list[str]) -> str:
    return f"`{op.NAME}` is not supported because:\n    " + "\n    ".join(reasons)


BIASES = (*FlashFwOp.BIASES, *SplitKFwOp.BIASES)
ARGUMENTS = "query, key, value, attn_bias=None, p=0.0, scale=None, *, {}output_dtype=None"


def version_0_0_35() -> dict[str, ModuleType]:
    attention = function(ARGUMENTS.format("op=None, "), _attention)
    operators = {
        "cutlass": {"FwOp": CutlassFwOp, "BwOp": CutlassBwOp},
        "flash": {"FwOp": FlashFwOp, "BwOp": FlashBwOp},
        "flash3": {"FwOp": Flash3FwOp, "BwOp": Flash3BwOp},
        "triton_splitk": {"FwOp": SplitKFwOp},
    }
    return modules(
        {
            "xformers.ops": {"memory_efficient_attention": attention},
            "xformers.ops.fmha": {"Inputs": function(ARGUMENTS.format(""), lambda of: of)},
            "xformers.ops.fmha.attn_bias": {bias.__name__: bias for bias in BIASES},
            **{f"xformers.ops.fmha.{name}": contents for name, contents in operators.items()},
        }
    )
