"""Peak memory of a launch: on a GPU with a simulated allocator, on a CPU also with work in other threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from attnbench.core.case import Case, Shape
from attnbench.worker.measure import memory
from attnbench.worker.measure.memory import CpuMemory, CudaMemory

HELD, NEW = 192, 196  # bytes
CASE = Case(Shape(1, 1, 1, 1, 1, 8, 8), "bf16", "fwd", causal=False)


class Allocator:
    """An allocator in which another thread holds memory until this thread sleeps or launches again."""

    def __init__(self) -> None:
        self.allocated = self.most = HELD

    def let_go(self, *_: object) -> None:
        self.allocated = 0

    def reset(self, *_: object) -> None:
        self.most = self.allocated

    def launch(self) -> str:
        self.let_go()
        self.allocated += NEW
        self.most = max(self.most, self.allocated)
        return "out"


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()
    functions: dict[str, Callable[..., object]] = {
        "synchronize": lambda _: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": found.reset,
        "memory_allocated": lambda _: found.allocated,
        "max_memory_allocated": lambda _: found.most,
        "memory_reserved": lambda _: 0,
        "mem_get_info": lambda _: (1000, 1000),
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(memory, "time", SimpleNamespace(sleep=found.let_go))
    return found


def test_memory_that_another_thread_is_about_to_free_does_not_lower_the_peak(allocator: Allocator) -> None:
    found = CudaMemory(torch.device("cpu"))
    with found.job_window():
        assert found.measure_peak(allocator.launch, CASE) == ({"memory_peak": NEW, "memory_driver": NEW}, NEW, "out")


def test_other_python_threads_that_work_in_a_launch_are_seen() -> None:
    """Other Python threads that work in a launch are found; torch's profiler does not see their allocations."""
    found, q = CpuMemory(), torch.ones(256, 256)

    def in_a_new_thread() -> None:
        thread = threading.Thread(target=torch.mm, args=(q, q))
        thread.start()
        thread.join()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.mm, q, q).result()  # the thread exists before the launch
        launches = [lambda: pool.submit(torch.mm, q, q).result(), in_a_new_thread, lambda: torch.mm(q, q)]
        for launch, seen in zip(launches, (True, True, False), strict=True):
            found.measure_peak(launch, CASE)
            assert found.in_other_threads == seen


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library gives nothing back")
def test_memory_that_was_freed_before_hides_none() -> None:
    """Memory freed before hides none, although the C library keeps freed blocks and would give them to the launch."""

    def take(blocks: int) -> list[bytes]:
        return [b"1" * 2**16 for _ in range(blocks)]

    freed, used = take(1024), take(1)
    del freed
    found, _, _ = CpuMemory().measure_peak(lambda: take(768), CASE)
    assert used
    if "memory_driver" not in found:
        pytest.skip("this kernel does not let the high-water mark be reset")
    assert found["memory_driver"] > 40 * 2**20


def test_all_that_torch_gives_out_in_a_launch_is_counted() -> None:
    """All memory that torch allocates in a launch counts, because the C library may keep each freed block."""

    def launch() -> None:
        for _ in range(8):
            torch.empty(2**20)  # float32, freed at once

    memory = CpuMemory()
    found, _, _ = memory.measure_peak(launch, CASE)
    assert found["memory_peak"] == 2**22
    assert memory.given_out == 8 * 2**22
