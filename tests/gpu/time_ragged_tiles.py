"""Time the kernels of backend `triton` on ragged batches with tiles that are not in its tables, on a Hopper GPU.

    python tests/gpu/time_ragged_tiles.py [HEADDIM ...]        default 64 128 256

It prints TFLOP/s of a kernel's matmuls for each headdim, kernel and pattern of lengths: bf16, causal, 32k tokens in
all, nheads x headdim = 2048; the median of triton.testing.do_bench. A backward is timed with its first kernel, delta. A
name such as 64x64x4x3-tra is block_sizes.Blocks: queries, keys, warps, stages; tensor descriptors, resident, ahead.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.getcwd())  # finds attnbench without an installation

import torch
import triton

from attnbench.backends.triton import block_sizes
from attnbench.backends.triton.backward import attention_backward
from attnbench.backends.triton.block_sizes import Blocks, Kernel
from attnbench.backends.triton.forward import attention_forward
from attnbench.backends.triton.problem import varlen_problem
from attnbench.core.lengths import parse_lengths

TOKENS = 32768
CANDIDATES: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {
        64: (
            Blocks(128, 64, 4, 3, True, True),
            Blocks(64, 128, 4, 3, True, True),
            Blocks(64, 64, 4, 3, True, True, True),
            Blocks(64, 64, 4, 3, True, True),
            Blocks(128, 64, 8, 3, True, True),
            Blocks(128, 64, 4, 3),
        ),
        128: (
            Blocks(64, 64, 4, 3, True, True, True),
            Blocks(64, 64, 4, 3, True, True),
            Blocks(128, 64, 8, 3, True, True, True),
            Blocks(128, 64, 8, 3),
        ),
        256: (Blocks(64, 32, 4, 3, True, True, True), Blocks(64, 32, 4, 3, True, True), Blocks(128, 64, 8, 2)),
    },
    "dkdv": {
        64: (Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 3), Blocks(64, 128, 8, 2), Blocks(64, 128, 8, 3)),
        128: (Blocks(64, 128, 8, 2), Blocks(64, 128, 8, 3), Blocks(64, 64, 4, 2), Blocks(32, 128, 8, 3)),
    },
    "dq": {
        64: (Blocks(128, 64, 4, 3, True, False, True), Blocks(64, 64, 4, 3, True, True, True)),
        128: (
            Blocks(64, 64, 4, 3, True, True, True),
            Blocks(128, 64, 8, 3, True, True, True),
            Blocks(128, 64, 8, 3),
        ),
    },
}
MATMULS = {"fwd": 2, "dkdv": 4, "dq": 3}  # matmuls of each kernel


def name_of(blocks: Blocks) -> str:
    flags = "".join(letter for letter, on in zip("tra", blocks[4:], strict=True) if on)
    return "x".join(map(str, blocks[:4])) + (f"-{flags}" if flags else "")


def calls(lengths: list[int], headdim: int) -> dict[Kernel, Callable[[], object]]:
    """Return a call of each kernel on sequences of these lengths."""
    nheads = 2048 // headdim
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    q, k, v, dout = (torch.randn(sum(lengths), nheads, headdim, device="cuda").bfloat16() for _ in range(4))
    longest = (max(lengths), max(lengths))
    problem = varlen_problem(q, k, v, (ends, ends), longest, True, (None, None), softcap=0.0, softmax_scale=None)
    q, k, v, dout = (t[None] for t in (q, k, v, dout))
    out, lse = attention_forward(q, k, v, problem)
    saved = (dout, q, k, v, out, lse, problem)
    return {
        "fwd": lambda: attention_forward(q, k, v, problem),
        "dkdv": lambda: attention_backward(*saved, need_dq=False),
        "dq": lambda: attention_backward(*saved, need_dkv=False),
    }


def main(headdims: list[int]) -> None:
    print(torch.cuda.get_device_name())
    usual: Any = block_sizes.candidates
    patterns = [pattern for pattern in parse_lengths("uniform,documents") if pattern is not None]
    for headdim, pattern, mean in itertools.product(headdims, patterns, (1024, 4096)):
        runs = pattern.resolve(TOKENS // mean, mean)
        lengths = [seqlen for count, seqlen, _ in runs for _ in range(count)]
        flops = 2 * 2048 * sum(n * (n + 1) / 2 for n in lengths)  # FLOPs of one matmul
        for kernel, call in calls(lengths, headdim).items():
            said = []
            for blocks in CANDIDATES[kernel].get(headdim, ()):
                block_sizes.candidates = lambda of, *given, one=blocks, own=kernel: (
                    (one,) if of == own else usual(of, *given)
                )
                ms = triton.testing.do_bench(call, warmup=10, rep=40, return_mode="median")
                said.append(f"{name_of(blocks)} {MATMULS[kernel] * flops / ms / 1e9:.0f}")
            block_sizes.candidates = usual
            print(f"d{headdim} {pattern.text} {mean} {kernel}: {'  '.join(said)}", flush=True)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [64, 128, 256])
