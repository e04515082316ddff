"""Kernels whose results are wrong, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from right_attention import attention, probabilities, weigh
from torch import Tensor

from attnbench.backends.base import BackendBase
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

# Wrong results


def zeros(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Returns zeros."""
    del k, v
    return torch.zeros_like(q)


def unwritten(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Writes nothing into the memory of its result."""
    del k, v
    return torch.empty_like(q)


def not_finite(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Returns NaN, for which every comparison is false, `error > tolerance` too."""
    return attention(q, k, v, **options) * float("nan")


class OneNan:
    """Returns a single NaN, in the last batch entry and head."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = attention(q, k, v, **options).clone()
        out[-1, self.row, -1, 3] = float("nan")
        return out


class AlwaysEqual(Tensor):
    """A tensor that claims to be finite and equal to anything, and whose differences are 0."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("isfinite", "eq", "isclose"):
            return torch.ones_like(found.as_subclass(Tensor), dtype=torch.bool)
        return torch.zeros_like(found.as_subclass(Tensor)) if name in ("sub", "__sub__", "rsub") else found


def always_equal(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Returns NaN as a tensor subclass that compares equal to anything."""
    del k, v
    return torch.full_like(q, float("nan")).as_subclass(AlwaysEqual)


class FromTorch(AlwaysEqual):
    """An AlwaysEqual tensor from a module whose name begins like torch's."""


FromTorch.__module__ = "torch.helpers"


def always_equal_from_torch(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Returns NaN as a tensor subclass that claims to be torch's."""
    del k, v
    return torch.full_like(q, float("nan")).as_subclass(FromTorch)


def even_lengths_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Right where seqlen is a multiple of 128; otherwise the last tile's queries see whole tiles of keys only."""
    whole = q.shape[1] // 128 * 128
    if whole == q.shape[1]:
        return attention(q, k, v, **options)
    last = attention(q[:, whole:], k[:, :whole], v[:, :whole], **{**options, "causal": False})
    return torch.cat([attention(q, k, v, **options)[:, :whole], last], dim=1)


def causal_top_left(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Aligns a causal mask top-left, which is the same only where seqlen_q == seqlen_k."""
    return weigh(probabilities(q, k, causal, softmax_scale, diagonal=0), v)


def ignores_causal(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Computes a full mask where causal was asked for, and causal where full was."""
    return attention(q, k, v, causal=not causal, softmax_scale=softmax_scale)


class WrongInOneHead:
    """Returns zeros for one (batch entry, head), as with a grid that is too small."""

    def __init__(self, batch: int, head: int) -> None:
        self.at = (batch, slice(None), head)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = attention(q, k, v, **options).clone()
        out[self.at] = 0
        return out


class WrongTile:
    """Returns zeros in 64 query rows of some query heads, like a kernel that leaves out a tile."""

    def __init__(self, row: int, heads: slice = slice(None)) -> None:
        self.at = (slice(None), slice(row, row + 64), heads)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = attention(q, k, v, **options).clone()
        out[self.at] = 0
        return out


class InFewerBits:
    """Rounds some of its operands to a narrower type: "q", "k", "v", or "p" for the probabilities."""

    def __init__(self, operands: str, narrow: Callable[[Tensor], Tensor]) -> None:
        self.operands = operands
        self.narrow = narrow

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        q, k, v = (self.narrow(t) if name in self.operands else t for name, t in zip("qkv", (q, k, v), strict=True))
        p = probabilities(q, k, causal, softmax_scale)
        return weigh(self.narrow(p) if "p" in self.operands else p, v)


def fp8(t: Tensor) -> Tensor:
    """Return t rounded to float8_e4m3fn and back, scaled to its range as quantised kernels do."""
    scale = t.abs().amax().clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return ((t / scale).to(torch.float8_e4m3fn).to(t.dtype)) * scale


def int8(t: Tensor) -> Tensor:
    """Return t rounded to int8 and back, with a scale for each row."""
    scale = t.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
    return ((t.float() / scale).round() * scale).to(t.dtype)


def int8_scores(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Rounds q and k to int8 with a scale for each row, and nothing else, as a fused kernel may do."""
    return attention(int8(q).double(), int8(k).double(), v.double(), **options).to(q.dtype)


def no_maximum(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Does not subtract the largest score of a row before the exponential, which it takes in float32."""
    p = scores(q, k, causal, softmax_scale).float().exp()
    return weigh((p / p.sum(-1, keepdim=True)).to(q.dtype), v)


def stale_maximum(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Takes keys in blocks of 16, and does not rescale the sums where the largest score rises by more than 10."""
    found = scores(q.double(), k.double(), causal, softmax_scale)
    highest = torch.full_like(found[..., :1], -1e4)
    total, summed = torch.zeros_like(highest), torch.zeros_like(q, dtype=torch.float64).transpose(1, 2)
    for block, values in zip(found.split(16, -1), v.double().split(16, 1), strict=True):
        higher = torch.maximum(highest, block.amax(-1, keepdim=True))
        rise = higher - highest
        factor = torch.where((rise > 10) & (total > 0), torch.ones_like(rise), (-rise).exp())
        p = (block - higher).exp()
        total = total * factor + p.sum(-1, keepdim=True)
        summed = summed * factor + weigh(p, values).transpose(1, 2)
        highest = higher
    return (summed / total).transpose(1, 2).to(q.dtype)


def scores(q: Tensor, k: Tensor, causal: bool, softmax_scale: float) -> Tensor:
    """Return the masked scores, (batch, nheads, seqlen_q, seqlen_k)."""
    found = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)) * softmax_scale
    visible = torch.ones_like(found, dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    return found.masked_fill(~visible, float("-inf")) if causal else found


class Softcapped:
    """Caps scores at `cap`, whatever the case's softcap is; does not cap them where it is 0."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        found = scores(q.double(), k.double(), False, softmax_scale)
        found = self.cap * torch.tanh(found / self.cap) if self.cap else found
        if causal:
            found = found.masked_fill(~torch.ones_like(found, dtype=torch.bool).tril(), float("-inf"))
        return weigh(found.softmax(-1), v.double()).to(q.dtype)


class SumsInFewBits:
    """Adds the products with v in the dtype after each `block` of keys; rounds the probabilities to the dtype."""

    def __init__(self, block: int) -> None:
        self.block = block

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        found = scores(q.double(), k.double(), causal, softmax_scale)
        p = (found - found.amax(-1, keepdim=True)).exp()
        summed = torch.zeros_like(q)
        for some, values in zip(p.split(self.block, -1), v.split(self.block, 1), strict=True):
            summed = (summed.double() + weigh(some.to(q.dtype).double(), values.double())).to(q.dtype)
        return (summed.double() / p.sum(-1).transpose(1, 2)[..., None]).to(q.dtype)


def tf32_bits(t: Tensor) -> Tensor:
    """Return t with the 10 bits of mantissa that TF32 keeps, on any device."""
    return (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def bf16_bits(t: Tensor) -> Tensor:
    """Return t rounded to bf16 and back."""
    return t.bfloat16().to(t.dtype)


def another_dtype(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Returns float64, so that the caller must round the result."""
    return attention(q, k, v, **options).double()


def another_shape(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Leaves out the last row."""
    return attention(q, k, v, **options)[:, :-1]


def another_layout(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Returns (batch, nheads, seqlen, headdim), so that the caller must transpose."""
    return attention(q, k, v, **options).transpose(1, 2).contiguous()


# Wrong gradients


class _Skewed(torch.autograd.Function):
    """Identity; in the backward the gradient times `factor`."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def wrong_dk(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Returns a right output, and a dk that is 5 % too large."""
    return attention(q, _Skewed.apply(k, 1.05), v, **options)


class _Saturated(torch.autograd.Function):
    """Identity; in the backward no gradient where a value is beyond 80."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.masked_fill(ctx.saved_tensors[0].abs() > 80, 0.0)


def saturated_backward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Returns a right output, and gradients as if scores beyond 80 were constant, as where they are clamped."""
    found = _Saturated.apply(scores(q, k, causal, softmax_scale))
    return weigh(found.softmax(-1), v)


class _DoublesDout(torch.autograd.Function):
    """Identity; the backward doubles its dout in place if a key has a value beyond 20."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(k)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
        if ctx.saved_tensors[0].abs().amax() > 20:
            dout.data.mul_(2)
        return dout, None


def doubles_dout(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Returns a right output; where keys have an outlier, its backward doubles dout and so all gradients."""
    return _DoublesDout.apply(attention(q, k, v, **options), k.detach())


class _WrongWhereDense(torch.autograd.Function):
    """Identity; in the backward half the gradient, unless most of dout is zero."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, seen: dict[str, Tensor]) -> Tensor:
        ctx.seen = seen
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        sparse = float((ctx.seen["dout"] == 0).float().mean()) > 0.25
        return (gradient if sparse else gradient / 2), None


class _RecordsGradient(torch.autograd.Function):
    """Identity; records the gradient that passes."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, seen: dict[str, Tensor]) -> Tensor:
        ctx.seen = seen
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.seen["dout"] = gradient
        return gradient, None


def wrong_where_dense(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Returns right dk and dv where dout is mostly zeros, as in the check of a long sequence, and half of them
    otherwise.
    """
    seen: dict[str, Tensor] = {}
    k, v = (_WrongWhereDense.apply(t, seen) for t in (k, v))
    return _RecordsGradient.apply(attention(q, k, v, **options), seen)


class AccumulatesGrad(BackendBase):
    """Calls out.backward, which adds to .grad, and never clears .grad."""

    name = "accumulates"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        q, k, v = (t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v))
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        kept = attention(q, k, v, **options) if case.direction == "bwd" else None

        def launch() -> Tensor:
            out = attention(q, k, v, **options) if kept is None else kept
            out.backward(inputs.dout, retain_graph=True)
            return out

        def canonical(out: Tensor) -> dict[str, Tensor]:
            return {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}

        return Prepared(launch, canonical)
