"""A kernel on a CPU that takes all memory ends as `oom`, while the machine still has most of its memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core import cgroups
from attnbench.worker import memory_cap

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
    import os
    if not (child := os.fork()):
        held = []
        try:
            while True:
                held.append(bytearray(2**24))
        except MemoryError:
            os._exit(3)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3:
        raise MemoryError

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
from worker_here import quick_cpu
memory_cap.cgroups.machine_free = lambda: 2**27
device = Device("cpu", 0, "CPU", 2**40, 2**40, matmul={"fp32": 1e10}, copy=1e10)
for name in sys.argv[2:]:
    worker = Worker()
    worker.answer({"op": "load", "name": name, "spec": f"{sys.argv[1]}:{name}"})
    job = Job(Case(Shape(1, 64, 64, 2, 2, 32, 32), "fp32", "fwd"), name, 0, Forecast(0.1, 0.01, 2**20))
    with quick_cpu():
        record = worker.run(job, Policy(max_seconds=0.01, min_seconds=0.0), device)
    print(json.dumps([record.status, record.reason]))
"""


def test_a_kernel_that_takes_all_memory(tmp_path: Path) -> None:
    """A kernel that takes all memory is an oom; in one process each cap ends with its job, and memory is free again."""
    (tmp_path / "mine.py").write_text(MINE)
    names = ("takes_all", "takes_all_in_python", "takes_all_in_a_child", "plain")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, tmp_path / "mine.py", *names],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for status, _ in ended] == ["oom", "oom", "oom", "ok"], done.stderr
    for (_, reason), rest in zip(
        ended,
        (
            # Torch may lack memory for the tensor or for its bookkeeping.
            r"(RuntimeError: no memory for 16 MiB \(mine.py:7 in takes_all\)|MemoryError: std::bad_alloc.*)",
            r"MemoryError \(mine.py:12 in takes_all_in_python\)",
            r"MemoryError \(mine.py:24 in takes_all_in_a_child\)",
        ),
        strict=False,
    ):
        cap = "115 MiB, 90% of the memory that was free"
        assert re.fullmatch(rf"asked for more than {cap}; the plan forecast 1.0 MiB: {rest}", reason), reason


def test_the_tightest_limit_in_force_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "90% of the rest of the memory limit of the control group (cgroup)"
    monkeypatch.setattr(cgroups, "free_memory", lambda: None)
    monkeypatch.setattr(memory_cap.cgroups, "machine_free", lambda: 10**9)
    assert memory_cap.cap_of_a_job() == (9 * 10**8, "90% of the memory that was free")
    assert memory_cap.cap_of_a_job(ranks=2) == (45 * 10**7, "90% of the memory that was free")
    assert memory_cap.cap_of_a_job(memory=10**6) == (10**6, "the memory that was asked for")
    monkeypatch.setattr(cgroups, "free_memory", lambda: 10**10)
    assert memory_cap.cap_of_a_job() == (9 * 10**8, "90% of the memory that was free")
    monkeypatch.setattr(cgroups, "free_memory", lambda: 10**8)
    assert memory_cap.cap_of_a_job() == (9 * 10**7, group)
    assert memory_cap.cap_of_a_job(ranks=2) == (45 * 10**6, group)
    assert memory_cap.cap_of_a_job(memory=10**6) == (10**6, "the memory that was asked for")
    monkeypatch.setattr(cgroups, "free_memory", lambda: None)
    monkeypatch.setattr(memory_cap.cgroups, "machine_free", lambda: None)
    assert memory_cap.cap_of_a_job() is None


@pytest.mark.parametrize("option", ["-d", "-v"])
def test_a_limit_of_the_shell_is_named(option: str) -> None:
    code = "from attnbench.worker.memory_cap import cap_of_a_job; print(cap_of_a_job())"
    command = f"ulimit {option} 400000 && exec {sys.executable} -c '{code}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    found = re.fullmatch(rf"(\d+) MiB, the rest of the limit by `ulimit {option}`\n", done.stdout)
    assert found, done
    assert 0 < int(found[1]) < 391


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
