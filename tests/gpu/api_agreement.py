"""Compare `attnbench.do_bench` and `attnbench.measure` with `attnbench run`, and with Triton's do_bench, on one GPU.

    python tests/gpu/api_agreement.py [CELLS]

It times cells of SDPA's flash implementation by each, in turns, prints a line for each cell with the ratios to `run`,
and ends with 1 where a ratio is further from 1 than the uncertainties of both, added in quadrature, in more than one of
twenty cells.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnbench

LENGTHS, HEADDIMS, CAUSAL = (1024, 2048, 4096, 8192, 16384), (64, 128), (False, True)


def launch(seqlen: int, headdim: int, causal: bool) -> Any:
    """Return a call of the same cell: 16k tokens, 2048 / headdim heads, bf16."""
    batch, heads = 16384 // seqlen, 2048 // headdim
    q, k, v = torch.randn(3, batch, seqlen, heads, headdim, device="cuda", dtype=torch.bfloat16).transpose(2, 3)

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def main(cells: int) -> int:
    from triton.testing import do_bench

    folder = Path(tempfile.mkdtemp())
    axes = ("--seqlen", ",".join(map(str, LENGTHS)), "--headdim", ",".join(map(str, HEADDIMS)), "--dtype", "bf16")
    command = [sys.executable, "-m", "attnbench", "run", "-b", "sdpa-flash", "--pass", "fwd", *axes]
    subprocess.run([*command, "--out", str(folder / "run.jsonl")], check=True, stdout=subprocess.DEVNULL)
    shown = {"causal": [*CAUSAL], "direction": "fwd", "dtype": "bf16", "progress": False}
    measured = (
        attnbench.load(folder / "run.jsonl"),
        attnbench.measure("sdpa-flash", seqlen=[*LENGTHS], headdim=[*HEADDIMS], out=folder / "b.jsonl", **shown),
    )
    shapes = itertools.islice(itertools.product(LENGTHS, HEADDIMS, CAUSAL), cells)
    off = 0
    print(f"{'cell':24} {'run':>10} {'measure':>8} {'do_bench':>8} {'Triton':>8}  known to")
    for seqlen, headdim, causal in shapes:
        ran, again = (
            next(
                cell
                for cell in found.cells
                if (cell.case.shape.seqlen_k, cell.case.shape.headdim, cell.case.causal) == (seqlen, headdim, causal)
            )
            for found in measured
        )
        call = launch(seqlen, headdim, causal)
        timing = attnbench.do_bench(call, return_mode="timing")
        theirs = do_bench(call, return_mode="median") / 1e3
        seconds = ran.value("latency") or math.nan
        half = math.hypot(ran.value("ci") or math.inf, timing.uncertainty or math.inf)
        ratios = [(again.value("latency") or math.nan) / seconds, timing.latency / seconds, theirs / seconds]
        off += any(abs(math.log(ratio)) > half for ratio in ratios[:2])
        print(
            f"{seqlen:6} d{headdim:<4} {'causal' if causal else 'full':8} {seconds * 1e6:10.1f} us",
            *(f"{ratio:8.4f}" for ratio in ratios),
            f" {half:.2%}",
        )
    print(f"{off} of {cells} further from 1 than both uncertainties")
    return int(off > cells / 20)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
