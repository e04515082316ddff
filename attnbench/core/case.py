"""A case: one thing to measure, whatever the backend. Sizes, dtype, mask and pass."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

Dtype = Literal["bf16", "fp16", "fp32", "fp8"]

Direction = Literal["fwd", "bwd", "fwd_bwd"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

ITEMSIZE: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}  # bytes of an element of q, k and v

RESULT_ITEMSIZE: Mapping[str, int] = {**ITEMSIZE, "fp8": 2}  # of results and their gradients; bf16 of fp8


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention call: q is (batch, seqlen_q, nheads, headdim), k and v have seqlen_k and nheads_k."""

    strict: ClassVar[bool] = True

    batch: int
    seqlen_q: int
    seqlen_k: int
    nheads: int
    nheads_k: int
    headdim: int
    headdim_v: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.nheads % self.nheads_k:
            raise ValueError(f"nheads ({self.nheads}) must be a multiple of nheads_k ({self.nheads_k})")


@dataclass(frozen=True)
class Case:
    """One thing to measure, whatever the backend: sizes, dtype, mask and pass.

    `causal` is aligned bottom-right: query i sees keys j <= i + seqlen_k - seqlen_q.
    `window_size` is (left, right), None for open. A query that sees no key has output 0. fp8 is forward only (fp8.py).
    """

    strict: ClassVar[bool] = True  # a field that is not known would make it another case

    shape: Shape
    dtype: Dtype
    direction: Direction
    causal: bool = False
    window_size: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    dropout_p: float = 0.0

    @cached_property
    def key(self) -> str:
        """Stable identity: a hash of the fields that differ from their default, so a new field orphans no baseline."""
        return _key(self)

    @cached_property
    def _hash(self) -> int:
        return int(self.key, 16)

    def __hash__(self) -> int:
        """Computed once, and the same in every process: a report looks cases up some hundred thousand times."""
        return self._hash

    @property
    def softmax_scale(self) -> float:
        return 1 / math.sqrt(self.shape.headdim)

    @property
    def has_forward(self) -> bool:
        return self.direction != "bwd"

    @property
    def has_backward(self) -> bool:
        return self.direction != "fwd"


def _key(case: Case) -> str:
    said: dict[str, Any] = {
        "shape": vars(case.shape),
        "dtype": case.dtype,
        "direction": case.direction,
    }
    for f in dataclasses.fields(case):
        value = getattr(case, f.name)
        if f.default is not dataclasses.MISSING and value != f.default:
            said[f.name] = float(value) if isinstance(f.default, float) else value  # 30 and 30.0 are one case
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
