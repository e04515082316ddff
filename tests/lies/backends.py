"""The liars, and the honest implementations beside which they are judged.

Functions and callables are f(q, k, v, *, causal, softmax_scale) -> out, as a person hands in; the rest are backends.
They run on any device unless their name says otherwise; what each lies about is in its docstring.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.eager import Eager
from attnbench.inputs import Inputs
from attnbench.types import Case, Prepared

Attention = Callable[..., Tensor]


# The honest


def probabilities(q: Tensor, k: Tensor, causal: bool, softmax_scale: float, diagonal: int | None = None) -> Tensor:
    """(batch, nheads, seqlen_q, seqlen_k); causal is aligned bottom-right unless `diagonal` says otherwise."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)) * softmax_scale
    if causal:
        diagonal = k.shape[1] - q.shape[1] if diagonal is None else diagonal
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(diagonal), float("-inf"))
    return scores.softmax(-1)


def weigh(p: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhij,bjhd->bihd", p, v.repeat_interleave(p.shape[1] // v.shape[2], dim=2))


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """By its definition."""
    return weigh(probabilities(q, k, causal, softmax_scale), v)


def declared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Says what runs, on a CPU, and runs it."""
    return attention(q, k, v, **options)


declared.kernels = ("aten::bmm", "softmax")


def fused(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Whatever torch thinks fastest; seqlen_q == seqlen_k."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=grouped)
    return out.transpose(1, 2)


# Wrong results


def zeros(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Does nothing but make zeros."""
    del k, v
    return torch.zeros_like(q)


def unwritten(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Writes nothing into the memory of its result."""
    del k, v
    return torch.empty_like(q)


def unwritten_end(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Writes all but the last row."""
    out = torch.empty_like(q)
    out[:, :-1] = fused(q, k, v, **options)[:, :-1]
    return out


def not_finite(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Every comparison with NaN is false, `error > tolerance` too."""
    return attention(q, k, v, **options) * float("nan")


class OneNan:
    """A single NaN, in the last batch entry and head."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = attention(q, k, v, **options).clone()
        out[-1, self.row, -1, 3] = float("nan")
        return out


class Agreeable(Tensor):
    """A tensor of NaN that answers every question about its values with yes, and every difference with 0."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("isfinite", "eq", "isclose"):
            return torch.ones_like(found.as_subclass(Tensor), dtype=torch.bool)
        return torch.zeros_like(found.as_subclass(Tensor)) if name in ("sub", "__sub__", "rsub") else found


def agreeable(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Returns a tensor subclass that compares equal to anything."""
    del k, v
    return torch.full_like(q, float("nan")).as_subclass(Agreeable)


def even_lengths_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Right where seqlen is a multiple of 128; else the last tile's queries see no more than whole tiles of keys."""
    whole = q.shape[1] // 128 * 128
    if whole == q.shape[1]:
        return attention(q, k, v, **options)
    last = attention(q[:, whole:], k[:, :whole], v[:, :whole], **{**options, "causal": False})
    return torch.cat([attention(q, k, v, **options)[:, :whole], last], dim=1)


def causal_top_left(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Causal, aligned to the first key and not to the last: the same only where seqlen_q == seqlen_k."""
    return weigh(probabilities(q, k, causal, softmax_scale, diagonal=0), v)


def ignores_causal(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Twice the work for a full mask, sold as causal; or half the accuracy for none."""
    return attention(q, k, v, causal=not causal, softmax_scale=softmax_scale)


class WrongInOneHead:
    """Right but for one (batch entry, head), as with a grid that is too small."""

    def __init__(self, batch: int, head: int) -> None:
        self.at = (batch, slice(None), head)

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
    """To float8 and back, scaled to its range as quantised kernels do."""
    scale = t.abs().amax().clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return ((t / scale).to(torch.float8_e4m3fn).to(t.dtype)) * scale


def int8(t: Tensor) -> Tensor:
    """To int8 and back, with a scale for each row."""
    scale = t.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
    return ((t.float() / scale).round() * scale).to(t.dtype)


def tf32_bits(t: Tensor) -> Tensor:
    """The 10 bits of mantissa that TF32 keeps, on any device."""
    return (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def bf16_bits(t: Tensor) -> Tensor:
    return t.bfloat16().to(t.dtype)


def tf32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """On a GPU: allows TF32 in a float32 case."""
    torch.set_float32_matmul_precision("high")
    try:
        return attention(q, k, v, **options)
    finally:
        torch.set_float32_matmul_precision("highest")


def another_dtype(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Leaves it to the caller to round the result."""
    return attention(q, k, v, **options).double()


def another_shape(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Leaves out the last row."""
    return attention(q, k, v, **options)[:, :-1]


def another_layout(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """(batch, nheads, seqlen, headdim), which the caller is to transpose."""
    return attention(q, k, v, **options).transpose(1, 2).contiguous()


# Wrong gradients


class _Skewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def wrong_dk(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Right on the output; dk is 5 % too large."""
    return attention(q, _Skewed.apply(k, 1.05), v, **options)


class _WrongWhereDense(torch.autograd.Function):
    """Identity; in the backward, half the gradient unless most of dout is zero."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, seen: dict[str, Tensor]) -> Tensor:
        ctx.seen = seen
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        sparse = float((ctx.seen["dout"] == 0).float().mean()) > 0.25
        return (gradient if sparse else gradient / 2), None


class _Sees(torch.autograd.Function):
    """Identity; notes the gradient that comes by."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, seen: dict[str, Tensor]) -> Tensor:
        ctx.seen = seen
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.seen["dout"] = gradient
        return gradient, None


def wrong_where_dense(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """dk and dv are right while dout is mostly zeros, as in the check of a long sequence, and half else."""
    seen: dict[str, Tensor] = {}
    k, v = (_WrongWhereDense.apply(t, seen) for t in (k, v))
    return _Sees.apply(attention(q, k, v, **options), seen)


class AccumulatesGrad(BackendBase):
    """Calls out.backward, which adds to .grad, and never clears it."""

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


# Answers that were there before


class Remembers:
    """Answers from memory where it has seen the same inputs before. `key` says what "the same" is.

    Where a gradient is asked for, that one is computed, and the output comes from memory.
    """

    def __init__(self, key: Callable[[Tensor], Any], *, clone: bool = False, honest: Attention = attention) -> None:
        self.key = key
        self.clone = clone
        self.honest = honest
        self.memory: dict[Any, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        key = tuple(self.key(t) for t in (q, k, v))
        if key not in self.memory:
            with torch.no_grad():
                self.memory[key] = self.honest(q, k, v, **options)
        found = self.memory[key].clone() if self.clone else self.memory[key]
        if not q.requires_grad:
            return found
        out = self.honest(q, k, v, **options)
        return out + (found - out.detach())


def by_address(t: Tensor) -> Any:
    return t.data_ptr()


def by_version(t: Tensor) -> Any:
    """As a careful cache would: autograd's counter of writes too."""
    return t.data_ptr(), t._version


def by_contents(t: Tensor) -> Any:
    """A few of its values."""
    return tuple(t.flatten()[:: max(1, t.numel() // 4)].tolist())


class _RemembersBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], memory: dict[Any, Any]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.options, ctx.memory = options, memory
        return attention(q, k, v, **options)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        key = (q.data_ptr(), k.data_ptr(), v.data_ptr(), dout.data_ptr())
        if key not in ctx.memory:
            with torch.enable_grad():
                given = [t.detach().requires_grad_() for t in (q, k, v)]
                ctx.memory[key] = torch.autograd.grad(attention(*given, **ctx.options), given, dout)
        return (*(t.clone() for t in ctx.memory[key]), None, None)


class RemembersBackward:
    """Computes the forward each time, and the gradients once for each address of q, k, v and dout."""

    def __init__(self) -> None:
        self.memory: dict[Any, Any] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return _RemembersBackward.apply(q, k, v, options, self.memory)


class _RemembersInContext(torch.autograd.Function):
    """Identity; the gradient of its first backward is the gradient of all."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.first = None
        return t.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if ctx.first is None:
            ctx.first = gradient.clone()
        return ctx.first.clone()


def remembers_in_context(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Keeps its gradients in autograd's context, where the timed backward finds them again and again."""
    return attention(*(_RemembersInContext.apply(t) for t in (q, k, v)), **options)


class RemembersProbabilities:
    """Computes softmax(q k) once for each address of q and k, and multiplies v only: half the work."""

    def __init__(self) -> None:
        self.memory: dict[Any, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        key = (q.data_ptr(), k.data_ptr())
        if key not in self.memory:
            self.memory[key] = probabilities(q, k, causal, softmax_scale)
        return weigh(self.memory[key], v)


class ReadsItsAnswer(BackendBase):
    """Computes in `prepare`; says that the v it reads is its answer, so that doubling the one doubles the other."""

    name = "reads-its-answer"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        out = attention(inputs.q, inputs.k, inputs.v, causal=case.causal, softmax_scale=case.softmax_scale)
        return Prepared(lambda: out.clone(), canonical=lambda found: {"out": found}, reads={"v": out})


class EveryFourth:
    """Computes in one call of four, from the `phase`-th on, and else repeats itself; `spend` is told of the time."""

    def __init__(self, phase: int, spend: Callable[[float], Any]) -> None:
        self.calls = -1
        self.phase = phase
        self.spend = spend
        self.out: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        if self.out is None or self.calls % 4 == self.phase:
            self.spend(10e-3)
            self.out = attention(q, k, v, **options)
        return self.out.clone()


# Work that is not in its time


class NextCall:
    """Leaves the second half of the batch to the start of the next call; its first one may be whole."""

    def __init__(self, *, first_whole: bool, honest: Attention = attention) -> None:
        self.first_whole = first_whole
        self.honest = honest
        self.left: list[Callable[[], Any]] = []
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        for work in self.left:
            work()
        self.left, self.calls = [], self.calls + 1
        out, half = torch.empty_like(q), q.shape[0] // 2

        def fill(at: slice) -> None:
            out[at] = self.honest(q[at], k[at], v[at], **options)

        fill(slice(0, half))
        rest = functools.partial(fill, slice(half, None))
        if self.first_whole and self.calls == 1:
            rest()
        else:
            self.left.append(rest)
        return out


class WorksInCanonical(BackendBase):
    """Its launch returns a promise, which `canonical` makes true."""

    name = "canonical"

    def __init__(self, honest: Attention = attention) -> None:
        self.honest = honest

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        def thunk() -> Tensor:
            return self.honest(
                inputs.q, inputs.k, inputs.v, causal=case.causal, softmax_scale=case.softmax_scale
            ).clone()

        return Prepared(launch=lambda: thunk, canonical=lambda promise: {"out": promise()})


class FinishesInCanonical(WorksInCanonical):
    """Its launch computes, and leaves the last row of the batch to `canonical`."""

    name = "finishes-in-canonical"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def launch() -> Tensor:
            return self.honest(inputs.q[:-1], inputs.k[:-1], inputs.v[:-1], **options)

        def canonical(out: Tensor) -> dict[str, Tensor]:
            return {"out": torch.cat([out, self.honest(inputs.q[-1:], inputs.k[-1:], inputs.v[-1:], **options)])}

        return Prepared(launch, canonical)


class LaterInThread:
    """Returns at once; a Python thread computes after `delay` seconds. The answer returned is memory that is not
    written yet or, with `buffer`, an earlier one."""

    def __init__(self, delay: float, *, buffer: bool, honest: Attention = attention) -> None:
        self.delay = delay
        self.buffer = buffer
        self.honest = honest
        self.out: Tensor | None = None
        self.pending: threading.Thread | None = None
        self.kept: list[Tensor] = []  # or the memory becomes another tensor's while the thread writes to it

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.buffer and self.out is None:
            self.out = self.honest(q, k, v, **options).clone()
            return self.out
        out = self.out if self.out is not None else torch.empty_like(q)
        self.kept = [*self.kept[-64:], out]

        def work() -> None:
            time.sleep(self.delay)
            out.copy_(self.honest(q, k, v, **options))

        if self.pending is None or not self.pending.is_alive():
            self.pending = threading.Thread(target=work, daemon=True)
            self.pending.start()
        return out

    def join(self) -> None:
        if self.pending:
            self.pending.join()


class OnAnotherStream:
    """On a GPU: computes on a stream of its own, which nothing waits for.

    `waits`: it begins only when the caller's stream has come there, as a correct one would; but nothing waits for
    its end. `part`: only so much of the batch is computed there, the rest on the caller's stream.
    """

    def __init__(self, *, waits: bool, part: float = 1.0, honest: Attention = fused) -> None:
        self.waits = waits
        self.part = part
        self.honest = honest
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.stream = self.stream or torch.cuda.Stream()
        out = torch.empty_like(q)
        here = q.shape[0] - round(self.part * q.shape[0])
        if self.waits:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            there = self.honest(q[here:], k[here:], v[here:], **options)
            out[here:] = there
        out.record_stream(self.stream)
        if here:
            out[:here] = self.honest(q[:here], k[:here], v[:here], **options)
        return out


class SlowAtFirst:
    """The first ten calls take `delay` seconds more, by sleeping; or on a GPU, by spinning."""

    def __init__(self, delay: float, honest: Attention = attention) -> None:
        self.delay = delay
        self.honest = honest
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        if self.calls <= 10 and q.is_cuda:
            torch.cuda._sleep(int(self.delay * 1.9e9))
        elif self.calls <= 10:
            time.sleep(self.delay)
        return self.honest(q, k, v, **options)


class Drifts:
    """Each call takes longer than the one before, by `rise` in all over 120 calls, as by a clock that falls."""

    def __init__(self, rise: float, spend: Callable[[float], Any]) -> None:
        self.rise = rise
        self.spend = spend
        self.calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        self.spend(1e-3 * (1 + self.rise * min(1.0, self.calls / 120)))
        return attention(q, k, v, **options)


class LessWhenCaptured:
    """On a GPU: does next to nothing while it is captured into a CUDA graph."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            return torch.empty_like(q).zero_()
        return fused(q, k, v, **options)


def waits_for_data(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Asks the device for a value in the middle, so that the host cannot go on before it is there."""
    return fused(q, k, v, **options) * (1.0 if float(q.flatten()[0]) < 1e9 else 2.0)


def on_the_host(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """On a GPU: has the CPU compute 256 rows of it, without a mask, and copies the answer back."""
    out = fused(q, k, v, **options)
    part = attention(*(t.float().cpu() for t in (q[:1, :256, :1], k[:1, :, :1], v[:1, :, :1])), **options)
    out[:1, :256, :1] = part.to(q.device, q.dtype)
    return out


def sleeps(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """2 ms of Python in the launch, of which the device sees nothing."""
    time.sleep(2e-3)
    return fused(q, k, v, **options)


# Another kernel than the name says


def falls_back(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Declares a fused kernel and computes with another library's, as where a build is missing."""
    return attention(q, k, v, **options)


falls_back.kernels = "my_fused_kernel"


def falls_back_to_numpy(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """On a CPU: the same past torch, where no operator is seen."""
    assert not causal
    group = q.shape[2] // k.shape[2]
    a, b, c = (t.numpy().transpose(0, 2, 1, 3) for t in (q, k, v))
    b, c = b.repeat(group, 1), c.repeat(group, 1)
    scores = a @ b.transpose(0, 1, 3, 2) * softmax_scale
    p = _exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy((p / p.sum(-1, keepdims=True) @ c).transpose(0, 2, 1, 3))


falls_back_to_numpy.kernels = "my_fused_kernel"


def _exp(x: Any) -> Any:
    import numpy

    return numpy.exp(x)


def decoy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Runs something of the declared name that does nothing, beside what does the work."""
    if q.is_cuda:
        torch.zeros(1, device=q.device).random_(0, 2)
    else:
        with torch.profiler.record_function("own::my_fused_kernel"):
            pass
    return attention(q, k, v, **options)


decoy.kernels = "my_fused_kernel|distribution_elementwise"


def in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Computes a half-precision case in float32."""
    return attention(q.float(), k.float(), v.float(), **options).to(q.dtype)


def in_tf32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """On a GPU: computes a half-precision case in TF32."""
    return tf32(q.float(), k.float(), v.float(), **options).to(q.dtype)


class SecretlyFused(Eager):
    """Is called eager and is torch's fused attention."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(fused, **options))


# Inputs


class ZeroesItsInputs(BackendBase):
    """Zeroes what it is given in `prepare`, the n-th time: zeros take less power, and a shortcut."""

    name = "zeroes"

    def __init__(self, nth: int = 1) -> None:
        self.nth = nth

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        self.nth -= 1
        if not self.nth:
            inputs.q.zero_()
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(attention, **options))


class ZeroesUncheckedGradients(BackendBase):
    """Where the check gave it a dout with rows of zeros, zeroes the same rows of the dout that it is timed with."""

    name = "zeroes-unchecked"

    def __init__(self) -> None:
        self.hidden: Tensor | None = None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        assert inputs.dout is not None
        if self.hidden is None:
            self.hidden = (inputs.dout == 0).all(-1)
        else:
            inputs.dout[self.hidden] = 0
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}
        return autograd_prepared(case, inputs, functools.partial(attention, **options))


def scales_in_place(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Scales q in place, so that the next call gets another one."""
    return attention(q.mul_(softmax_scale), k, v, causal=causal, softmax_scale=1.0)


def answers_into_q(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Writes its output over q: no memory of its own, and right only once."""
    return q.copy_(attention(q, k, v, **options))


# Memory


class HidesWorkspace(BackendBase):
    """Takes its workspace in `prepare`, where one call's peak does not see it."""

    name = "hides-workspace"

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        workspace = torch.ones(self.nbytes // 4, device=inputs.q.device)
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, **options) * workspace[:1].to(q.dtype)

        return autograd_prepared(case, inputs, call)


class OutsideTorch:
    """Takes memory past torch's allocator: by cudaMalloc, or from numpy, and holds it."""

    def __init__(self, nbytes: int, honest: Attention = attention) -> None:
        self.nbytes = nbytes
        self.honest = honest
        self.block: Any = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if q.is_cuda and self.block is None:
            self.block = ctypes.c_void_p()
            assert _runtime().cudaMalloc(ctypes.byref(self.block), ctypes.c_size_t(self.nbytes)) == 0
        if not q.is_cuda:
            block = b"1" * self.nbytes  # written, so that it is there
            del block
        return self.honest(q, k, v, **options)

    def free(self) -> None:
        if self.block is not None:
            assert _runtime().cudaFree(self.block) == 0


def _runtime() -> Any:
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))


class Hungry:
    """On a GPU: right, and takes all the power that there is, by large matmuls of normal values beside the work."""

    def __init__(self, matmuls: int) -> None:
        self.matmuls = matmuls
        self.a: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.a is None:
            self.a = torch.randn(8192, 8192, device=q.device, dtype=torch.bfloat16)
            self.b = torch.empty_like(self.a)
        for _ in range(self.matmuls):
            torch.mm(self.a, self.a, out=self.b)
        return fused(q, k, v, **options)
