"""What this machine reaches today: a large matmul and a large copy, timed as the cells are and in turns with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.measure.timing import Timer, pause

if TYPE_CHECKING:
    import torch

MATMUL = {"cuda": 8192, "cpu": 1024}  # rows and columns
COPY = {"cuda": 2**30, "cpu": 2**26}  # bytes read, and written again
READINGS = 5


def matmul(timer: Timer, device: torch.device, dtype: torch.dtype) -> list[float]:
    """FLOP/s of some square matmuls of normally distributed values."""
    import torch

    n = MATMUL[device.type]
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    timer.samples(lambda: a @ b, 1)
    times = timer.samples(lambda: a @ b, READINGS)
    if device.type == "cuda":
        pause(sum(times))
    return [2 * n**3 / t for t in times]


def copy(timer: Timer, device: torch.device) -> list[float]:
    """Bytes/s of some copies within the device's memory, read plus write."""
    import torch

    nbytes = COPY[device.type]
    source = torch.ones(nbytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    timer.samples(lambda: target.copy_(source), 1)
    return [2 * nbytes / t for t in timer.samples(lambda: target.copy_(source), READINGS)]
