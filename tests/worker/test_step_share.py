"""The share of attention in a step, on traces with known answers, and the kernels of each layer."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.backends.transformers.step import Eager, Flash2, SdpaFlash
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.worker.step.attention_calls import MARK
from attnbench.worker.step.attention_share import STEP, split, wrong_kernels

STEP_OF_TWO = "{} tiny 2/2 arch=llama hidden=128 intermediate=256 vocab=512"
H100 = Device("cuda", 0, "NVIDIA H100", memory=80 * 10**9, free=79 * 10**9, capability=(9, 0))


def case(phase: str = "prefill") -> Case:
    direction: Any = "fwd_bwd" if phase == "train" else "fwd"
    return Case(Shape(1, 64, 64, 4, 2, 32, 32), "bf16", direction, True, step=STEP_OF_TWO.format(phase))


def event(name: str, start: int, end: int, correlation: int = 0, *, on_gpu: bool = False) -> Any:
    """Return a stand-in for an event of the profiler, with times in ns."""
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start,
        end_ns=lambda: end,
        duration_ns=lambda: end - start,
        correlation_id=lambda: correlation,
        device_type=lambda: "DeviceType.CUDA" if on_gpu else "DeviceType.CPU",
        is_user_annotation=lambda: False,
        dtypes=list,
    )


def trace(*work: tuple[str, str, int]) -> list[Any]:
    """Return the events of kernels (range or "", name, ns), launched in a row and run much later."""
    events, host, device = [], 0, 1_000_000
    for number, (what, name, ns) in enumerate(work, 1):
        if what:
            events.append(event(f"{MARK}.{what}.begin", host, host + 1))
        events.append(event("cudaLaunchKernel", host + 2, host + 3, number))
        if what:
            events.append(event(f"{MARK}.{what}.end", host + 4, host + 5))
        events.append(event(name, device, device + ns, number, on_gpu=True))
        host, device = host + 10, device + ns
    return events


def test_a_kernel_belongs_to_the_range_that_launched_it() -> None:
    found = split(
        trace(
            ("", "gemm", 400),
            ("mask", "fill", 50),
            ("forward", "flash_fwd_kernel", 100),
            ("", "gemm", 300),
            ("backward", "flash_bwd_kernel", 150),
        ),
        on_gpu=True,
    )
    assert found.seconds == pytest.approx(1000e-9)
    assert found.attention == pytest.approx(300e-9)
    assert [of.what for of in found.ranges] == ["mask", "forward", "backward"]
    assert [a.name for a in found.of("backward")[0].activities] == ["flash_bwd_kernel"]


def test_on_a_cpu_a_range_takes_the_time_between_its_marks() -> None:
    events = [
        event(STEP, 0, 1000),
        event(f"{MARK}.forward.begin", 100, 101),
        event("aten::bmm", 110, 150),
        event(f"{MARK}.forward.end", 299, 300),
        event("aten::mm", 400, 900),
    ]
    found = split(events, on_gpu=False)
    assert (found.seconds, found.attention) == pytest.approx((1000e-9, 198e-9))
    assert [a.name for a in found.of("forward")[0].activities] == ["aten::bmm"]


def test_marks_that_are_no_pairs_are_told() -> None:
    events = trace(("forward", "flash_fwd_kernel", 100))
    with pytest.raises(ValueError, match="not pairs"):
        split(events[:-2], on_gpu=True)


FORWARD = ("forward", "flash_fwd_kernel", 100)
BACKWARD = ("backward", "flash_bwd_kernel", 100)


@pytest.mark.parametrize(
    ("backend", "phase", "work", "problem"),
    [
        (Flash2, "prefill", [FORWARD, FORWARD], None),
        (Flash2, "train", [FORWARD, FORWARD, BACKWARD, BACKWARD], None),
        (Flash2, "prefill", [FORWARD], "attention ran 1 times in the forward of 2 layers"),
        (Flash2, "prefill", [FORWARD, ("forward", "pytorch_flash::flash_fwd_kernel", 9)], "forward 2 of 2: .*another"),
        (Flash2, "train", [FORWARD, FORWARD, BACKWARD, ("backward", "sgemm", 9)], "backward 2 of 2: no kernel like"),
        (SdpaFlash, "prefill", [FORWARD, ("forward", "fmha_cutlassF_bf16", 100)], "forward 2 of 2: no kernel like"),
        (Eager, "prefill", [FORWARD, FORWARD], "forward 1 of 2: no kernel like"),
    ],
)
def test_every_layer_runs_the_kernels_of_the_implementation(
    backend: Any, phase: str, work: list[tuple[str, str, int]], problem: str | None
) -> None:
    found = wrong_kernels(split(trace(*work), on_gpu=True), backend(), case(phase), H100)
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(problem, found)
