"""The facts that the doctor reads: of the host, of the instruments, and that nothing is ever set."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.worker import machine_facts
from attnbench.worker.measure.l2_cache import Flush
from attnbench.worker.measure.sampling import CpuTimer, nothing


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        ({}, "0::/", None),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, "0::/a/b", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n0::/", None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpuacct,cpu:/docker/12", 3.0),
        ({"cpu.max": "garbage"}, "0::/\n9:name=systemd:/", None),
    ],
)
def test_the_container_s_limit(tmp_path: Path, files: dict[str, str], cgroup: str, expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert machine_facts.cpu_limit(cgroup, tmp_path) == expected


def test_the_host_s_facts_can_be_read_here() -> None:
    found = machine_facts.host()
    assert found["load"] >= 0
    assert found["cores"] == os.cpu_count()
    assert json.loads(json.dumps(found)) == found


def test_a_cpu_has_no_facts_of_its_own() -> None:
    assert machine_facts.examine(SimpleNamespace(device=SimpleNamespace(type="cpu"))) == {}  # type: ignore[arg-type]


def test_an_instrument_that_fails_is_a_fact() -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("no\n\nCUPTI")

    assert machine_facts._tried(fails) == {"error": "RuntimeError: no CUPTI"}


def test_the_instruments_are_tried_and_left_as_they_were() -> None:
    """On a CPU, whose timer stands for the events: what lacks here is an error, and nothing else."""
    timer, flush = CpuTimer(), Flush(torch.device("cpu"), 2**20)
    bench: Any = SimpleNamespace(device=flush.buffer.device, events=timer, tracer=None, flush=flush)
    bench.l2_bytes, bench.bandwidth = 2**20, 1e10
    found = machine_facts._instruments(bench)
    assert set(found["events"]) == {"seconds", "l2_cold", "l2_warm"}
    assert found["events"]["seconds"] > 0
    assert {found["events"]["l2_cold"], found["events"]["l2_warm"]} <= {"cold", "warm"}
    assert timer.before is nothing
    assert [set(found[name]) for name in ("graph", "cupti")] == [{"error"}, {"error"}]


def test_nothing_is_ever_set() -> None:
    names = [
        n.attr for n in ast.walk(ast.parse(Path(machine_facts.__file__).read_text())) if isinstance(n, ast.Attribute)
    ]
    asked = [name for name in names if name.startswith("nvml")]
    assert len(asked) > 10
    assert all(name.startswith(("nvmlDeviceGet", "nvmlSystemGet")) for name in asked)
