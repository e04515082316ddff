"""Description of the machine and its device, with quick rates, in a worker, as the parent never uses CUDA."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import __version__
from attnbench.backends.fake import busy_with_others
from attnbench.backends.shared.libraries import installed_version
from attnbench.core import cgroups, checkout
from attnbench.core.machine import Device, Environment
from attnbench.worker.measure import ceiling, nvml
from attnbench.worker.measure.nvml import GpuState

if TYPE_CHECKING:
    import torch

PACKAGES = (
    *("triton", "flash-attn", "flash-attn-3", "tokenspeed-fa3", "flash-attn-4", "xformers", "flashinfer-python"),
    *("vllm", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "transformer-engine", "transformers"),
)
FAKE_MEMORY = 80 * 2**30  # bytes of memory of the simulated device
FAKE_RATES = {"bf16": 800e12, "fp16": 800e12, "fp32": 50e12, "fp8": 1600e12}  # FLOP/s
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Environment variables that change times: of compilers, libraries, memory and waiting threads; not paths of files and
# logging. The variables in _OF_GPUS change nothing on a CPU.
_OF_ALL = (
    r"LD_PRELOAD|GLIBC_TUNABLES|MALLOC_\w+|THP_MEM_ALLOC_ENABLE|OPENBLAS_CORETYPE|MKL_ENABLE_INSTRUCTIONS|"
    r"OMP_(WAIT_POLICY|PROC_BIND|PLACES|DYNAMIC|THREAD_LIMIT|MAX_ACTIVE_LEVELS|NESTED|SCHEDULE)|"
    r"KMP_(AFFINITY|BLOCKTIME)|GOMP_(CPU_AFFINITY|SPINCOUNT)|TORCH_COMPILE_DISABLE|TORCHDYNAMO_DISABLE|"
    r"TORCH_MKLDNN_\w+|(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE|TORCHINDUCTOR_\w+"
)
_OF_GPUS = (
    r"CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|MODULE_LOADING)|PYTORCH_NO_CUDA_MEMORY_CACHING|"
    r"PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_WORKSPACE_CONFIG|"
    r"TORCH_(BLAS|CUDNN|ROCM)_\w+|(XFORMERS|FLASH_ATTENTION|FLASHINFER|NVTE)_\w+"
)
_OTHERS = r"\w+_(DIR|BASE|HOME|PATH|REPOSITORY|LOG\w*|VERBOSE)"
_SET = dict(os.environ)  # read before the import of torch, which sets some too
QUICK_MATMUL = {"cuda": 4096, "cpu": 512}  # rows and columns of a quick matmul
QUICK_COPY = {"cuda": 2**28, "cpu": 2**26}  # bytes of a quick copy


class NoDevice(Exception):
    """The requested device does not exist. The message is for the user."""


def resolve_device(device: str) -> str:
    """Return "cuda:N", "cpu" or "fake" for a device option: "auto" is cuda:0, else the CPU; "cuda" is cuda:0.

    Raises NoDevice where there is no such device.
    """
    if device in ("cpu", "fake"):
        return device
    if no_gpu_here():
        if device == "auto":
            return "cpu"
        version = installed_version(("torch",)) or ""
        raise NoDevice(f"torch {version} sees no CUDA device here: no GPU's driver is installed; use --device cpu")
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


def no_gpu_here() -> bool:
    """Return whether torch can certainly find no GPU: a Linux with neither NVIDIA's nor AMD's driver.

    To ask torch would take seconds for its import. NVIDIA's library is asked only where there is no device file, which
    the first program that opens the GPU may have to make.
    """
    if sys.platform != "linux" or any(Path(f"/dev/{name}").exists() for name in ("nvidiactl", "kfd")):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


def describe(device: str, *, with_torch: bool = True) -> Environment:
    """Return the environment of this interpreter and of `device` ("cuda:N", "cpu", "fake"), without rates.

    Without torch two facts are missing: a CPU's threads, and the CUDA for which torch is built.
    """
    if device == "fake":
        return _fake()
    if device == "cpu" and not with_torch and (version := installed_version(("torch",))):
        return _environment(_host(None), version)
    import torch

    where = torch.device(device)
    found = _with_other_work(where) if where.type == "cuda" else _host(torch.get_num_threads(), _instructions())
    version = str(torch.__version__)  # a plain str, as JSON gives back, not a TorchVersion
    known = replace(_environment(found, version), cuda=torch.version.cuda or getattr(torch.version, "hip", None))
    if where.type == "cpu":
        return known
    state = open_gpu_state(where)
    return replace(known, driver=state.driver(), power_limit_w=state.power_limit_w(), clock_max_hz=state.clock_max_hz())


def _environment(device: Device, torch: str) -> Environment:
    commit, branch = checkout.commit_and_branch()
    return Environment(
        device=device,
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch,
        cpu=_cpu_name(),
        attnbench=__version__,
        git=commit,
        branch=branch,
        packages={name: found for name in PACKAGES if (found := installed_version((name,)))},
        variables=_variables(device.kind),
    )


def _variables(kind: str) -> dict[str, str]:
    """Return the environment variables set by a person that change times on this kind of device."""
    names = rf"(?!({_OTHERS})$)({_OF_ALL if kind == 'cpu' else f'{_OF_ALL}|{_OF_GPUS}'})"
    return {name: value for name, value in sorted(_SET.items()) if value and re.fullmatch(names, name)}


def with_quick_rates(device: Device, dtypes: Iterable[str] = ()) -> Device:
    """Return the device with measured rates: a matmul in each of `dtypes` (FLOP/s) and a copy (bytes/s).

    Nothing else should run on the machine meanwhile. Dtypes without products on the device are left out.
    """
    if device.kind == "fake":
        return replace(device, matmul=FAKE_RATES, copy=4e12)
    import torch

    where = torch.device(str(device))
    if where.type == "cuda":
        torch.cuda.set_device(where)
    matmul = _matmul_rates(where, dtypes, QUICK_MATMUL[device.kind])
    return replace(device, matmul=matmul, copy=_copy_rate(where, QUICK_COPY[device.kind]))


def open_gpu_state(device: torch.device) -> GpuState:
    """Return NVML's view of the physical GPU of a torch device, for any CUDA_VISIBLE_DEVICES."""
    import torch

    return GpuState(_uuid(torch.cuda.get_device_properties(device)))


def measure_in_this_process() -> None:
    """Declare that this process has the run itself: its child processes are then the run's other workers."""
    nvml.session_pid = os.getpid()


def check_is(device: Device) -> None:
    """Raise RuntimeError where this process sees another GPU than `device` under its index."""
    import torch

    seen = _uuid(torch.cuda.get_device_properties(torch.device(str(device))))
    if device.uuid and seen not in ("", device.uuid):
        raise RuntimeError(
            f"its process sees GPU {seen} as {device}, but the run measures {device.uuid}: code sets "
            "CUDA_VISIBLE_DEVICES; remove that, and choose the GPU by --device"
        )


def _with_other_work(where: torch.device) -> Device:
    """Return a GPU with its use by other processes, read while this process leaves it idle, and their names.

    Processes are named after this one has opened the device, because only then does NVML's list show whether its
    process ids belong to this process's namespace.
    """
    state, since = open_gpu_state(where), time.time()
    busy = state.busy_with_others()
    found = _gpu(where)
    return replace(found, busy=busy, users=state.other_processes(since) if busy else ())


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
    """Return a GPU's UUID by torch; "" where it reports none."""
    return str(getattr(properties, "uuid", ""))


def _instructions() -> str:
    """Return the CPU instructions that torch uses, within ATEN_CPU_CAPABILITY, and the limits of its libraries."""
    import torch

    used = torch.backends.cpu.get_cpu_capability()
    if limit := os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA"):
        used += f", oneDNN at most {limit}"
    if mode := os.environ.get("MKL_CBWR"):
        used += f", MKL_CBWR {mode}"
    return used


def _host(threads: int | None, instructions: str | None = None) -> Device:
    total, free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), host_free()
    return Device(
        kind="cpu",
        index=0,
        name=_cpu_name(),
        memory=total,
        free=total if free is None else free,
        l2=last_level_cache(),
        threads=threads,
        instructions=instructions,
    )


def _fake() -> Environment:
    device = Device("fake", 0, "Simulated GPU", FAKE_MEMORY, FAKE_MEMORY, (9, 0), 132, 2**26, busy=busy_with_others())
    return Environment(device, platform.python_version(), platform.platform(), None, _cpu_name(), attnbench=__version__)


def _fastest_call(call: Callable[[], Any], where: torch.device) -> float:
    """Return the seconds of the fastest of three calls, after two to warm up.

    On a CPU it calls for at least 0.2 s, since other processes may load the host. Several calls are timed as one where
    one takes less than 10 ticks of the clock.
    """
    least, calls = 10 * _tick(), 1
    while (best := _fastest_calls(call, calls, where)) < least:
        calls *= 10
    return best / calls


def _tick() -> float:
    """Return the smallest step of the clock in seconds, measured over five steps."""

    def step() -> float:
        began = time.perf_counter()
        while not (passed := time.perf_counter() - began):
            pass
        return passed

    return min(step() for _ in range(5))


def _fastest_calls(call: Callable[[], Any], calls: int, where: torch.device) -> float:
    """Return the seconds of so many calls in a row: the least of three times, after two to warm up."""
    import torch

    best = float("inf")
    i, enough = 0, time.perf_counter() + (0.2 if where.type == "cpu" else 0.0)
    while i < 5 or time.perf_counter() < enough:
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        if i >= 2:
            best = min(best, time.perf_counter() - began)
        i += 1
    return best


def _matmul_rates(where: torch.device, dtypes: Iterable[str], n: int) -> dict[str, float]:
    """Return dtype -> FLOP/s of an n x n matmul, without fp8 where the device has no product for it."""
    import torch

    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}
    rates = {}
    for name in dtypes:
        try:
            rates[name] = 2 * n**3 / _fastest_call(ceiling.matmul_launch(n, where, named[name]), where)
        except (RuntimeError, ValueError):
            if name != "fp8":  # not every device has units for it
                raise
    return rates


def _copy_rate(where: torch.device, nbytes: int) -> float:
    """Return the bytes/s of a copy of `nbytes`, read plus written."""
    import torch

    a = torch.ones(nbytes, dtype=torch.int8, device=where)
    b = torch.empty_like(a)
    return 2 * nbytes / _fastest_call(lambda: b.copy_(a), where)


def last_level_cache() -> int | None:
    """Return the bytes of the largest cache of CPU core 0 (Linux); None where unknown."""
    texts = (cgroups.read_text(path) or "" for path in CACHES.glob("index*/size"))  # empty on some virtual machines
    sizes = [re.fullmatch(r"(\d+)([KM]?)", text, re.ASCII) for text in texts]
    return max((int(size[1]) * {"": 1, "K": 2**10, "M": 2**20}[size[2]] for size in sizes if size), default=None)


def host_free() -> int | None:
    """Return the bytes that can be allocated without swapping, within a container's limit (Linux); None if unknown."""
    free, limit = cgroups.machine_free(), cgroups.free_memory()
    return free if free is None or limit is None else min(free, limit)


def _cpu_name() -> str:
    named = re.search(r"(?m)^model name[ \t]*:[ \t]*(\S.*)", cgroups.read_text(cgroups.PROC / "cpuinfo") or "")
    if named:
        return f"{named[1].strip()} ({os.cpu_count()} cores)"
    return f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)"
