"""The wall time of `attnbench run` against a loop of `triton.testing.do_bench` over the same cells, on one card.

    python tests/gpu/against_do_bench.py [SEQLEN [TURNS]]

The cells are SDPA's five choices in the default suite, over SEQLEN (1k-64k), forward and backward. Each turn measures
them by attnbench, then by the loop, both as separate commands, start included. The loop has do_bench's defaults, checks
nothing, and reads times only. The last line has the ratio of the wall times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attnbench

CHOICES = {
    "sdpa": None,
    "sdpa-flash": "FLASH_ATTENTION",
    "sdpa-efficient": "EFFICIENT_ATTENTION",
    "sdpa-cudnn": "CUDNN_ATTENTION",
    "sdpa-math": "MATH",
}


def main(seqlen: str = "1k-64k", turns: str = "1") -> None:
    """Measure in turns, and print the seconds of both and their ratio."""
    ours, theirs, cells = 0.0, 0.0, Path(tempfile.mkdtemp()) / "cells.json"
    for turn in range(int(turns)):
        out = cells.with_name(f"{turn}.jsonl")
        command = [sys.executable, "-m", "attnbench", "run", "-b", ",".join(CHOICES), "--seqlen", seqlen]
        ours += seconds_of([*command, "--out", str(out)])
        measured = [record for run in attnbench.load(out).runs for record in run.records if record.status == "ok"]
        cells.write_text(json.dumps([cell_of(record) for record in measured]))
        theirs += seconds_of([sys.executable, __file__, "loop", str(cells)])
        print(f"turn {turn + 1}: {len(measured)} cells; attnbench {ours:.1f} s, do_bench {theirs:.1f} s, so far")
    print(
        f"ratio {ours / theirs:.3f}: attnbench {ours:.1f} s, do_bench {theirs:.1f} s, {turns} x {len(measured)} cells"
    )


def seconds_of(command: list[str]) -> float:
    """Run a command, its output to stderr, and return its wall time."""
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=sys.stderr)
    return time.monotonic() - began


def cell_of(record: attnbench.Record) -> dict[str, Any]:
    """Return the description of a cell for the loop."""
    case, s = record.case, record.case.shape
    return {
        "q": (s.batch, s.nheads, s.seqlen_q, s.headdim),
        "k": (s.batch, s.nheads_k, s.seqlen_k, s.headdim),
        "dtype": {"bf16": "bfloat16", "fp16": "float16"}[case.dtype],
        "causal": case.causal,
        "direction": case.direction,
        "choice": CHOICES[record.backend],
    }


def loop(cells: str) -> None:
    """Time cells by do_bench, one after the other."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    from triton.testing import do_bench

    for cell in json.loads(Path(cells).read_text()):
        options = {
            "dtype": getattr(torch, cell["dtype"]),
            "device": "cuda",
            "requires_grad": cell["direction"] != "fwd",
        }
        q, k, v = (torch.randn(cell[name], **options) for name in ("q", "k", "k"))
        allowed = [getattr(SDPBackend, cell["choice"])] if cell["choice"] else [*SDPBackend.__members__.values()][1:]
        with sdpa_kernel(allowed):

            def forward(causal: bool = cell["causal"], q: Any = q, k: Any = k, v: Any = v) -> Any:
                return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

            try:
                if cell["direction"] == "fwd":
                    do_bench(forward)
                else:
                    out = forward()
                    dout = torch.randn_like(out)
                    do_bench(lambda out=out, dout=dout: out.backward(dout, retain_graph=True), grad_to_none=[q, k, v])
                    del out, dout
            except torch.OutOfMemoryError:  # do_bench also needs a buffer to clear L2
                print("do_bench: no memory for", cell, file=sys.stderr)
                out = dout = None
                torch.cuda.empty_cache()
        del q, k, v, forward


if __name__ == "__main__":
    if sys.argv[1:2] == ["loop"]:
        loop(sys.argv[2])
    else:
        main(*sys.argv[1:])
