"""The scripts of examples/, run as a person would in a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUN = "results/20261121-055556-instruments-nvidia-h200.jsonl.gz"


def run_example(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path.relative_to(ROOT)), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_something_for_a_run_file(path: Path) -> None:
    assert run_example(path, RUN).strip()


def test_the_fastest_backends() -> None:
    lines = run_example(ROOT / "examples" / "fastest_backends.py", RUN).splitlines()
    assert lines[0].startswith("1 runs, ")
    assert lines[1] == "latency is in s, tflops in TFLOP/s"
    assert all("TFLOP/s" in line for line in lines[2:])
    assert len(lines) > 2
