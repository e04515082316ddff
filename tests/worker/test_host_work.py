"""What the host does in a call, from the profiler's events of a GPU, written by hand after those of torch 2.11."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attnbench.worker.host_work import host_work


def event(name: str, at: int, nbytes: int = 0, device: str = "CPU") -> Any:
    kind = f"DeviceType.{device}"
    return SimpleNamespace(name=lambda: name, start_ns=lambda: at, nbytes=lambda: nbytes, device_type=lambda: kind)


CALL = [
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
    found = host_work(CALL, 0, 100, "CUDA")
    assert found == {
        "operators": 2,
        "launches": 2,
        "waits": {},
        "allocations": 1,
        "allocated": 4096,
        "from_driver": 0,
    }


def test_a_wait_has_the_name_of_torchs_operator() -> None:
    events = [
        *CALL,
        event("aten::item", 40),
        event("aten::_local_scalar_dense", 41),
        event("cudaStreamSynchronize", 42),
    ]
    assert host_work(events, 0, 100, "CUDA")["waits"] == {"aten::_local_scalar_dense": 1}


def test_a_wait_without_an_operator_has_the_runtimes_name() -> None:
    events = [*CALL, event("cudaStreamSynchronize", 40), event("cudaStreamSynchronize", 41)]
    assert host_work(events, 0, 100, "CUDA")["waits"] == {"cudaStreamSynchronize": 2}


def test_what_comes_after_the_call_does_not_count() -> None:
    events = [*CALL, event("cudaDeviceSynchronize", 101), event("cudaMalloc", 50), event("[memory]", 102, 1, "CUDA")]
    found = host_work(events, 0, 100, "CUDA")
    assert (found["waits"], found["from_driver"], found["allocations"]) == ({}, 1, 1)
