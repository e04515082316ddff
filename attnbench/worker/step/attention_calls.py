"""Gets hold of the attention of a model of transformers: what it is called with, and when it begins and ends.

transformers finds the function of each layer, and the one that makes its mask, by the implementation's name in two
tables. For a while other functions stand there, which call the first. No timed launch has them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MARK = "attnbench.attention"  # the name of a range that marks a place: MARK.WHAT.begin, MARK.WHAT.end
Around = Callable[[Callable[..., Any], Any, "Tensor", "Tensor", "Tensor"], Any]


@contextlib.contextmanager
def replaced(
    implementation: str, around: Around, mask: Callable[[Callable[..., Any]], Any] | None = None
) -> Iterator[None]:
    """Let `around` be called in place of a layer's attention, with a function that computes it of q, k and v, the
    layer, and q, k, v; and `mask` in place of what makes masks, with a function that makes one.
    """
    from transformers import masking_utils, modeling_utils

    functions: Any = modeling_utils.ALL_ATTENTION_FUNCTIONS
    masks: Any = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS

    own, own_mask = functions.get(implementation), masks.get(implementation)

    def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Any:
        call = own or sys.modules[type(module).__module__].eager_attention_forward
        return around(lambda *qkv: call(module, *qkv, *rest, **options), module, q, k, v)

    functions[implementation] = attention
    if mask and own_mask:
        masks[implementation] = lambda *args, **options: mask(lambda: own_mask(*args, **options))
    try:
        yield
    finally:
        del functions[implementation]
        if mask and own_mask:
            del masks[implementation]


def mark(what: str) -> None:
    """Leave a mark in the profiler's trace."""
    from torch.profiler import record_function

    with record_function(f"{MARK}.{what}"):
        pass


def on_backward(give: Callable[[Tensor], Any], take: Callable[..., Any]) -> tuple[Any, Any]:
    """Return two functions that give back what they take, one for the output of attention, one for q, k and v.

    In a backward `give` is called with the gradient of the output, before that of attention, and `take` with those of
    q, k and v after it. One thread runs a device's backward, in that order.
    """
    import torch

    class Output(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, out: Tensor) -> Tensor:
            return out.view_as(out)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            give(grads[0])
            return grads[0]

    class Inputs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *qkv: Tensor) -> tuple[Tensor, ...]:
            return tuple(t.view_as(t) for t in qkv)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            take(*grads)
            return grads

    return Output.apply, Inputs.apply


@contextlib.contextmanager
def marked(implementation: str) -> Iterator[None]:
    """Mark where attention begins and ends, forward and backward, and where masks are made.

    What a backward launches between the gradient of the output and those of q, k and v belongs to attention.
    """
    give, take = on_backward(lambda _: mark("backward.begin"), lambda *_: mark("backward.end"))

    def around(call: Callable[..., Any], _: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        qkv = take(q, k, v) if q.requires_grad else (q, k, v)
        mark("forward.begin")
        out, *rest = call(*qkv)
        mark("forward.end")
        return (give(out) if out.requires_grad else out, *rest)

    def mask(make: Callable[[], Any]) -> Any:
        mark("mask.begin")
        made = make()
        mark("mask.end")
        return made

    with replaced(implementation, around, mask):
        yield
