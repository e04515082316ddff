"""A kernel on a CPU that takes all memory ends as `oom` while the machine has most of its memory left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.record import Forecast, Job
from attnbench.worker import memory_cap
from needs_ray import needs_shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts memory on Linux only")

MINE = """
import torch

def takes_all(q, k, v, *, causal, softmax_scale):
    held = []
    while True:
        held.append(torch.ones(2**22))

def takes_all_in_python(q, k, v, *, causal, softmax_scale):
    held = []
    while True:
        held.append([0.0] * 2**20)

def takes_all_in_a_child(q, k, v, *, causal, softmax_scale):
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(child, [0])

def child(_):
    held = []
    while True:
        held.append(bytearray(2**24))

def plain(q, k, v, *, causal, softmax_scale):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * softmax_scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)
"""
DRIVER = """
import json, sys
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job
from attnbench.worker import memory_cap
from attnbench.worker.serve import Worker
memory_cap.ROOM = 2**28
device = Device("cpu", 0, "CPU", 2**40, 2**40, matmul={"fp32": 1e10}, copy=1e10)
for name in sys.argv[2:]:
    worker = Worker()
    worker.answer({"op": "load", "name": name, "spec": f"{sys.argv[1]}:{name}"})
    job = Job(Case(Shape(1, 64, 64, 2, 2, 32, 32), "fp32", "fwd"), name, 0, Forecast(0.1, 0.01, 2**20))
    record = worker.run(job, Policy(max_seconds=0.01, min_seconds=0.0), device)
    print(json.dumps([record.status, record.reason]))
"""


def test_a_kernel_that_takes_all_memory(tmp_path: Path) -> None:
    """One process runs all, so each cap must be gone after its job, and the worker must have its memory back."""
    needs_shared_memory()
    (tmp_path / "mine.py").write_text(MINE)
    names = ("takes_all", "takes_all_in_python", "takes_all_in_a_child", "plain")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, tmp_path / "mine.py", *names], capture_output=True, text=True, timeout=120
    )
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for status, _ in ended] == ["oom", "oom", "oom", "ok"], done.stderr
    for (_, reason), rest in zip(
        ended,
        (
            # torch may find no memory for the tensor, or for what it notes of it
            r"(RuntimeError: no memory for 16 MiB \(mine.py:7 in takes_all\)|MemoryError: std::bad_alloc.*)",
            r"MemoryError \(mine.py:12 in takes_all_in_python\)",
            r"MemoryError \(mine.py:17 in takes_all_in_a_child\)",
        ),
        strict=False,
    ):
        assert re.fullmatch(rf"took more than \d+ MiB; the plan forecast 1.0 MiB: {rest}", reason), reason


def a_job(seqlen: int, forecast: int) -> Job:
    return Job(Case(Shape(2, seqlen, seqlen, 4, 4, 64, 64), "fp32", "fwd"), "own", 0, Forecast(0.1, 0.01, forecast))


def test_the_cap_has_room_for_what_was_forecast_and_for_the_plainest_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_cap, "host_free", lambda: 2**40)
    small = memory_cap.most_bytes(a_job(8, 0))
    assert small is not None
    assert small >= memory_cap.ROOM
    assert memory_cap.most_bytes(a_job(8, 2**30)) == small + 2**31
    scores = 4 * 2 * 4 * 2**24
    assert (memory_cap.most_bytes(a_job(4096, 0)) or 0) >= memory_cap.ROOM + 6 * scores


def test_the_cap_leaves_the_machine_some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_cap, "host_free", lambda: 10**9)
    assert memory_cap.most_bytes(a_job(4096, 2**40)) == 9 * 10**8
    monkeypatch.setattr(memory_cap, "host_free", lambda: None)
    assert memory_cap.most_bytes(a_job(8, 0)) is None


def test_a_limit_of_the_person_stands() -> None:
    code = """
import resource
from attnbench.worker.memory_cap import capped
resource.setrlimit(resource.RLIMIT_DATA, (2**32, 2**33))
with capped(2**40):
    print(resource.getrlimit(resource.RLIMIT_DATA))
with capped(None):
    print(resource.getrlimit(resource.RLIMIT_DATA))
print(resource.getrlimit(resource.RLIMIT_DATA))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str((2**32, 2**33))] * 3, done.stderr
