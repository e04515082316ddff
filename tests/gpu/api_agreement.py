"""Compare `attnbench.do_bench` and `attnbench.measure` with `attnbench run`, and with Triton's do_bench, on one GPU.

    python tests/gpu/api_agreement.py [CELLS]

It times cells of SDPA's flash implementation by each, in turns, and prints a line for each cell with the ratios to
`run` (for do_bench also in SM cycles). The exit code is 1 where in more than one of twenty cells a ratio is further
from 1 than the uncertainties of both, added in quadrature. A second table has calls for which Triton's do_bench
measures more than the call (docs/python.md).
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

import attnbench
from attnbench import backends
from attnbench.core.case import Case
from attnbench.judge import inputs

LENGTHS, HEADDIMS, CAUSAL = (1024, 2048, 4096, 8192, 16384), (64, 128), (False, True)


def launch(case: Case) -> Any:
    """Return the call that a worker times in a cell of sdpa-flash, on the same inputs."""
    backend = backends.load("sdpa-flash", backends.BACKENDS["sdpa-flash"])
    return backend.prepare(case, inputs.make(case, "cuda:0", 0)).launch


def differing() -> dict[str, Any]:
    """Return description -> call, for calls that Triton's do_bench times together with other work."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    half = {"device": "cuda", "dtype": torch.bfloat16}
    x, y, z = torch.ones(1024, device="cuda"), torch.ones(2**22, device="cuda"), torch.ones(2**26, device="cuda")
    q, k, v = torch.randn(1, 32, 1, 128, **half), *torch.randn(2, 1, 32, 4096, 128, **half)
    a, b = torch.randn(2, 16384, 16384, **half)
    return {
        "add to 4 KiB": lambda: x.add_(1),
        "add to 4 KiB, ten kernels": lambda: [x.add_(1) for _ in range(10)],
        "one query on 4k keys, 32 heads": lambda: sdpa(q, k, v),
        "add to 16 MiB": lambda: y.add_(1),
        "add to 256 MiB": lambda: z.add_(1),
        "matmul of 16k x 16k, bf16": lambda: a @ b,
    }


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
    print(f"{'cell':24} {'run':>10} {'measure':>8} {'do_bench':>8} {'cycles':>8} {'Triton':>8}  known to")
    for seqlen, headdim, causal in shapes:
        ran, again = (
            next(
                cell
                for cell in found.cells
                if (cell.case.shape.seqlen_k, cell.case.shape.headdim, cell.case.causal) == (seqlen, headdim, causal)
            )
            for found in measured
        )
        call = launch(ran.case)
        timing = attnbench.do_bench(call, return_mode="timing")
        theirs = do_bench(call, return_mode="median") / 1e3
        seconds = ran.value("latency") or math.nan
        half = math.hypot(ran.value("ci") or math.inf, timing.uncertainty or math.inf)
        cycles = timing.latency * (timing.clock or math.nan) / (ran.value("cycles") or math.nan)
        ratios = [(again.value("latency") or math.nan) / seconds, timing.latency / seconds, cycles, theirs / seconds]
        off += any(abs(math.log(ratio)) > half for ratio in ratios[:2])
        print(
            f"{seqlen:6} d{headdim:<4} {'causal' if causal else 'full':8} {seconds * 1e6:10.1f} us",
            *(f"{ratio:8.4f}" for ratio in ratios),
            f" {half:.2%}",
        )
    print(f"{off} of {cells} further from 1 than both uncertainties")
    print(f"{'call':32} {'Triton':>12}  attnbench")
    for name, call in differing().items():
        print(f"{name:32} {do_bench(call, return_mode='median') * 1e3:9.2f} us ", end=" ")
        print(attnbench.do_bench(call, return_mode="timing"))
    return int(off > cells / 20)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
