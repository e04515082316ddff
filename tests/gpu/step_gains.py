"""Compare the gain of a faster attention in steps of three families of models with its prediction, on a GPU.

    python tests/gpu/step_gains.py [FOLDER]

It needs some 3 minutes, transformers and flash-attn. The exit code is 1 unless each step has three right
implementations that ran their own kernels, and each gain is within 3 % of the step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

AGREES, LEAST = 0.03, 3
STEPS = (  # grouped heads, a sliding window that hides keys, MLA
    ("llama-3.1-8b", "--layers", "4", "--phase", "prefill,train", "--seqlen", "4k"),
    ("mistral-7b", "--layers", "4", "--phase", "prefill,train", "--seqlen", "8k"),
    ("deepseek-v3", "--layers", "3", "--phase", "prefill,train", "--seqlen", "4k"),
)
IMPLEMENTATIONS = "eager,sdpa,sdpa-cudnn,flash_attention_2,flex_attention"


def main(folder: Path) -> int:
    failed = False
    for model, *options in STEPS:
        out = folder / f"step-{model}.jsonl"
        command = [sys.executable, "-m", "attnbench", "step", model, *options, "-b", IMPLEMENTATIONS, "--out", str(out)]
        done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout or '{"steps": []}')["steps"]
        failed |= done.returncode != 0
        for case in dict.fromkeys(row["case"] for row in rows):
            ours = [row for row in rows if row["case"] == case and row["off"] is not None]
            off = [f"{row['backend']} {row['off']:+.1%} (share {row['attention_share']:.0%})" for row in ours]
            is_off = len(ours) < LEAST or any(abs(row["off"]) > AGREES for row in ours)
            failed |= is_off
            print("OFF" if is_off else "ok ", model, *dict.fromkeys(row["phase"] for row in ours), *off, sep="  ")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
