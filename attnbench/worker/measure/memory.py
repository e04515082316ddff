"""Measures memory in bytes: the peak that one launch adds, and what `prepare` or a forward keep. Never while timing.

On a GPU "memory_peak" is torch's allocator: max_memory_allocated less what was allocated before. "memory_driver" adds
what libraries take outside torch's allocator, such as workspaces: the memory in use by the driver's count, less what
torch has reserved. The driver counts all processes, so the growth of this outside memory is summed over the windows in
which this process worked. Therefore memory that a library took in an earlier job and kept counts in later jobs too, as
does code loaded on first use, and what another process takes during a window is counted by mistake. Nothing is added
in a job that shares the device with others of the run (run/device_turns.py): these are of backends that ship with
attnbench, which take their workspaces from torch, and outside only code of some MiB.

On a CPU "memory_peak" is the profiler's account of torch's allocator, and "memory_driver" the high-water mark of the
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

from attnbench.core.backend import torch_dtype
from attnbench.core.case import Case
from attnbench.worker.measure.profiler_session import recorded_events, session

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
SETTLE_SECONDS = 2e-3  # in which other threads free what they no longer need


class CudaMemory:
    """Measures memory on one CUDA device. One per worker, as memory outside torch is carried from job to job."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._outside = self._of_judge = 0
        self.is_shared = False  # whether other workers of the run use the device at the same time

    def count_judge(self, nbytes: int) -> None:
        """Note that the judge has taken so many bytes of the device meanwhile, which no launch has."""
        self._of_judge += nbytes

    def empty_cache(self) -> None:
        """Empty torch's memory cache, where small tensors may have split blocks that large ones need."""
        import torch

        torch.cuda.empty_cache()

    def fill_with_nan(self, case: Case) -> None:
        """Fill the memory that the results of a case will get with NaN, so that what a kernel leaves unwritten is seen.

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
        del blocks

    @contextmanager
    def job_window(self) -> Iterator[None]:
        """Open the window of one job. Outside memory that is taken in it and not given back counts in later jobs."""
        self._window = self._taken_outside_torch()
        try:
            yield
        finally:
            self._outside = max(0, self._outside + self._grown_outside())

    def _grown_outside(self) -> int:
        """Return the bytes that were taken outside torch in the window; 0 where others use the device too."""
        return 0 if self.is_shared else self._taken_outside_torch() - self._window

    def measure_peak(
        self, launch: Callable[[], Any], case: Case, *, fill: bool = True
    ) -> tuple[dict[str, int], int, Any]:
        """Launch once, with the memory of the results filled with NaN before unless `fill` is False.

        Return {"memory_peak", "memory_driver"} in bytes, the bytes that stay allocated while what the launch returned
        is alive, and that.
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
        """Wait until other threads have freed what they hold, and return the allocated bytes.

        Memory that is freed during a launch would make its peak too low. That happened to one of 1,000 readings on an
        H200: autograd's thread for the GPU may still hold the gradients of the launch before when backward returns.
        """
        import torch

        time.sleep(SETTLE_SECONDS)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(self.device)

    def _taken_outside_torch(self) -> int:
        """Return the bytes in use on the device, by all processes, that this process's torch has not reserved.

        What the judge has taken since the first cell does not count.
        """
        import torch

        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device) - self._of_judge


class CpuMemory:
    """Measures memory on the host.

    Of the latest launch, `in_other_threads` is whether other Python threads worked, and `given_out` the bytes that
    torch's allocator gave out in all. The C library may keep what is freed of them, but the process grows by no more.
    """

    in_other_threads = False
    given_out = 0
    is_shared = False

    def __init__(self) -> None:
        _allocations(lambda: None)  # the first start of the profiler takes longer

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
        """Launch once. Return {"memory_peak"} in bytes, the bytes still allocated then, and what the launch returned.

        "memory_driver" is there too where the kernel lets the high-water mark be reset.
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
    """Sees whether Python threads but the one that launches use the CPU in a launch: a pool's, or new ones.

    Torch's profiler sees no allocation in them. Torch's own threads, which share a loop of one operator, are none.
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
    """Return thread -> the CPU seconds that it has used, of all Python threads but this one; empty beyond Linux."""
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
    """Return the resident bytes of this process (Linux) once freed memory is given back; None where not known.

    What the C library keeps of freed memory would hide what is allocated next.
    """
    with suppress(AttributeError, OSError, TypeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


def _reset_high_water() -> int | None:
    """Reset the resident set's high-water mark (Linux) and return the resident bytes now; None where that fails."""
    resident = resident_bytes()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return resident


def status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status in bytes; None where there is none."""
    try:
        match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(match.group(1)) * 1024 if match else None
