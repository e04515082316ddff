"""How the inputs of a case lie in memory: `Case.layout`.

    native   as each backend likes them: its copies and transposes are made before the timed call
    bshd     (batch, seqlen, nheads, headdim), contiguous: flash-attn's
    bhsd     (batch, nheads, seqlen, headdim), contiguous: SDPA's
    packed   q, k and v are views of one tensor (batch, seqlen, nheads + 2 nheads_k, headdim), as a fused projection
             writes it; dout is as in bshd

Tensors are indexed as (batch, seqlen, nheads, headdim) in every layout, which sets only their strides. In a layout
other than native a launch gets these views, so that a backend's copies are part of its time, forward and backward.
Results may have any strides; the gradient of packed inputs is one packed tensor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs
from attnbench.core.case import Layout, Shape

if TYPE_CHECKING:
    from torch import Tensor


def packable(shape: Shape) -> bool:
    """Return whether q, k and v of this shape can be parts of one tensor: with one length and one headdim."""
    return shape.seqlen_q == shape.seqlen_k and shape.headdim == shape.headdim_v


def lay_out(layout: Layout, given: Inputs) -> Inputs:
    """Return inputs, contiguous in (batch, seqlen, nheads, headdim), in another layout, with the same values."""
    if layout == "bhsd":
        swapped = {name: t.transpose(1, 2).contiguous().transpose(1, 2) for name, t in given.values.items()}
        return given.with_values(swapped)
    if layout == "packed":
        import torch

        q, k, v = split_packed(torch.cat([given.q, given.k, given.v], dim=2), given.k.shape[2])
        return replace(given, q=q, k=k, v=v)
    return given


def split_packed(qkv: Tensor, nheads_k: int) -> Sequence[Tensor]:
    """Return q, k and v as views of a packed tensor. Its gradient is written once, from the gradients of all three."""
    parts: Sequence[Tensor] = qkv.split([qkv.shape[2] - 2 * nheads_k, nheads_k, nheads_k], dim=2)
    return parts


def parts_of_packed(qkv: Tensor, nheads_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of a packed tensor that belong to q, k and v, by indexing alone."""
    return qkv[:, :, : -2 * nheads_k], qkv[:, :, -2 * nheads_k : -nheads_k], qkv[:, :, -nheads_k:]


def find_packed(given: Inputs) -> Tensor | None:
    """Return the packed tensor of which q, k and v are views; None where they are not views of one."""
    q, k, v = given.q, given.k, given.v
    batch, seqlen, nheads, headdim = q.shape
    width = nheads + k.shape[2] + v.shape[2]
    strides = (seqlen * width * headdim, width * headdim, headdim, 1)
    unit = headdim * q.element_size()
    starts = (0, nheads * unit, (nheads + k.shape[2]) * unit)
    alike = all(t.stride() == strides for t in (q, k, v))
    if not alike or any(t.data_ptr() != q.data_ptr() + start for t, start in zip((q, k, v), starts, strict=True)):
        return None
    return q.as_strided((batch, seqlen, width, headdim), strides)


def as_slice(t: Tensor, *more: int) -> Tensor:
    """Return the same values as a view of a dense tensor that is longer by `more`, one number for each dimension.

    With a multiple of 8 for the last dimension, rows begin at multiples of 16 bytes, as kernels want them.
    """
    larger = t.new_ones([n + extra for n, extra in zip(t.shape, more, strict=True)])
    part = larger[tuple(map(slice, t.shape))]
    part.copy_(t)
    return part


def with_random_strides(t: Tensor) -> Tensor:
    """Return the values of (batch, seqlen, nheads, headdim) with a random order of three dimensions and random gaps.

    The last stride is 1, and rows begin at multiples of 16 bytes, with a gap between them.
    """
    draw = random.SystemRandom()
    order = [*draw.sample(range(3), 3), 3]
    part = as_slice(t.permute(order), *(draw.randrange(3) for _ in range(3)), 8 * draw.randint(1, 2))
    return part.permute(*(order.index(dim) for dim in range(4)))
