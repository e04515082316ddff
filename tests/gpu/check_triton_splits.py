"""Checks, on a GPU, the Triton attention with split query heads and with a headdim in parts, on shapes that are hard.

    python tests/gpu/check_triton_splits.py            from the repository's root, without installing anything
    python tests/gpu/check_triton_splits.py --dry      tiny, in Triton's interpreter (with TRITON_INTERPRET=1)

Every result is compared with float64. An error may be twice that of plain attention in the dtype, as in
test_triton_gpu.py. Each backward runs twice and must have the same bits. New tensors start as NaN. Prints a line for
each shape; exit code 1 where one is wrong.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

sys.path.insert(0, os.getcwd())  # so that attnbench need not be installed

import torch
from torch import Tensor

from attnbench.backends.triton import backward
from attnbench.backends.triton.attention import attention, attention_varlen
from attnbench.backends.triton.block_sizes import query_splits

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"
Tensors = tuple[Tensor, ...]
NAMES = ("out", "dq", "dk", "dv")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True},
    {"window_size": (200, 33)},
    {"causal": True, "window_size": (150, None), "softcap": 5.0},
)
# seqlen_q, seqlen_k, nheads, nheads_k, headdim, headdim_v, batch, parts of the query heads (None: as the table says)
SHAPES = (
    (500, 650, 32, 1, 64, 64, 2, None),
    (650, 500, 32, 1, 64, 64, 1, 32),
    (1024, 1024, 8, 1, 64, 64, 1, 8),
    (777, 777, 8, 2, 128, 128, 2, 2),
    (1040, 1040, 12, 2, 128, 128, 1, 3),
    (65, 2000, 16, 1, 128, 64, 1, None),
    (300, 500, 8, 2, 256, 256, 1, 4),
    (300, 500, 4, 1, 80, 40, 1, 2),
    (700, 1300, 4, 4, 192, 128, 1, None),
    (1300, 700, 8, 2, 192, 128, 1, 4),
    (640, 640, 4, 2, 192, 192, 1, None),
    (500, 333, 2, 1, 129, 16, 2, 2),
    (513, 700, 2, 2, 160, 256, 1, None),
    (256, 256, 2, 1, 136, 128, 1, 1),
)


def plain(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, **options: Any) -> Tensors:
    """Return (out, dq, dk, dv) of textbook attention in the dtype of its inputs."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    kk, vv = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, kk) * q.shape[-1] ** -0.5
    if softcap := options.get("softcap"):
        scores = softcap * torch.tanh(scores / softcap)
    sq, sk = scores.shape[-2:]
    left, right = options.get("window_size", (None, None))
    distance = torch.arange(sk, device=DEVICE) - torch.arange(sk - sq, sk, device=DEVICE)[:, None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None or options.get("causal"):
        seen &= distance <= (0 if options.get("causal") else right)
    some = seen.any(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(~seen & some, float("-inf")), dim=-1) * some
    out = torch.einsum("bhij,bjhd->bihd", p, vv)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))


def nan_filled(*args: Any, _empty: Any = torch.empty, **options: Any) -> Tensor:
    filled: Tensor = _empty(*args, **options).fill_(float("nan"))
    return filled


def ours(inputs: Tensors, varlen: bool, **options: Any) -> Tensors:
    """Return (out, dq, dk, dv) of the Triton attention; with `varlen` of the batch as packed sequences."""
    q, k, v = (t.detach().requires_grad_() for t in inputs[:3])
    if varlen:
        batch, lengths = q.shape[0], (q.shape[1], k.shape[1])
        ends = (torch.arange(batch + 1, dtype=torch.int32, device=DEVICE) * n for n in lengths)
        packed = attention_varlen(*(t.flatten(0, 1) for t in (q, k, v)), *ends, *lengths, **options)
        out = packed.unflatten(0, (batch, -1))
    else:
        out = attention(q, k, v, **options)
    with patch.object(torch, "empty", nan_filled):
        return (out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3]))


def worst(result: Tensors, inputs: Tensors, **options: Any) -> tuple[float, str]:
    """Return the largest error as a share of what is allowed, and of which result it is."""
    exact, rough = plain(*(t.double() for t in inputs), **options), plain(*inputs, **options)
    shares = []
    for name, got, want, eager in zip(NAMES, result, exact, rough, strict=True):
        allowed = 2 * (eager.double() - want).abs().max().item() + 1e-3 * want.abs().max().item()
        error = (got.double() - want).abs().max().item()
        shares.append((error / allowed if error == error else float("inf"), name))  # NaN is not equal to itself
    return max(shares)


def check(shape: tuple[Any, ...], dtype: torch.dtype) -> tuple[bool, str]:
    """Return whether all results of a shape are right, and a line to print."""
    sq, sk, h, h_k, d, d_v, batch, splits = shape
    if DRY:
        sq, sk, h = sq // 16, sk // 16, min(h, 4 * h_k)
    torch.manual_seed(0)
    sizes = ((sq, h, d), (sk, h_k, d), (sk, h_k, d_v), (sq, h, d_v))
    inputs = tuple(torch.randn(batch, *size, device=DEVICE, dtype=torch.float32).to(dtype) for size in sizes)
    ran: set[int] = set()

    def chosen(q: Tensor, programs: int, group: int, *others: int) -> int:
        number = query_splits(q, programs, group, *others) if splits is None else math.gcd(splits, group)
        ran.add(number)
        return number

    found, same = [], True
    # fp16 has only the causal mask here, since compiling takes most of the time
    few = dtype == torch.float16 and not DRY
    for options, varlen in itertools.product(OPTIONS[1:2] if few else OPTIONS, (False,) if few else (False, True)):
        with patch.object(backward, "query_splits", chosen):
            first, second = (ours(inputs, varlen, **options) for _ in range(2))
        same &= all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        found.append((*worst(first, inputs, **options), f"{'varlen ' if varlen else ''}{options}"))
    share, name, where = max(found)
    outcome = "not the same bits" if not same else "right" if share <= 1 else "WRONG"
    text = f"{sq}x{sk} {h}/{h_k} heads d{d}/{d_v} batch {batch} {str(dtype)[6:]}"
    return outcome == "right", (
        f"{text:46} split by {max(ran):2} {outcome}: {name} has {share:.2f} of the error allowed at {where}"
    )


def main() -> int:
    dtypes = (torch.float16,) if DRY else (torch.bfloat16, torch.float16)
    cases = list(itertools.product(SHAPES, dtypes))
    cases.sort(key=lambda case: case[1] == torch.float16)  # the long ones first
    processes = 1 if DRY else min(len(cases), os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        said = []
        for right, line in pool.map(check, *zip(*cases, strict=True)):
            said.append(right)
            print(line, flush=True)
    print(f"{sum(said)} of {len(said)} shapes are right")
    return 0 if all(said) else 1


if __name__ == "__main__":
    sys.exit(main())
