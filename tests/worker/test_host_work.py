"""The host's work in a call, from handwritten profiler events of a GPU, like torch 2.11's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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


OUTER = event("aten::is_nonzero", 40, until=50)
READ, NONZERO = event("aten::_local_scalar_dense", 42, until=48), event("aten::nonzero", 42, until=48)
SYNCHRONIZED = event("cudaStreamSynchronize", 44)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([OUTER, READ, SYNCHRONIZED], {"aten::_local_scalar_dense": 1}),
        ([event("aten::masked_select", 40, until=50), NONZERO, SYNCHRONIZED], {"aten::masked_select": 1}),
        ([event("aten::to", 40, until=50), event("aten::copy_", 41, until=49), SYNCHRONIZED], {"aten::copy_": 1}),
        (
            [READ, SYNCHRONIZED, event("cudaDeviceSynchronize", 50)],
            {"aten::_local_scalar_dense": 1, "cudaDeviceSynchronize": 1},
        ),
        ([event("cudaStreamSynchronize", 40), event("cudaStreamSynchronize", 42)], {"cudaStreamSynchronize": 2}),
    ],
    ids=["a read", "a read within an operator", "a copy to the host", "a read and another wait", "no operator"],
)
def test_a_wait_has_the_name_of_torchs_operator_that_waits(events: list[Any], found: dict[str, int]) -> None:
    """A wait has the name of torch's outermost operator, as in `if tensor:`: aten::is_nonzero, aten::item, the read."""
    assert host_of([*CALL, *events], "CUDA")["waits"] == found


def test_what_comes_after_the_call_does_not_count() -> None:
    events = [*CALL, event("cudaDeviceSynchronize", 101), event("cudaMalloc", 50), event("[memory]", 102, 1, "CUDA")]
    found = host_of(events, "CUDA")
    assert (found["waits"], found["from_driver"], found["allocations"]) == ({}, 1, 1)
