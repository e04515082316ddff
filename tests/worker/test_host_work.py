"""What the host does in a call, from the profiler's events of a GPU, written by hand after those of torch 2.11."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attnbench.worker.timeline import RANGE, host_of


def event(name: str, at: int, nbytes: int = 0, device: str = "CPU", until: int = 0) -> Any:
    kind, end = f"DeviceType.{device}", until or at + 1
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: at,
        end_ns=lambda: end,
        nbytes=lambda: nbytes,
        device_type=lambda: kind,
        start_thread_id=lambda: 1,
    )


CALL = [
    event(RANGE, 0, until=100),
    event("aten::empty", 10),
    event("[memory]", 11, 4096, "CUDA"),
    event("[memory]", 12, 64),
    event("aten::mm", 20),
    event("cudaLaunchKernel", 21),
    event("cuLaunchKernelEx", 22),
    event("ampere_gemm", 25, device="CUDA"),
    event("[memory]", 30, -4096, "CUDA"),
    event("autograd::engine::evaluate_function", 35),
]


def test_a_call_that_does_not_wait() -> None:
    found = host_of(CALL, "CUDA")
    assert found == {
        "operators": 2,
        "launches": 2,
        "waits": {},
        "allocations": 1,
        "allocated": 4096,
        "from_driver": 0,
    }


def waits(*events: Any) -> dict[str, int]:
    found: dict[str, int] = host_of([*CALL, *events], "CUDA")["waits"]
    return found


def test_a_wait_has_the_name_of_torchs_operator_that_reads() -> None:
    """As `if tensor:` does it: aten::is_nonzero, aten::item and the read itself, one within the other."""
    inner = event("aten::_local_scalar_dense", 42, until=48), event("cudaStreamSynchronize", 44)
    assert waits(event("aten::is_nonzero", 40, until=50), event("aten::item", 41, until=49), *inner) == {
        "aten::_local_scalar_dense": 1
    }


def test_an_operator_that_reads_within_another_counts_once() -> None:
    inner = event("aten::nonzero", 42, until=48), event("cudaStreamSynchronize", 44)
    assert waits(event("aten::masked_select", 40, until=50), *inner) == {"aten::masked_select": 1}


def test_a_copy_to_the_host_has_the_name_of_its_operator() -> None:
    outer = event("aten::to", 40, until=50), event("aten::copy_", 41, until=49)
    assert waits(*outer, event("cudaStreamSynchronize", 44)) == {"aten::copy_": 1}


def test_a_read_hides_no_other_wait() -> None:
    read = event("aten::_local_scalar_dense", 40, until=45)
    assert waits(read, event("cudaStreamSynchronize", 42), event("cudaDeviceSynchronize", 50)) == {
        "aten::_local_scalar_dense": 1,
        "cudaDeviceSynchronize": 1,
    }


def test_a_wait_without_an_operator_has_the_runtimes_name() -> None:
    assert waits(event("cudaStreamSynchronize", 40), event("cudaStreamSynchronize", 42)) == {"cudaStreamSynchronize": 2}


def test_what_comes_after_the_call_does_not_count() -> None:
    events = [*CALL, event("cudaDeviceSynchronize", 101), event("cudaMalloc", 50), event("[memory]", 102, 1, "CUDA")]
    found = host_of(events, "CUDA")
    assert (found["waits"], found["from_driver"], found["allocations"]) == ({}, 1, 1)
