"""A GPU that another process uses: nothing is measured unasked, and what is measured says first not to believe it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

LOAD = """
import sys, time, torch
time.sleep(float(sys.argv[1]))
a = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
a @ a
torch.cuda.synchronize()
print("computing", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""
RUN = ("run", "-b", "sdpa-flash,sdpa-cudnn", "--seqlen", "1k,4k", "--headdim", "128", "--causal", "--pass", "fwd")
DOUBT = "Nothing here can be believed: another process used"


@contextmanager
def load(after: float = 0.0) -> Iterator[None]:
    """Multiply matrices on the first GPU in another process, from some seconds on."""
    command = [sys.executable, "-c", LOAD, str(after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if not after:
                assert process.stdout
                process.stdout.readline()
                time.sleep(1)
            yield
        finally:
            process.kill()


def attnbench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "attnbench", *words], cwd=folder, capture_output=True, text=True)
    print(words, done.returncode, done.stderr[-1500:], done.stdout[:700], sep="\n")
    return done


def test_a_busy_gpu_is_refused_and_told_first(tmp_path: Path) -> None:
    with load():
        for words in (RUN, ("check", "sdpa-flash"), ("recommend", "-b", "sdpa-flash", "--seqlen", "1k")):
            refused = attnbench(tmp_path, *words)
            assert refused.returncode == 2
            assert "another process uses cuda:0" in refused.stderr
            assert "--allow-busy" in refused.stderr
        assert attnbench(tmp_path, "doctor", "--quick").returncode == 3
        allowed = attnbench(tmp_path, *RUN, "--allow-busy", "--out", "busy.jsonl")
    assert allowed.returncode in (0, 5), "kernels of others can look as if work were outside of the timed launch"
    for shown in (allowed, attnbench(tmp_path, "report", "busy.jsonl"), attnbench(tmp_path, "recommend", "busy.jsonl")):
        assert " ".join(shown.stdout.split()).startswith(DOUBT)
        assert "*" not in shown.stdout.partition("TFLOP/s")[2].partition("Peak memory")[0].replace("* best", "")


def test_load_that_begins_later_is_told_first(tmp_path: Path) -> None:
    with load(after=8.0):
        late = attnbench(tmp_path, *RUN, "--rounds", "4", "--out", "late.jsonl")
    assert re.match(r"(Nothing here can|\d+ of \d+ figures cannot) be believed", late.stdout.lstrip())


def test_a_free_gpu_is_not_doubted(tmp_path: Path) -> None:
    free = attnbench(tmp_path, *RUN, "--out", "free.jsonl")
    assert free.returncode == 0
    assert "believed" not in free.stdout
    assert "sdpa-cudnn" in attnbench(tmp_path, "recommend", "free.jsonl").stdout


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_other_gpu_of_a_host_is_free(tmp_path: Path) -> None:
    with load():
        other = attnbench(tmp_path, *RUN, "--device", "cuda:1", "--out", "other.jsonl")
        assert attnbench(tmp_path, *RUN, "--device", "cuda:0").returncode == 2
    assert other.returncode == 0
    assert "believed" not in other.stdout
