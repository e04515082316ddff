"""How much memory one pass adds over its inputs, what `prepare` keeps, and forward for backward; never while timing.

On a GPU "peak" is torch's allocator (max_memory_allocated over what was allocated before), and "driver" the same seen
from the driver, where workspaces that a library takes outside torch's allocator count too: what the driver has given
away, less what torch has reserved, is outside memory. Its growth is summed over the windows in which this process
worked, since the driver counts all processes: so what a library took in an earlier job and kept counts in later ones
too, as does code loaded on first use, and what another process takes meanwhile is mistaken for ours.
On a CPU "peak" is the profiler's account of torch's allocator, and "driver" the resident set's high-water mark.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnbench.worker.measure.profiler_session import recorded_events, session

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
SETTLE_SECONDS = 2e-3  # seconds in which other threads let go of what they have done with


class CudaMemory:
    """Bytes, on one CUDA device. One per worker: `outside` is carried from job to job."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._outside = 0

    @contextmanager
    def job_window(self) -> Iterator[None]:
        """The window of one job; outside memory taken in it and not given back is remembered."""
        before = self._taken_outside_torch()
        self._window = before
        try:
            yield
        finally:
            self._outside = max(0, self._outside + self._taken_outside_torch() - before)

    def measure_peak(self, launch: Callable[[], Any]) -> tuple[dict[str, int], Any]:
        """{"memory_peak", "memory_driver"} of one launch, and what it returned."""
        import torch

        before = self._settle()
        result = launch()
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        outside = self._outside + self._taken_outside_torch() - self._window
        return {"memory_peak": peak, "memory_driver": peak + max(0, outside)}, result

    def measure_held(self, make: Callable[[], T]) -> tuple[int, T]:
        """Bytes that stay allocated while what `make` returns is alive, and that."""
        import torch

        before = torch.cuda.memory_allocated(self.device)
        made = make()
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device) - before, made

    def _settle(self) -> int:
        """What is allocated, once nothing is left to be freed during the launch, by which its peak would be too low.

        One of 1,000 readings on an H200 was, by the gradients of the launch before: autograd's thread for the GPU may
        still hold them when backward returns.
        """
        import torch

        time.sleep(SETTLE_SECONDS)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def _taken_outside_torch(self) -> int:
        import torch

        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device)


class CpuMemory:
    """Bytes, on the host."""

    def __init__(self) -> None:
        _allocations(lambda: None)  # the profiler's first start takes longer

    @contextmanager
    def job_window(self) -> Iterator[None]:
        yield

    def measure_peak(self, launch: Callable[[], Any]) -> tuple[dict[str, int], Any]:
        """{"memory_peak"} of one launch, and "memory_driver" where the kernel lets the high-water mark be reset."""
        before = _reset_high_water()
        running, result = _allocations(launch)
        found = {"memory_peak": max(running, default=0)}
        high = _status_bytes("VmHWM")
        if before is not None and high is not None:
            found["memory_driver"] = max(0, high - before)
        return found, result

    def measure_held(self, make: Callable[[], T]) -> tuple[int, T]:
        """Bytes still allocated when `make` returns, its result alive, and that."""
        running, made = _allocations(make)
        return max(0, running[-1]) if running else 0, made


def _allocations(launch: Callable[[], T]) -> tuple[list[int], T]:
    """The running sum of bytes allocated by torch's CPU allocator during one launch, and the launch's result."""
    with session(memory=True) as profiler:
        result = launch()
    sizes = [
        e.nbytes() for e in sorted(recorded_events(profiler), key=lambda e: e.start_ns()) if e.name() == "[memory]"
    ]
    return list(itertools.accumulate(sizes)), result


def _reset_high_water() -> int | None:
    """Resets the resident set's high-water mark (Linux) and returns the resident bytes now; None where it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int | None:
    try:
        match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(match.group(1)) * 1024 if match else None
