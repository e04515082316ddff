"""Facts of the host: they can be read here, and cgroup quotas of both versions are understood."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from attnbench.run import host_facts
from attnbench.run.host_facts import cpu_limit, cpu_load, read_host_facts


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
def test_cpu_limit_is_the_strictest_cgroup_quota(
    tmp_path: Path, files: dict[str, str], cgroup: str, expected: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cpu_limit(cgroup, tmp_path) == expected


def test_host_facts_can_be_read_here() -> None:
    found = read_host_facts()
    assert found["load"] >= 0
    assert found["cores"] == os.cpu_count()
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("average", "now", "load"),
    [
        (0.5, None, 0.5),  # of 4 cores: not looked at any further
        (3.6, 0.9, 3.6),  # other work goes on
        (3.6, 0.05, 0.2),  # a run that has just ended is in the average of the last minute
        (3.6, None, 3.6),  # not Linux
    ],
)
def test_the_load_of_a_cpu_is_not_that_of_the_run_before(
    monkeypatch: pytest.MonkeyPatch, average: float, now: float | None, load: float
) -> None:
    times, clock = iter([1000.0, 1000.0 + 0.4 * (now or 0.0)]), iter([50.0, 50.1])
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(host_facts, "NOW", 0.0)
    monkeypatch.setattr(host_facts.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(host_facts, "core_seconds", lambda: None if now is None else next(times))
    assert cpu_load() == pytest.approx(load)
