"""Interception of the attention of a transformers model: its arguments, its beginning and its end.

transformers finds the function of each layer, and the function that makes its mask, by the implementation's name in two
tables. Here other functions, which call the original ones, replace them for some launches; timed launches use the
originals.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MARK = "attnbench.attention"  # prefix of marking ranges: MARK.WHAT.begin, MARK.WHAT.end
Around = Callable[[Callable[..., Any], Any, "Tensor", "Tensor", "Tensor"], Any]


@contextlib.contextmanager
def replaced(
    implementation: str, around: Around, mask: Callable[[Callable[..., Any]], Any] | None = None
) -> Iterator[None]:
    """Replace the attention of layers by `around`, and the maker of masks by `mask`, within the block.

    `around(attention, layer, q, k, v)` gets the original as a function of q, k and v; `mask(make)` gets the original
    maker of masks.
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
    """Return two functions that return their arguments, one for the output of attention, one for q, k and v.

    In a backward, `give` is called with the gradient of the output, before attention's backward, and `take` with the
    gradients of q, k and v after it. One thread runs a device's backward, in that order.
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
    """Mark the beginning and end of attention, forward and backward, and of the making of masks.

    Work that a backward launches between the gradient of the output and the gradients of q, k and v belongs to
    attention.
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
