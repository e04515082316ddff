"""Memory in bytes: the peak that one launch adds, and the memory that `prepare` or a forward keeps; never while timing.

On a GPU "memory_peak" is torch's allocator: max_memory_allocated less the bytes allocated before. "memory_driver" adds
memory that libraries take outside torch's allocator, such as workspaces: the memory in use by the driver's count, less
torch's reserved memory. The driver counts all processes, so the growth of this outside memory is summed over the
windows in which this process worked. Memory that a library took in an earlier job and kept therefore counts in later
jobs too, and so does code loaded on first use; memory that another process takes during a window is counted by mistake.
Nothing is added in a job that shares the device with others of the run (run/device_turns.py): their backends ship with
attnbench and take their workspaces from torch, and outside only some MiB of code.

On a CPU "memory_peak" is the profiler's account of torch's allocator, and "memory_driver" is the high-water mark of the
resident set.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnbench.core import kinds
from attnbench.core.backend import torch_dtype
from attnbench.core.case import Case
from attnbench.worker.measure.profiler_session import recorded_events, session

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
SETTLE_SECONDS = 2e-3  # seconds in which other threads free unused memory


class CudaMemory:
    """The memory of one CUDA device. A worker has one object, as memory outside torch is carried from job to job."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._outside = self._of_judge = 0
        self.is_shared = False  # whether other workers of the run use the device at the same time

    def count_judge(self, nbytes: int) -> None:
        """Keep the number of bytes that the judge has taken, so that they do not count for a launch."""
        self._of_judge += nbytes

    def empty_cache(self) -> None:
        """Empty torch's memory cache, in which small tensors may have split blocks that large ones need."""
        import torch

        torch.cuda.empty_cache()

    def fill_with_nan(self, case: Case) -> None:
        """Fill the memory of a case's next results with NaN, so that values that a kernel does not write are found.

        This relies on torch's allocator, which reuses freed blocks.
        """
        import torch

        self.empty_cache()
        s = case.extent
        rows = [(s.batch, s.seqlen_q, s.nheads, s.headdim_v), (s.batch, s.seqlen_q, s.nheads, s.headdim)]
        keys = [(s.batch, s.seqlen_k, s.nheads_k, s.headdim_v), (s.batch, s.seqlen_k, s.nheads_k, s.headdim)]
        shapes = rows + keys if case.has_backward else rows[:1]
        nan, dtype = float("nan"), torch_dtype(case)
        blocks = [torch.full(shape, nan, dtype=dtype, device=self.device) for shape in shapes for _ in range(2)]
        if not case.is_softmax:  # NaN of float32, as an integer, is out of range of every index
            sizes = (size for name, size in kinds.result_shapes(case).items() if kinds.own_dtype(case, name))
            blocks += [torch.full(size, nan, device=self.device) for size in sizes for _ in range(2)]
        del blocks

    @contextmanager
    def job_window(self) -> Iterator[None]:
        """Open the window of one job. Memory taken outside torch in it, and not given back, counts in later jobs."""
        self._window = self._taken_outside_torch()
        try:
            yield
        finally:
            self._outside = max(0, self._outside + self._grown_outside())

    def _grown_outside(self) -> int:
        """Return the bytes taken outside torch in the window; 0 where others use the device too."""
        return 0 if self.is_shared else self._taken_outside_torch() - self._window

    def measure_peak(
        self, launch: Callable[[], Any], case: Case, *, fill: bool = True
    ) -> tuple[dict[str, int], int, Any]:
        """Launch once, with the memory of the results filled with NaN before unless `fill` is False.

        Return {"memory_peak", "memory_driver"} in bytes, the bytes that stay allocated while the launch's result is
        alive, and the result.
        """
        import torch

        before = self._settle()
        if fill:
            self.fill_with_nan(case)
        torch.cuda.reset_peak_memory_stats(self.device)
        result = launch()
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        held = torch.cuda.memory_allocated(self.device) - before
        outside = max(0, self._outside + self._grown_outside())
        return {"memory_peak": peak, "memory_driver": peak + outside}, held, result

    def measure_held(self, make: Callable[[], T]) -> tuple[int, T]:
        """Call `make`. Return the bytes that stay allocated while its result is alive, and the result."""
        import torch

        before = torch.cuda.memory_allocated(self.device)
        result = make()
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device) - before, result

    def _settle(self) -> int:
        """Wait until other threads have freed their memory, and return the allocated bytes.

        Memory freed during a launch would make its peak too low: autograd's thread for the GPU may still hold the
        gradients of the earlier launch when backward returns, in one of 1,000 readings on an H200.
        """
        import torch

        time.sleep(SETTLE_SECONDS)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(self.device)

    def _taken_outside_torch(self) -> int:
        """Return the bytes in use on the device by all processes, without the memory reserved by this process's torch.

        Memory that the judge has taken since the first cell does not count.
        """
        import torch

        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device) - self._of_judge


class CpuMemory:
    """The memory of this process on the host.

    For the latest launch, `in_other_threads` is whether other Python threads worked, and `given_out` the total of bytes
    that torch's allocator gave out. The C library may keep freed blocks, but the process grows by no more than this
    total.
    """

    in_other_threads = False
    given_out = 0
    is_shared = False

    def __init__(self) -> None:
        _allocations(lambda: None)  # as the first start of the profiler takes longer

    def count_judge(self, nbytes: int) -> None:
        """Do nothing: memory of the host is counted by process."""

    def empty_cache(self) -> None:
        """Do nothing: torch keeps no cache on the host."""

    def fill_with_nan(self, case: Case) -> None:
        """Do nothing: the operating system hands out large blocks as zeros."""

    @contextmanager
    def job_window(self) -> Iterator[None]:
        """Do nothing: on the host no memory is carried from job to job."""
        yield

    def measure_peak(
        self, launch: Callable[[], Any], case: Case, *, fill: bool = True
    ) -> tuple[dict[str, int], int, Any]:
        """Launch once. Return {"memory_peak"} in bytes, the bytes still allocated then, and the launch's result.

        "memory_driver" is present where the kernel lets the high-water mark be reset.
        """
        before = _reset_high_water()
        threads = PythonThreads()
        running, result = _allocations(lambda: threads.watch(launch))
        self.in_other_threads = threads.worked
        self.given_out = sum(max(0, now - earlier) for earlier, now in itertools.pairwise([0, *running]))
        found = {"memory_peak": max(running, default=0)}
        high = status_bytes("VmHWM")
        if before is not None and high is not None:
            found["memory_driver"] = max(0, high - before)
        return found, running[-1] if running else 0, result

    def measure_held(self, make: Callable[[], T]) -> tuple[int, T]:
        """Call `make`. Return the bytes still allocated when it returns, and its result."""
        running, result = _allocations(make)
        return max(0, running[-1]) if running else 0, result


class PythonThreads:
    """Watches whether Python threads other than the launching one use the CPU in a launch: a pool's, or new ones.

    Torch's profiler sees no allocation in them. Torch's own threads, which share a loop of one operator, do not count.
    """

    worked = False

    def watch(self, launch: Callable[[], T]) -> T:
        """Launch once, and set `worked`."""
        before = _seconds_of_threads()
        threading.setprofile(self._began)
        try:
            result = launch()
        finally:
            threading.setprofile(None)
        self.worked |= any(seconds > before.get(number, 0.0) for number, seconds in _seconds_of_threads().items())
        return result

    def _began(self, *_: Any) -> None:
        self.worked = True


def _seconds_of_threads() -> dict[int, float]:
    """Return thread -> its used CPU seconds, for all Python threads but this one; empty outside of Linux."""
    if not sys.platform.startswith("linux"):
        return {}
    others = [t.ident for t in threading.enumerate() if t is not threading.current_thread() and t.ident]
    return {ident: time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in others}


def _allocations(launch: Callable[[], T]) -> tuple[list[int], T]:
    """Launch once. Return the running sum of bytes that torch's CPU allocator has given out, and the result."""
    with session(memory=True) as profiler:
        result = launch()
    sizes = [
        e.nbytes() for e in sorted(recorded_events(profiler), key=lambda e: e.start_ns()) if e.name() == "[memory]"
    ]
    return list(itertools.accumulate(sizes)), result


def resident_bytes() -> int | None:
    """Return the resident bytes of this process (Linux) after freed memory is given back; None where unknown.

    Freed memory that the C library keeps would hide the next allocations.
    """
    with suppress(AttributeError, OSError, TypeError):  # raised for a C library without it
        ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


def _reset_high_water() -> int | None:
    """Reset the resident set's high-water mark (Linux) and return the resident bytes; None where that fails."""
    resident = resident_bytes()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return None
    return resident


def status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status in bytes; None where there is none.

    The file has the name of the process, which need not be UTF-8.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(match.group(1)) * 1024 if match else None
