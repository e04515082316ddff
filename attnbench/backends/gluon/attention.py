"""Exact attention for Hopper in Gluon, differentiable: checks of the inputs, and the autograd function.

The algorithm and the arithmetic are as in backends/triton/attention.py, but one kernel computes all gradients.
forward.py and backward.py explain how the warps of a program share the work.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.backends.gluon.backward import attention_backward
from attnbench.backends.gluon.forward import attention_forward
from attnbench.backends.triton.attention import natural_lse
from attnbench.backends.triton.backward import padded_lse_and_delta
from attnbench.backends.triton.launch import can_use_tma
from attnbench.backends.triton.problem import Problem, dense_problem


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Return softmax(softmax_scale * q k^T) v. First derivatives by q, k and v are supported.

    q is (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k,
    headdim_v), all bf16 or all fp16, on a GPU of compute capability 9.0. headdim_v is a multiple of 8. The last stride
    must be 1, the others and the addresses multiples of 16 bytes. Head h of q uses head h // (nheads // nheads_k) of k
    and v. The result is (batch, seqlen_q, nheads, headdim_v), contiguous. With `causal` query i sees the keys up to
    i + seqlen_k - seqlen_q.

    `softmax_scale` must be positive; None is headdim ** -0.5. With `return_lse` the result is (out, lse): the natural
    logarithm of the sum of exp(score) of each query, (batch, nheads, seqlen_q) in fp32, -inf where it sees no key.

    Call it once with these sizes before capturing it in a CUDA graph: the first call copies a list from the host.

    Raises ValueError, with the reason, for inputs that do not fit.
    """
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"dtype must be bfloat16 or float16, got {q.dtype}")
    _check_device(q)
    problem = dense_problem(q, k, v, causal, (None, None), softcap=0.0, softmax_scale=softmax_scale)
    if v.shape[3] % 8:
        raise ValueError(f"headdim_v must be a multiple of 8, got {v.shape[3]}")
    if not can_use_tma(q, k, v):
        strides = ", ".join(str(x.stride()) for x in (q, k, v))
        raise ValueError(f"addresses and strides must be multiples of 16 bytes, and none 0; strides are {strides}")
    out, lse = _Attention.apply(q, k, v, problem)
    return (out, natural_lse(lse)) if return_lse else out


def _check_device(q: Tensor) -> None:
    """Raise ValueError for a device on which the kernels cannot run."""
    if not q.is_cuda:
        raise ValueError(f"needs a GPU of compute capability 9.0, q is on {q.device}")
    # The capability of an AMD GPU is its gfx number, which may be 9.0 too.
    if torch.cuda.get_device_capability(q.device) != (9, 0) or torch.version.hip is not None:
        name = torch.cuda.get_device_name(q.device)
        raise ValueError(f"needs a GPU of compute capability 9.0, q is on a {name}")


class _Attention(torch.autograd.Function):
    """The differentiable function (q, k, v) -> (out, lse), with lse in base 2 as the kernels write it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        out, lse = attention_forward(q, k, v, problem)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.problem = problem
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # otherwise autograd would launch a kernel for a gradient of lse
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, dout: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        if dout.stride(-1) != 1 or not can_use_tma(dout):  # a broadcast gradient, for example of out.sum()
            # Not contiguous(): it returns a contiguous tensor unchanged, even where the address is unaligned.
            dout = dout.clone(memory_format=torch.contiguous_format)
        gradients = attention_backward(dout, q, k, v, *padded_lse_and_delta(dout, out, lse), ctx.problem)
        return *(x if needed else None for x, needed in zip(gradients, ctx.needs_input_grad, strict=False)), None
