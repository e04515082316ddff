"""Time the forward of backend `gluon` with tiles that are not in its tables, on a Hopper GPU.

    python tests/gpu/time_gluon_tiles.py [HEADDIM ...]        default 64 128

It prints TFLOP/s with exact FLOPs for each length and mask: bf16, 16k tokens in all, nheads x headdim = 2048; CUDA
events, L2 flushed, the launch hidden behind a spin, bursts with pauses, the median of eight. A name such as 128x2x3x2
is `ForwardTiles`: keys, stages, groups, blocks. Results are compared with the results of the table's tiles.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

sys.path.insert(0, os.getcwd())  # finds attnbench without an installation

import torch
from torch import Tensor

from attnbench.backends.gluon import forward
from attnbench.backends.gluon.forward_tiles import ForwardTiles
from attnbench.backends.triton.problem import dense_problem

CANDIDATES = {
    64: (
        ForwardTiles(128, 2, 3, 2, 160),
        ForwardTiles(128, 2, 3, 1, 160),
        ForwardTiles(128, 4, 3, 2, 160),
        ForwardTiles(128, 4, 2, 2, 240),
    ),
    128: (ForwardTiles(128, 2, 2, 2, 240), ForwardTiles(128, 2, 2, 1, 240), ForwardTiles(64, 4, 2, 1, 240)),
    256: (ForwardTiles(64, 2, 2, 1, 240),),
}


def median_ms(call: Callable[[], object], flushed: Tensor, samples: int = 8) -> float:
    """Return the median milliseconds of a call."""
    for _ in range(2):
        call()
    taken = []
    for i in range(samples):
        if i % 4 == 0:
            torch.cuda.synchronize()
            time.sleep(0.06)  # the power cap acts within 50 ms
        flushed.zero_()
        torch.cuda._sleep(1_500_000)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken)[samples // 2]


def main(headdims: list[int]) -> None:
    print(torch.cuda.get_device_name())
    flushed = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    usual = forward.choose_forward_tiles
    for d in headdims:
        for seqlen, batch in ((16384, 1), (4096, 4), (1024, 16)):
            for causal in (True, False):
                nheads = 2048 // d
                q, k, v = (torch.randn(batch, seqlen, nheads, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
                problem = dense_problem(q, k, v, causal, (None, None), softcap=0.0, softmax_scale=None)
                flops = 4 * batch * nheads * d * (seqlen * (seqlen + 1) / 2 if causal else seqlen * seqlen)
                forward.choose_forward_tiles = usual
                expected = forward.attention_forward(q, k, v, problem)[0].float()
                said = []
                for tiles in CANDIDATES[d]:
                    forward.choose_forward_tiles = lambda *_, tiles=tiles: tiles
                    difference = (forward.attention_forward(q, k, v, problem)[0].float() - expected).abs().max().item()
                    ms = median_ms(partial(forward.attention_forward, q, k, v, problem), flushed)
                    wrong = "" if difference < 0.02 else f" WRONG by {difference:.2g}"
                    said.append(f"{'x'.join(map(str, tiles[:4]))} {flops / ms / 1e9:.0f}{wrong}")
                print(f"d{d} {seqlen} {'causal' if causal else 'full'}: {'  '.join(said)}", flush=True)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [64, 128])
