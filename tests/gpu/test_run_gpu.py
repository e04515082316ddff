"""`attnbench run` on a GPU, as a user runs it: right cells, every failure, memory outside torch's allocator."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench.core.record import Record
from attnbench.results import run_file
from attnbench.run.suite import load_suite

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

OWN = """
import ctypes, os, torch
import torch.nn.functional as F

def right(q, k, v, *, causal, softmax_scale):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)

def zeros(q, k, v, *, causal, softmax_scale):
    return torch.zeros_like(q)

def unwritten(q, k, v, *, causal, softmax_scale):
    out = right(q, k, v, causal=causal, softmax_scale=softmax_scale)
    result = torch.empty_like(out)
    result[:, :-1] = out[:, :-1]
    return result

def illegal(q, k, v, *, causal, softmax_scale):
    if q.shape[1] == 1024:
        q.view(-1)[torch.full((8,), 2**40, device=q.device)]
    return right(q, k, v, causal=causal, softmax_scale=softmax_scale)

def too_large(q, k, v, *, causal, softmax_scale):
    torch.empty(2**43, dtype=torch.int8, device=q.device)

def hangs(q, k, v, *, causal, softmax_scale):
    for _ in range(100_000):
        torch.cuda._sleep(2**31 - 1)
    return q

_blocks = []

def outside(q, k, v, *, causal, softmax_scale):
    if not _blocks:
        runtime = ctypes.CDLL(next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l))
        block = ctypes.c_void_p()
        assert runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(512 * 2**20)) == 0
        _blocks.append(block)
    return right(q, k, v, causal=causal, softmax_scale=softmax_scale)
"""


def measure(tmp_path: Path, name: str, *options: str) -> list[Record]:
    (tmp_path / "own.py").write_text(OWN)
    suite = tmp_path / "short.yaml"
    suite.write_text("axes: {seqlen: '1k,2k', headdim: 64, causal: true}\npolicy: {timeout_s: 20}\n")
    out = tmp_path / f"{name}.jsonl"
    command = [sys.executable, "-m", "attnbench", "run", "--suite", str(suite), "-b", f"{tmp_path}/own.py:{name}"]
    done = subprocess.run([*command, "--out", str(out), *options], cwd=tmp_path, capture_output=True, text=True)
    print(done.stderr[-3000:])
    run, problems = run_file.read(out)
    assert not problems
    assert len(run.records) == len(run.plan)
    return sorted(run.records, key=lambda r: r.case.shape.seqlen_k)


def test_quick_suite_takes_the_time_that_it_states_and_every_cell_is_right(tmp_path: Path) -> None:
    out = tmp_path / "quick.jsonl"
    began = time.monotonic()
    command = [sys.executable, "-m", "attnbench", "run", "--suite", "quick", "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    took = time.monotonic() - began
    print(done.stdout, f"{took:.1f} s")
    run, _ = run_file.read(out)
    assert {r.status for r in run.records} <= {"ok", "skipped"}
    assert sum(r.status == "ok" for r in run.records) >= 12
    stated = re.search(r"some (\d+) seconds", load_suite("quick").description)
    assert stated
    assert took < 1.2 * int(stated[1])


@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_a_persons_function_is_measured(tmp_path: Path, direction: str) -> None:
    records = measure(tmp_path, "right", "--pass", direction)
    assert [r.status for r in records] == ["ok", "ok"]
    assert all(r.timer == "events" and len(r.measurements["time"].values) >= 10 for r in records)


@pytest.mark.parametrize("name", ["zeros", "unwritten"])
def test_wrong_results_are_not_ranked(tmp_path: Path, name: str) -> None:
    records = measure(tmp_path, name)
    assert [r.status for r in records] == ["wrong", "wrong"]
    assert all("time" not in r.measurements and r.accuracy for r in records)
    if name == "unwritten":
        assert all("never written" in (r.reason or "") for r in records)


def test_an_illegal_address_costs_its_record_alone(tmp_path: Path) -> None:
    first, second = measure(tmp_path, "illegal")
    assert first.status == "failed"
    assert "CUDA error" in (first.reason or "") or "crashed" in (first.reason or "")
    assert second.status == "ok"


def test_out_of_memory_is_a_record(tmp_path: Path) -> None:
    records = measure(tmp_path, "too_large")
    assert [r.status for r in records] == ["oom", "oom"]
    assert all("Tried to allocate" in (r.reason or "") for r in records)


def test_a_hang_is_a_timeout(tmp_path: Path) -> None:
    records = measure(tmp_path, "hangs", "--seqlen", "1k")
    assert [r.status for r in records] == ["timeout"]


def test_memory_outside_torchs_allocator_counts(tmp_path: Path) -> None:
    for record in measure(tmp_path, "outside"):
        torch_peak, seen = (record.measurements[n].values[0] for n in ("memory_peak", "memory_driver"))
        assert seen - torch_peak >= 512 * 2**20
        assert seen - torch_peak < 576 * 2**20
