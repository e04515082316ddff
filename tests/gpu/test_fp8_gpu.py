"""fp8 on a GPU that has units for it: `attnbench run` as a user runs it, and the fp8 ceiling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.results import run_file

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs fp8 hardware"
    ),
]


def test_every_backend_that_takes_fp8_is_right(tmp_path: Path) -> None:
    out = tmp_path / "fp8.jsonl"
    command = [sys.executable, "-m", "attnbench", "run", "--dtype", "fp8", "--seqlen", "1k,16k", "--headdim", "64,128"]
    done = subprocess.run([*command, "--pass", "fwd", "--out", str(out)], cwd=tmp_path, capture_output=True, text=True)
    print(done.stdout, done.stderr[-3000:])
    run, problems = run_file.read(out)
    assert not problems
    measured = [r for r in run.records if r.status != "skipped"]
    assert {r.status for r in measured} == {"ok"}, [(r.backend, r.reason) for r in measured if r.status != "ok"]
    assert "triton" in {r.backend for r in measured}
    ceilings = [v for r in measured if (m := r.measurements.get("ceiling_matmul")) for v in m.values]
    assert ceilings
