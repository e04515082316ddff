"""What this machine reaches today: a large matmul and a large copy, timed as the cells are and in turns with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.worker.measure.sampling import Timer, pause

if TYPE_CHECKING:
    import torch

MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}  # rows and columns
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}  # bytes read, and written again
READINGS = 5


def matmul(timer: Timer, device: torch.device, dtype: torch.dtype) -> list[float]:
    """FLOP/s of some square matmuls of normally distributed values."""
    n = MATMUL_SIZE[device.type]
    multiply = matmul_launch(n, device, dtype)
    timer.samples(multiply, 1)
    times = timer.samples(multiply, READINGS)
    if device.type == "cuda":
        pause(sum(times))
    return [2 * n**3 / t for t in times]


def matmul_launch(n: int, device: torch.device, dtype: torch.dtype) -> Callable[[], Any]:
    """A launch of one matmul. That of e4m3 raises RuntimeError where the device has no units for it.

    Those of Hopper sum in fewer bits than float32; cuBLAS is told to leave it at that (use_fast_accum), its fastest.
    On a CPU torch may do it by plain loops: 55 s for 1024 x 1024 x 1024 on a Xeon that takes 10 ms in bf16.
    """
    import torch

    if dtype.itemsize == 1 and device.type == "cpu":
        raise RuntimeError("no CPU has units for e4m3")
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    if dtype.itemsize > 1:
        return lambda: a @ b
    one = torch.ones((), device=device)
    columns = b.t()  # all that it takes
    return lambda: torch._scaled_mm(a, columns, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def copy(timer: Timer, device: torch.device) -> list[float]:
    """Bytes/s of some copies within the device's memory, read plus write."""
    import torch

    nbytes = COPY_BYTES[device.type]
    source = torch.ones(nbytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    timer.samples(lambda: target.copy_(source), 1)
    return [2 * nbytes / t for t in timer.samples(lambda: target.copy_(source), READINGS)]
