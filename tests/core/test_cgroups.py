"""Limits of control groups of both versions: the strictest limit counts, and the page cache is free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.core import cgroups
from attnbench.core.cgroups import cpu_limit, free_memory

GIB = 2**30
CFS = {"quota": "50000", "period": "100000"}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        ({}, "0::/", None),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, "0::/a/b", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n0::/", None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpuacct,cpu:/docker/12", 3.0),
        ({f"cpu,cpuacct/cpu.cfs_{name}_us": text for name, text in CFS.items()}, "3:cpu,cpuacct:/x", 0.5),
        ({"cpu.max": "garbage"}, "0::/\n9:name=systemd:/", None),
    ],
)
def test_cpu_limit_is_the_strictest_cgroup_quota(
    tmp_path: Path, files: dict[str, str], cgroup: str, expected: float | None
) -> None:
    write(tmp_path, files)
    assert cpu_limit(cgroup, tmp_path) == expected


def test_a_control_group_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"cpu.max": "150000 100000"})
    own = tmp_path / "cgroup"
    own.write_bytes(b"0::/caf\xe9\n")
    monkeypatch.setattr(cgroups, "OWN", own)
    assert cpu_limit(root=tmp_path) == 1.5  # of the group above


V1, CGROUP_1 = "memory/docker/12/memory", "5:memory:/docker/12"


def level(place: str = "", stat: str = "", **sizes: object) -> dict[str, str]:
    """Return the files of a level of version 2: memory.max, memory.current and the like, and memory.stat."""
    return {f"{place}memory.{name}": str(text) for name, text in {**sizes, "stat": stat}.items()}


def level_1(stat: str, limit: int) -> dict[str, str]:
    return {f"{V1}.limit_in_bytes": str(limit), f"{V1}.usage_in_bytes": str(GIB), f"{V1}.stat": stat}


CACHE, SLAB = f"anon {GIB}\nactive_file {4 * GIB}", f"slab_reclaimable {5 * GIB}\nslab_unreclaimable {GIB}"
NOT_SHOWN = f"cache 0\nhierarchical_memory_limit {3 * GIB}\ntotal_inactive_file 0"  # the limit of another level


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        ({}, "0::/", None),
        (level(max="max", current=5), "0::/", None),
        (level(max=8 * GIB, current=7 * GIB, stat=CACHE), "0::/", 5 * GIB),
        (level(max=8 * GIB, current=7 * GIB, stat=SLAB), "0::/", 6 * GIB),
        (level(max=GIB, current=GIB + 4096), "0::/", 0),  # above its limit for a moment
        (level("a/b/", max="max", current=0) | level("a/", max=GIB, current=GIB // 2), "0::/a/b", GIB // 2),
        (level(max="max", high=GIB, current=GIB // 2), "0::/", GIB // 2),
        (level_1(f"inactive_file 0\ntotal_inactive_file {GIB // 2}", 2 * GIB), CGROUP_1, 2 * GIB - GIB // 2),
        (level_1(NOT_SHOWN, 2**63 - 4096), CGROUP_1, 2 * GIB),
        ({"memory.max": "garbage"}, "0::/\nnot a line", None),
    ],
)
def test_free_memory(tmp_path: Path, files: dict[str, str], cgroup: str, expected: int | None) -> None:
    write(tmp_path, files)
    assert free_memory(cgroup, tmp_path) == expected
