"""No cheat of tests/wrong_kernels/cheats.py is proven on a GPU, and the right kernel is: `attnbench run --untrusted`.

One command judges them all, as in a loop; `python tests/gpu/test_cheats_gpu.py` prints the verdicts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "wrong_kernels"))
import cheats

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
CASE = ["--seqlen", "1k", "--nheads", "8", "--headdim", "64", "--batch", "1", "--causal", "--pass", "fwd"]
NAMES = ["attention", *(name for name, means in cheats.CHEATS.items() if cheats.STRIDES not in means)]


def verdicts(names: list[str], out: Path, dtype: str = "bf16") -> dict[str, dict[str, Any]]:
    """Return function of cheats.py -> its row of the report."""
    backends = ",".join(f"{cheats.__file__}:{name}" for name in names)
    command = [sys.executable, "-m", "attnbench", "run", "-b", backends, "--untrusted", *CASE, "--dtype", dtype]
    done = subprocess.run(
        [*command, "--json", "--time-limit", "9m", "--out", str(out)], stdout=subprocess.PIPE, text=True
    )
    return {row["backend"]: row for row in json.loads(done.stdout)}


@pytest.mark.timeout(590)
def test_no_cheat_is_proven(tmp_path: Path) -> None:
    found = verdicts(NAMES, tmp_path / "run.jsonl")
    assert {name for name, row in found.items() if row["status"] == "ok"} == {"attention"}


if __name__ == "__main__":
    for name, row in verdicts(NAMES, Path(sys.argv[1]), *sys.argv[2:]).items():
        print(f"{name:28} {row['status']:8} {row['failing']:12} {row['reason'] or ''}")
