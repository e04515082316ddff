"""Nsight Compute's messages and CSV, as several versions print them, and a stand-in program for ncu."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.run.process import isolated_command
from attnbench.run.profile import ncu, nsight_reports

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
OLD_HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream","Section Name",'
    '"Metric Name","Metric Unit","Metric Value"'
)
PROF = '==PROF== Profiling "{}" - {}: 0%....50%....100% - {}'


def rows(kernels: list[tuple[str, str, str]], unit: str = "byte", header: str = HEADER) -> str:
    """Return ncu's CSV for kernels given as (name, bytes read, bytes written)."""
    between = len(header.split(",")) - 8
    lines = [header]
    for i, (name, read, written) in enumerate(kernels):
        for metric, value in ((ncu.READ, read), (ncu.WRITTEN, written)):
            own = f'"{i}","4711","python3.12","127.0.0.1","{name}"' + ',"1"' * (between - 1)
            lines.append(f'{own},"Command line profiler metrics","{metric}","{unit}","{value}"')
    return "\n".join(lines)


MARK = ("spin_kernel(long)", "128", "64")
KERNELS = [
    ("reduce_kernel", "268435456", "4194304"),  # writes back ncu's own data in L2
    MARK,
    ("nvjet_tst_128x256_64x4", "33,554,432", "2147483648"),
    ("void softmax_warp_forward<a, b>(T1 *, int)", "2147483648", "2,147,483,648"),
    MARK,
    ("reduce_kernel", "268435456", "1048576"),
]


@pytest.mark.parametrize("header", [HEADER, OLD_HEADER])
def test_the_call_is_what_ran_between_the_markers(header: str) -> None:
    progress = [PROF.format(name, i, "1 pass") for i, (name, _, _) in enumerate(KERNELS)]
    text = "\n".join(["==PROF== Connected to process 4711 (/usr/bin/python3)", *progress, rows(KERNELS, header=header)])
    found = ncu.parse(text + "\n==PROF== Disconnected from process 4711\n")
    assert found.kernels == (
        ncu.KernelTraffic("nvjet_tst_128x256_64x4", 2.0**25, 2.0**31),
        ncu.KernelTraffic("void softmax_warp_forward<a, b>(T1 *, int)", 2.0**31, 2.0**31),
    )
    assert found.left == 2**20 + 64  # the bytes that the last read pushed out of L2
    assert found.read == 2**25 + 2**31
    assert found.written == 2**32 + 2**20 + 64
    assert found.total == found.read + found.written
    assert found.passes == 1
    text = PROF.format("x", 0, "3 passes") + "\n" + rows([MARK, ("x", "1.5", "2"), MARK], unit="Mbyte")
    assert (ncu.parse(text).kernels, ncu.parse(text).passes) == ((ncu.KernelTraffic("x", 1.5e6, 2e6),), 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==PROF== x\n==ERROR== ERR_NVGPUCTRPERM - The user does not\n==WARNING== No kernels", "run as root (in a con"),
        ("==ERROR== Profiling failed because a driver resource was unavailable. (like DCGM)", "dcgmi profile --pause"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "Failed to initialize the profiler"),
        ("Traceback (most recent call last):\n  File x\nRuntimeError: no\n  kernel image", "it says: kernel image"),
        ("==WARNING== No kernels were profiled.\n", "ncu said nothing"),
        ("", "ncu said nothing"),
        (rows([("x", "n/a", "1"), ("spin_kernel", "0", "0")]), "n/a byte"),
        (rows([("x", "nan", "1"), ("spin_kernel", "0", "0")]), "nan byte"),
        (rows([("x", "1", "1"), ("spin_kernel", "0", "0")], unit="sector"), "1 sector"),
        (rows([MARK, ("x", "1", "1")]), "did not see the call to its end"),
        (rows([("x", "1", "1"), ("spin_kernel", "0", "0")]).replace(ncu.WRITTEN, "other"), "gave no dram__bytes_read"),
    ],
)
def test_no_figures_and_why(text: str, said: str) -> None:
    with pytest.raises(ncu.NotCounted) as error:
        ncu.parse(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


REQUEST: dict[str, Any] = {
    "name": "eager",
    "spec": "attnbench.backends.pytorch.eager:Eager",
    "case": to_json(Case(Shape(1, 16, 16, 1, 1, 8, 8), "fp32", "bwd")),
    "device": to_json(Device("cuda", 0, "x", 2**30, 2**30, l2=2**20)),
}


ISOLATED = isolated_command("")[1]


def stand_in(folder: Path, body: str, name: str = "ncu") -> str:
    """Write a program that is called in place of ncu or of another tool, and return its path."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\nargs = sys.argv[1:]\n{body}")
    path.chmod(0o755)
    return str(path)


def test_ncu_is_run_on_one_launch_with_caches_and_clocks_left_alone(tmp_path: Path) -> None:
    body = f"""
options = dict(zip(args[1::2], args[2::2]))
assert args[0] == "--csv"
assert options["--cache-control"] == options["--clock-control"] == "none"
assert options["--profile-from-start"] == "off"
assert options["--metrics"] == "{ncu.READ},{ncu.WRITTEN}"
assert args[-4:-1] == [{sys.executable!r}, {ISOLATED!r}, "attnbench.worker.ncu_launch"]
assert json.loads(args[-1]) == json.loads({json.dumps(json.dumps(REQUEST))})
assert os.environ["LC_ALL"] == "C"
print("what the library prints")
open(options["--log-file"], "w").write({rows(KERNELS)!r})
"""
    found = ncu.measure(stand_in(tmp_path, body), None, REQUEST)
    assert len(found.kernels) == 2


def test_what_the_child_says_is_the_reason(tmp_path: Path) -> None:
    body = """
assert args[-4] == "/opt/py", "another interpreter, which finds attnbench"
assert os.path.isfile(args[-3])
sys.exit("Traceback\\nRuntimeError: out of memory")
"""
    with pytest.raises(ncu.NotCounted, match="it says: RuntimeError: out of memory"):
        ncu.measure(stand_in(tmp_path, body), "/opt/py", REQUEST)


def test_an_ncu_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "TIMEOUT", 0.5)
    with pytest.raises(ncu.NotCounted, match="did not end within"):
        ncu.measure(stand_in(tmp_path, "time.sleep(60)"), None, REQUEST)


@pytest.mark.parametrize("tool", list(nsight_reports.REPORTS))
def test_a_report_is_written_by_the_tool(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "eager.report"
    with pytest.raises(ncu.NotCounted, match=f"no {tool} on PATH"):
        nsight_reports.write(tool, file, None, REQUEST)
    body = f"""
assert args[-4:-1] == [{sys.executable!r}, {ISOLATED!r}, "attnbench.worker.ncu_launch"]
assert json.loads(args[-1]) == json.loads({json.dumps(json.dumps(REQUEST))})
named = [b for a, b in zip(args, args[1:]) if a == "--export"]
named += [a.partition("=")[2] for a in args if a.startswith("--output=")]
open(named[0], "w").write("a report")
"""
    stand_in(tmp_path, body, tool)
    nsight_reports.write(tool, file, None, REQUEST)
    assert file.read_text() == "a report"
    stand_in(tmp_path, 'print("==ERROR== ERR_NVGPUCTRPERM - no permission")', tool)
    file.unlink()
    with pytest.raises(ncu.NotCounted, match="only root"):
        nsight_reports.write(tool, file, None, REQUEST)
