"""The facts of a device for the doctor, and of its timers; no setting is changed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.analysis.gate.run_differences import differences
from attnbench.worker import environment, machine_facts
from attnbench.worker.measure.l2_cache import L2Flush
from attnbench.worker.measure.sampling import CpuTimer, do_nothing
from builders import CPU, run


def test_the_failure_of_an_instrument_is_a_fact() -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("no\n\nCUPTI")

    assert machine_facts._facts_or_error(fails) == {"error": "RuntimeError: no CUPTI"}


def test_timers_are_tried_and_left_as_they_were() -> None:
    """Timers are tested and left unchanged. A CPU's timer replaces events, and missing timers only give an error."""
    timer, flush = CpuTimer(), L2Flush(torch.device("cpu"), 2**20)
    measurer: Any = SimpleNamespace(device=flush.buffer.device, events=timer, tracer=None, flush=flush)
    measurer.l2_bytes, measurer.bandwidth = 2**20, 1e10
    found = machine_facts._instrument_facts(measurer)
    assert set(found["events"]) == {"seconds", "l2_cold", "l2_warm"}
    assert found["events"]["seconds"] > 0
    assert {found["events"]["l2_cold"], found["events"]["l2_warm"]} <= {"cold", "warm"}
    assert timer.before is do_nothing
    assert [set(found[name]) for name in ("graph", "cupti")] == [{"error"}, {"error"}]


def test_nothing_is_ever_set() -> None:
    names = [
        n.attr for n in ast.walk(ast.parse(Path(machine_facts.__file__).read_text())) if isinstance(n, ast.Attribute)
    ]
    asked = [name for name in names if name.startswith("nvml")]
    assert len(asked) > 10
    assert all(name.startswith(("nvmlDeviceGet", "nvmlSystemGet")) for name in asked)


def test_a_cpu_whose_instructions_are_limited_is_another_machine() -> None:
    limited, whole = (run([], device=replace(CPU, instructions=of)) for of in ("DEFAULT", "AVX512"))
    assert [d.what for d in differences(limited, whole)] == ["device instructions was DEFAULT and is AVX512"]


def test_environment_variables_that_change_figures_are_told_as_a_person_set_them() -> None:
    """Environment variables that change figures are reported as a person set them, without torch's own and paths.

    Variables for a GPU count on a GPU only. torch, oneDNN and MKL each have one that limits a CPU's instructions.
    """
    code = """if True:
        from attnbench.worker import environment
        import os, torch
        os.environ["CUDA_MODULE_LOADING"] = "LAZY"
        found = environment.describe("cpu")
        print(found.variables, environment._variables("cuda"), found.device.instructions)"""
    theirs = {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "TORCH_COMPILE_DISABLE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_PLACES": "",
        "OMP_THREAD_LIMIT": "1",
        "TORCHINDUCTOR_FREEZING": "1",
    }
    places = {"TORCHINDUCTOR_CACHE_DIR": "x", "FLASHINFER_WORKSPACE_BASE": "x", "FLASHINFER_LOGLEVEL": "3"}
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HOME")}
    variables = {**plain, **theirs, **places}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    of_all = {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OMP_THREAD_LIMIT": "1",
        "TORCHINDUCTOR_FREEZING": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }
    instructions = "DEFAULT, oneDNN at most SSE41, MKL_CBWR AVX2"
    of_gpus = dict(sorted({**of_all, "NVIDIA_TF32_OVERRIDE": "0"}.items()))
    assert done.stdout == f"{of_all} {of_gpus} {instructions}\n", done.stderr


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", None])
def test_facts_of_a_cpu_that_cannot_be_read_are_left_out(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreadable facts of a CPU are left out, such as a virtual machine's empty files; a folder makes a read fail."""
    for number in range(2):
        (tmp_path / f"index{number}").mkdir()
    (tmp_path / "index0/size").write_text("32K\n")
    for strange in (tmp_path / "index1/size", tmp_path / "cpuinfo", tmp_path / "meminfo"):
        strange.mkdir() if content is None else strange.write_bytes(content)
    monkeypatch.setattr(environment, "CACHES", tmp_path)
    monkeypatch.setattr(environment.cgroups, "PROC", tmp_path)
    assert environment.last_level_cache() == 2**15
    assert environment.host_free() is None
    found = environment.describe("cpu", with_torch=False)
    assert found.cpu.endswith(f" ({os.cpu_count()} cores)")
    assert found.device.free == found.device.memory
    monkeypatch.setattr(environment, "host_free", lambda: 0)  # as in a container at its limit
    assert environment.describe("cpu", with_torch=False).device.free == 0


def test_a_rate_by_a_clock_of_coarse_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of 0.1 ms is timed as 0.1 ms also by a clock with steps of 4 ms."""
    now = 0  # microseconds

    def passes(microseconds: int) -> None:
        nonlocal now
        now += microseconds

    def clock() -> float:
        passes(1)
        return now // 4000 * 0.004

    monkeypatch.setattr(environment, "time", SimpleNamespace(perf_counter=clock))
    assert environment._fastest_call(lambda: passes(100), torch.device("cpu")) == pytest.approx(1e-4, rel=0.1)
