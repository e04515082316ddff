"""Bytes that one call moves between the GPU and its memory, read from hardware counters by Nsight Compute (ncu).

The figure is the traffic of the whole call. ncu's default, --cache-control all, empties the caches before each kernel:
tensors that one kernel leaves in L2 for the next would be read from memory again, and a call of many small kernels
would be charged for bytes that it never moves. The caches are therefore left alone (--cache-control none).
worker/ncu_launch.py makes L2 cold and clean before the call, and has dirty lines of the call written back after it.
Without the latter a result that fits in L2 does not reach memory while ncu counts: on an H200 half of the writes of a
32 MiB output are then missing.

Two counters need one pass, so no kernel is replayed; the number of passes is kept beside the figure. ncu counts kernels
only, and no copies and fills by the driver. Clocks are not changed (--clock-control none).

counters.py reads other counters with `run`, `kernels` and `call_between_marks`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.run.process import child_environment, isolated_command

TRAFFIC = READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
MARK = "spin_kernel"  # ncu_launch.py launches it before and after the call, to mark the kernels of the call
UNITS = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9}
TIMEOUT = 300.0  # seconds; ncu takes some 20 s to start

MISSING = "no ncu on PATH; it comes with the CUDA toolkit and with NVIDIA Nsight Compute"
REFUSALS = {
    "ERR_NVGPUCTRPERM": "the driver lets only root read the GPU's counters; run as root (in a container with "
    "--cap-add SYS_ADMIN), or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    "driver resource was unavailable": "another tool, often DCGM, holds the GPU's counters; pause it "
    "(dcgmi profile --pause) and try again",
}


class NotCounted(Exception):
    """ncu gave no figure. The message says why and what to do."""


@dataclass(frozen=True)
class Kernel:
    """A kernel by ncu's name, and metric -> its value and unit as ncu prints them."""

    name: str
    metrics: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class KernelTraffic:
    """Bytes of device memory that one kernel read and wrote."""

    name: str
    read: float
    written: float


@dataclass(frozen=True)
class Traffic:
    """Bytes of device memory that one call read and wrote."""

    kernels: tuple[KernelTraffic, ...]
    left: float  # bytes that the call left in L2, written back after it
    passes: int = 1  # ncu's passes; with more than 1, later ones may have found operands in L2

    @property
    def read(self) -> float:
        return sum(k.read for k in self.kernels)

    @property
    def written(self) -> float:
        return sum(k.written for k in self.kernels) + self.left

    @property
    def total(self) -> float:
        return self.read + self.written


def find() -> str | None:
    """Return the path of ncu; None where it is not on PATH."""
    return shutil.which("ncu")


def command(
    ncu: str, log: Path, python: str | None, request: Mapping[str, Any], metrics: Sequence[str] = TRAFFIC
) -> list[str]:
    """Return the command line of ncu, which writes to `log`."""
    options = {
        "--log-file": str(log),
        "--print-units": "base",
        "--metrics": ",".join(metrics),
        "--cache-control": "none",
        "--clock-control": "none",
        "--profile-from-start": "off",
        "--target-processes": "all",
    }
    arguments = [argument for pair in options.items() for argument in pair]
    launch = isolated_command("attnbench.worker.ncu_launch", json.dumps(request), python=python)
    return [ncu, "--csv", *arguments, *launch]


def measure(ncu: str, python: str | None, request: Mapping[str, Any]) -> Traffic:
    """Run worker/ncu_launch.py with `request` in the interpreter `python` under ncu. Raises NotCounted."""
    return parse(run(ncu, python, request, TRAFFIC))


def run(ncu: str, python: str | None, request: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Return ncu's output and log for the `metrics` of one call. Raises NotCounted where it hangs."""
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        log = Path(folder) / "ncu.csv"
        said = execute(command(ncu, log, python, request, metrics))
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return f"{text}\n{said}"


def execute(command: Sequence[str], timeout: float = 0.0, variables: Mapping[str, str] | None = None) -> str:
    """Run a tool of NVIDIA's, and return its output. `variables` are in its environment.

    Raises NotCounted where it does not end within `timeout` seconds (default: TIMEOUT), and ends its processes.
    """
    timeout = timeout or TIMEOUT
    with subprocess.Popen(
        command,
        env={**child_environment(), "LC_ALL": "C", **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise NotCounted(f"{Path(command[0]).name} did not end within {timeout:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return said


def kernels(text: str) -> list[Kernel]:
    """Return the kernels in ncu's output, which has CSV with a row for each kernel and metric among other lines.

    Raises NotCounted where there are none.
    """
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        raise NotCounted(why_no_figures(lines))
    names: dict[str, str] = {}
    metrics: dict[str, dict[str, tuple[str, str]]] = {}
    for row in csv.DictReader(line for line in lines[header:] if line.startswith('"')):
        names[row["ID"]] = row["Kernel Name"]
        metrics.setdefault(row["ID"], {})[row["Metric Name"]] = row["Metric Value"], row["Metric Unit"]
    return [Kernel(name, metrics[id_]) for id_, name in names.items()]


def call_between_marks(found: Sequence[Kernel]) -> slice:
    """Return the slice of the call's kernels. Raises NotCounted where a mark is missing."""
    marks = [i for i, kernel in enumerate(found) if MARK in kernel.name]
    if len(marks) < 2:
        raise NotCounted("ncu did not see the call to its end")
    return slice(marks[0] + 1, marks[-1])


def parse(text: str) -> Traffic:
    """Return the traffic of the call from ncu's output. Raises NotCounted."""
    found = kernels(text)
    if any(not {READ, WRITTEN} <= kernel.metrics.keys() for kernel in found):
        raise NotCounted(f"ncu gave no {READ} and {WRITTEN}; this GPU may not have these counters")
    moved = [_traffic(kernel) for kernel in found]
    call = call_between_marks(found)
    passes = max((int(n) for n in re.findall(r"^==PROF== Profiling.* - (\d+) pass", text, re.MULTILINE)), default=1)
    return Traffic(tuple(moved[call]), sum(kernel.written for kernel in moved[call.stop :]), passes)


def _traffic(kernel: Kernel) -> KernelTraffic:
    return KernelTraffic(kernel.name, _bytes(*kernel.metrics[READ]), _bytes(*kernel.metrics[WRITTEN]))


def _bytes(value: str, unit: str) -> float:
    """Return a counter's value in bytes. Raises NotCounted for n/a, ncu's value for a counter that the GPU lacks."""
    try:
        found = float(value.replace(",", "")) * UNITS[unit.lower()]
    except (ValueError, KeyError):
        found = math.nan
    if not math.isfinite(found):
        raise NotCounted(f"ncu gave {value} {unit} for a counter; this GPU may not have it")
    return found


def why_no_figures(lines: Sequence[str], tool: str = "ncu") -> str:
    """Return why a profiler gave no figures, from its lines, and what to do where that is known."""
    for line in lines:
        for message, reason in REFUSALS.items():
            if message in line:
                return reason
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    said = errors or [line.strip() for line in lines if line.strip() and not line.startswith("==")]
    return f"{tool} gave no figures; it says: {' '.join(said[-1].split())[:300]}" if said else f"{tool} said nothing"
