"""Measure the loss of long sums on tensor cores: out and dv of kernels against exact ones.

    python tests/gpu/long_sums.py --seqlen 65536,262144,1048576 --kernel efficient,flash,cudnn,fa3
    python tests/gpu/long_sums.py --seqlen 262144,1048576 --full --v-mean 1 --dtype float16

There is one head of headdim 128 with standard normal data; every row and key is compared. For groups of keys and of
rows it prints the relative error in root mean square and the gain, <kernel, exact> / <exact, exact> - 1: roundings
leave the gain near 0, sums that are too small make it negative. judge/truncation.py has the results.
"""

from __future__ import annotations

import argparse
import itertools
import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
HEADDIM = 128
SCORES = 2**31  # most scores computed at a time
TERMS = 2**16  # terms of a sum in float32
EDGES = (0, 16, 256, 4096, 16384, 65536, 262144)


def exact_results(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return out and dv in float64, (seqlen, headdim) each, from probabilities in float32."""
    q, k, v, dout = (t.float() for t in (q, k, v, dout))
    seqlen, places = len(q), torch.arange(len(q), device=q.device)
    out, dv = (torch.zeros_like(t, dtype=torch.float64) for t in (q, v))
    for rows in places.split(max(256, min(2048, SCORES // seqlen))):
        end = int(rows[-1]) + 1 if causal else seqlen
        p = (q[rows] @ k[:end].T) / math.sqrt(HEADDIM)
        if causal:
            p.masked_fill_(places[:end] > rows[:, None], -math.inf)
        p.sub_(p.amax(1, keepdim=True)).exp_()
        p /= p.sum(1, keepdim=True, dtype=torch.float64).float()
        for keys in places[:end].split(TERMS):
            out[rows] += (p[:, keys] @ v[keys]).double()
        dv[:end] += (p.T @ dout[rows]).double()
    return out, dv


def kernel_results(kernel: str, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return out and dv of a kernel, (seqlen, headdim) each."""
    q, k, v = (t[None, None].detach().requires_grad_() for t in (q, k, v))
    if kernel == "fa3":
        from flash_attn_interface import flash_attn_func

        out = flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal)
        out = (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    else:
        with sdpa_kernel(KERNELS[kernel]):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    (dv,) = torch.autograd.grad(out, v, dout[None, None])
    return out[0, 0].detach().double(), dv[0, 0].double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", default="65536,262144")
    parser.add_argument("--kernel", default="efficient,flash,cudnn")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument("--v-mean", type=float, default=0.0)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    for seqlen in map(int, given.seqlen.split(",")):
        generator = torch.Generator(given.device).manual_seed(1)
        size, dtype = (seqlen, HEADDIM), getattr(torch, given.dtype)
        inputs = [torch.randn(size, device=given.device, generator=generator) for _ in range(4)]
        inputs[2] += given.v_mean
        inputs = [t.to(dtype) for t in inputs]
        exact = exact_results(*inputs, causal=not given.full)
        edges = [*(edge for edge in EDGES if edge < seqlen), seqlen]
        for kernel in given.kernel.split(","):
            for name, found, true in zip(
                ("out", "dv"), kernel_results(kernel, *inputs, causal=not given.full), exact, strict=True
            ):
                print(f"{kernel} {seqlen} {name}, from: error, gain", end="")
                for start, end in itertools.pairwise(edges):
                    x, y = found[start:end], true[start:end]
                    error, gain = (x - y).norm() / y.norm(), (x * y).sum() / y.square().sum() - 1
                    print(f"; {start}: {float(error):.1e}, {float(gain):+.1e}", end="")
                print(flush=True)


if __name__ == "__main__":
    main()
