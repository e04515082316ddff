"""A GPU on which another process computes: refused, or measured if allowed, and reported first in both cases."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busy_process import busy_process

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

SHAPES = ("-b", "sdpa-flash,sdpa-cudnn", "--seqlen", "1k,4k", "--headdim", "128", "--causal", "--pass", "fwd")


def attnbench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attnbench", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def first_line(text: str) -> str:
    return next(line for line in text.splitlines() if line.strip())


def test_a_gpu_in_use(tmp_path: Path) -> None:
    with busy_process():
        for words in (
            ("run", *SHAPES),
            ("recommend", *SHAPES),
            ("check", "sdpa-flash"),
            ("profile", "-b", "sdpa-flash"),
        ):
            refused = attnbench(tmp_path, *words)
            print(refused.stderr)
            assert refused.returncode == 2
            assert refused.stderr.splitlines()[-1].startswith("attnbench: another process uses cuda:0 (")
            assert refused.stderr.endswith("with --allow-busy\n")
        assert not [*tmp_path.rglob("*.jsonl")]
        allowed = attnbench(tmp_path, "run", *SHAPES, "--allow-busy", "--out", "busy.jsonl")
        doctor = attnbench(tmp_path, "doctor", "--quick")
    print(allowed.stdout, allowed.stderr, doctor.stdout)
    assert allowed.returncode in (0, 5), "kernels of others can look as if work were outside of the timed launch"
    assert first_line(allowed.stdout).startswith("Nothing here can be believed: another process used cuda:0")
    assert "* best" not in allowed.stdout.partition("Peak memory")[0]
    assert "Nothing here can be believed" in allowed.stderr
    assert json.loads((tmp_path / "busy.jsonl").read_text().splitlines()[0])["environment"]["device"]["busy"] > 0.5
    assert doctor.returncode == 3


def test_a_free_gpu_is_not_accused(tmp_path: Path) -> None:
    """A free GPU is not reported as busy by the second of two runs in succession."""
    for name in ("one", "two"):
        result = attnbench(tmp_path, "run", *SHAPES, "--out", f"{name}.jsonl")
        print(result.stdout, result.stderr)
        assert result.returncode == 0
        assert "believed" not in result.stdout + result.stderr
    last = json.loads((tmp_path / "two.jsonl").read_text().splitlines()[-1])
    assert last["measurements"]["busy"]["values"] == [0.0]


def test_work_that_begins_after_the_start(tmp_path: Path) -> None:
    """Other work that begins after the start is found at the last job, reported first, and prevents a ranking."""
    command = [sys.executable, "-m", "attnbench", "run", *SHAPES, "--rounds", "6", "--out", "late.jsonl"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        ends = time.monotonic() + 200
        while not (path := tmp_path / "late.jsonl").exists() or len(path.read_text().splitlines()) < 3:
            assert time.monotonic() < ends
            assert process.poll() is None
            time.sleep(0.2)
        with busy_process():
            out, err = process.communicate(timeout=400)
    print(out, err)
    assert first_line(out).startswith("Nothing here can be believed: ")
    assert "* best" not in out.partition("Peak memory")[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_other_gpu_of_a_host_is_free(tmp_path: Path) -> None:
    with busy_process():
        busy, free = (
            attnbench(tmp_path, "run", *SHAPES, "--device", f"cuda:{i}", "--out", f"{i}.jsonl") for i in (0, 1)
        )
    print(busy.stderr, free.stdout, free.stderr)
    assert (busy.returncode, free.returncode) == (2, 0)
    assert "believed" not in free.stdout + free.stderr
