"""The measured ceilings of a device: a large matmul, a large copy and exp, timed as cells are and between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.worker.measure import device_kernels

if TYPE_CHECKING:
    import torch

MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}  # rows and columns
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}  # bytes read and written

EXP_BLOCKS, EXP_THREADS = 8, 256  # blocks that fill each multiprocessor, and threads of a block

Collect = Callable[[Callable[[], Any]], Sequence[float]]  # function from a launch to the seconds of some calls of it


def matmul(collect: Collect, device: torch.device, dtype: torch.dtype) -> list[float]:
    """Return the FLOP/s of square matmuls of normally distributed values.

    On a CPU they are in float32 where that is faster, because a kernel may compute in it: on an AMD EPYC torch takes 2
    s for such a matmul in float16, and 20 ms in float32.
    """
    import torch

    n = MATMUL_SIZE[device.type]
    both = device.type == "cpu" and dtype in (torch.float16, torch.bfloat16)
    times = [collect(matmul_launch(n, device, of)) for of in ((dtype, torch.float32) if both else (dtype,))]
    return [2 * n**3 / t for t in min(times, key=stats.median)]


def matmul_launch(n: int, device: torch.device, dtype: torch.dtype) -> Callable[[], Any]:
    """Return a launch of one n x n matmul. For e4m3 it raises RuntimeError where the device has no units for it.

    Hopper's e4m3 units sum in fewer bits than float32, which use_fast_accum allows: cuBLAS's fastest mode. A CPU is
    refused, because torch may compute e4m3 there in plain loops: 55 s for 1024 x 1024 x 1024 on a Xeon that takes 10 ms
    in bf16.
    """
    import torch

    if dtype.itemsize == 1 and device.type == "cpu":
        raise RuntimeError("a CPU has no units for e4m3")
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    if dtype.itemsize > 1:
        return lambda: a @ b
    one = torch.ones((), device=device)
    columns = b.t()  # _scaled_mm needs a column-major second operand
    return lambda: torch._scaled_mm(a, columns, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def copy(collect: Collect, device: torch.device) -> list[float]:
    """Return the bytes/s (read plus written) of copies within the device's memory."""
    import torch

    nbytes = COPY_BYTES[device.type]
    source = torch.ones(nbytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return [2 * nbytes / t for t in collect(lambda: target.copy_(source))]


def exp(collect: Collect, device: torch.device) -> list[float]:
    """Return the exponentials per second of a kernel that computes nothing else.

    Raises RuntimeError on a CPU and where torch cannot compile the kernel.
    """
    import torch

    if device.type != "cuda":
        raise RuntimeError("there is no kernel for exp on a CPU")
    blocks = EXP_BLOCKS * torch.cuda.get_device_properties(device).multi_processor_count
    sums = torch.empty(blocks * EXP_THREADS, device=device)
    with torch.cuda.device(device):
        kernel = device_kernels.compiled("exponentials", device_kernels.EXP_SOURCE)
        times = collect(lambda: kernel((blocks, 1, 1), (EXP_THREADS, 1, 1), [sums]))
    return [sums.numel() * device_kernels.CHAINS * device_kernels.ROUNDS / t for t in times]
