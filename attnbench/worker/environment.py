"""What the machine is, and its quick rates: read in a worker (never in the parent, which does not touch CUDA)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import __version__
from attnbench.core.machine import Device, Environment
from attnbench.worker.measure import ceiling
from attnbench.worker.measure.nvml import GpuState

if TYPE_CHECKING:
    import torch

PACKAGES = (
    *("triton", "flash-attn", "flash-attn-3", "flash-attn-4", "xformers", "flashinfer-python"),
    *("nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "transformer-engine", "transformers"),
)
FAKE_MEMORY = 80 * 2**30
FAKE_RATES = {"bf16": 800e12, "fp16": 800e12, "fp32": 50e12, "fp8": 1600e12}
QUICK_MATMUL, QUICK_COPY = {"cuda": 4096, "cpu": 512}, {"cuda": 2**28, "cpu": 2**26}  # rows and columns; bytes


class NoDevice(Exception):
    """The device that was asked for is not there. The message is for the user."""


def resolve_device(device: str) -> str:
    """ "auto" -> "cuda:0" or "cpu"; others checked. "cuda" is cuda:0. Raises NoDevice."""
    if device in ("cpu", "fake"):
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda:0" if count else "cpu"
    index = int(device.partition(":")[2] or 0)
    if not count:
        raise NoDevice(f"torch {torch.__version__} sees no CUDA device here; use --device cpu, or check nvidia-smi")
    if index >= count:
        raise NoDevice(f"there is no {device}: torch sees {count} device(s), cuda:0 to cuda:{count - 1}")
    return f"cuda:{index}"


def describe(device: str) -> Environment:
    """The environment of this interpreter and `device` ("cuda:N", "cpu", "fake"), without rates."""
    if device == "fake":
        return _fake()
    import torch

    where = torch.device(device)
    driver = power_limit = clock_max = None
    if where.type == "cuda":
        found = _gpu(where)
        state = open_gpu_state(where)
        driver, power_limit, clock_max = state.driver(), state.power_limit_w(), state.clock_max_hz()
    else:
        found = _host()
    return Environment(
        device=found,
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch.__version__,
        cpu=_cpu_name(),
        driver=driver,
        cuda=torch.version.cuda or getattr(torch.version, "hip", None),
        power_limit_w=power_limit,
        clock_max_hz=clock_max,
        attnbench=__version__,
        git=_git(),
        packages=_packages(),
    )


def with_quick_rates(device: Device, dtypes: Iterable[str] = ()) -> Device:
    """With its quick rates, of a matmul in each of `dtypes` and of a copy. Nothing else should run meanwhile."""
    if device.kind == "fake":
        return replace(device, matmul=FAKE_RATES, copy=4e12)
    import torch

    where = torch.device(str(device))
    if where.type == "cuda":
        torch.cuda.set_device(where)
    matmul = _matmul_rates(where, dtypes, QUICK_MATMUL[device.kind])
    return replace(device, matmul=matmul, copy=_copy_rate(where, QUICK_COPY[device.kind]))


def open_gpu_state(device: torch.device) -> GpuState:
    """NVML for the same physical GPU, whatever CUDA_VISIBLE_DEVICES says."""
    import torch

    return GpuState(_uuid(torch.cuda.get_device_properties(device)))


def _gpu(where: torch.device) -> Device:
    import torch

    torch.cuda.set_device(where)
    properties: Any = torch.cuda.get_device_properties(where)
    free, total = torch.cuda.mem_get_info(where)
    return Device(
        kind="cuda",
        index=where.index,
        name=properties.name,
        memory=total,
        free=free,
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        l2=properties.L2_cache_size,
        uuid=_uuid(properties) or None,
    )


def _uuid(properties: Any) -> str:
    """Of a GPU, as torch tells it; empty where it does not."""
    return str(getattr(properties, "uuid", ""))


def _host() -> Device:
    import torch

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        kind="cpu",
        index=0,
        name=_cpu_name(),
        memory=total,
        free=_host_free() or total,
        l2=last_level_cache(),
        threads=torch.get_num_threads(),
    )


def _fake() -> Environment:
    device = Device("fake", 0, "Simulated GPU", FAKE_MEMORY, FAKE_MEMORY, (9, 0), 132, 2**26)
    return Environment(device, platform.python_version(), platform.platform(), None, _cpu_name(), attnbench=__version__)


def _fastest_call(call: Callable[[], Any], where: torch.device, repeats: int) -> float:
    """The fastest of a few calls, after two to warm up, over a fifth of a second on a host that others may load."""
    import torch

    best = float("inf")
    i, enough = 0, time.perf_counter() + (0.2 if where.type == "cpu" else 0.0)
    while i < repeats + 2 or time.perf_counter() < enough:
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        began = time.perf_counter()
        call()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        if i >= 2:
            best = min(best, time.perf_counter() - began)
        i += 1
    return best


def _matmul_rates(where: torch.device, dtypes: Iterable[str], n: int) -> dict[str, float]:
    """FLOP/s by dtype; without those that the device does not multiply."""
    import torch

    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}
    rates = {}
    for name in dtypes:
        try:
            rates[name] = 2 * n**3 / _fastest_call(ceiling.matmul_launch(n, where, named[name]), where, 3)
        except (RuntimeError, ValueError):
            if name != "fp8":  # which not every device has
                raise
    return rates


def _copy_rate(where: torch.device, nbytes: int) -> float:
    import torch

    a = torch.ones(nbytes, dtype=torch.int8, device=where)
    b = torch.empty_like(a)
    return 2 * nbytes / _fastest_call(lambda: b.copy_(a), where, 3)


def last_level_cache() -> int | None:
    """Bytes of the largest cache that core 0 sees (Linux)."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}.get(text[-1], 1))
    return max(sizes, default=None)


def _host_free() -> int | None:
    """Bytes that can be had without swapping, a container's limit included (Linux)."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return min(free, limit - used)
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return free


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()} ({os.cpu_count()} cores)"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)"


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git() -> str | None:
    """The commit of the working directory, "+dirty" when tracked files differ from it."""
    try:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=5)
        if commit.returncode:
            return None
        dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], capture_output=True, timeout=5).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + ("+dirty" if dirty else "")
