"""Faults in the kernels that ran: not those that the name says, another precision, work outside the launch.

The tests judge torch's operators on a CPU, and handwritten traces; test_wrong_kernels_gpu.py has real kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mislabelled_kernels
import pytest
import torch
from measuring_device import QUICK, MeasuringDevice, case

from attnbench.backends.pytorch.eager import Eager
from attnbench.backends.pytorch.sdpa import Flash, Math
from attnbench.core.activity import Activity
from attnbench.core.backend import Prepared, Signature
from attnbench.core.record import Measurement
from attnbench.worker import kernel_trace
from attnbench.worker.instruments import Timing
from attnbench.worker.measure.cupti import TracedCall


def without_gqa(direction: Any = "fwd", **more: Any) -> Any:
    return case(direction, nheads_k=4, **more)


@pytest.mark.parametrize(
    "backend", [mislabelled_kernels.right_and_declared, Eager(), Math(), Flash()], ids=["own", "eager", "math", "flash"]
)
@pytest.mark.parametrize(("dtype", "direction"), [("fp32", "fwd"), ("bf16", "bwd"), ("bf16", "fwd_bwd")])
def test_right_kernels_pass(steady_cpu: MeasuringDevice, backend: Any, dtype: str, direction: str) -> None:
    """No fault: a person's function and attnbench's backends run what they declare, and the report has no caution."""
    record = steady_cpu.passes(backend, without_gqa(direction, dtype=dtype, causal=True))
    assert steady_cpu.cautions(record) == []
    assert steady_cpu.objections(record) == []
    assert record.kernels


@pytest.mark.parametrize("direction", ["fwd", "fwd_bwd"])
def test_a_silent_fallback(steady_cpu: MeasuringDevice, direction: str) -> None:
    """Fault: it declares my_fused_kernel and calls matmuls. Found: wrong-kernel, with the kernels that ran."""
    record = steady_cpu.measure(mislabelled_kernels.falls_back, case(direction))
    assert record.status == "wrong-kernel"
    assert str(record.reason).startswith("no kernel like 'my_fused_kernel' ran; instead: aten::")
    assert "time" not in record.measurements
    assert any("where a kernel ran that is not the backend's" in text for text in steady_cpu.cautions(record))


def test_a_fallback_outside_torch(steady_cpu: MeasuringDevice) -> None:
    """Fault: it declares my_fused_kernel and calls numpy. Found: wrong-kernel. Where it declares nothing, the report
    says that no operator ran.
    """
    record = steady_cpu.passes(mislabelled_kernels.uses_numpy, case())
    assert any("no operator of torch ran" in text for text in steady_cpu.facts(record))
    record = steady_cpu.measure(mislabelled_kernels.falls_back_to_numpy, case())
    assert record.status == "wrong-kernel"


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_flash_that_chose_math(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    """Fault: SDPA is told flash and chooses math, because its switches do not work. Found: wrong-kernel."""
    for name in ("math", "mem_efficient", "flash", "cudnn"):
        set_switch = getattr(torch.backends.cuda, f"enable_{name}_sdp")
        monkeypatch.setattr(torch.backends.cuda, f"enable_{name}_sdp", lambda _, s=set_switch, n=name: s(n == "math"))
    record = steady_cpu.measure(Flash(), without_gqa(direction))
    assert record.status == "wrong-kernel"
    assert "flash_attention_for_cpu" in str(record.reason)
    assert any("bmm" in name for name in record.kernels)


def test_eager_that_is_fused(steady_cpu: MeasuringDevice) -> None:
    """Fault: the baseline of all speedups is torch's fused attention. Found: wrong-kernel."""
    record = steady_cpu.measure(mislabelled_kernels.FusedCalledEager(), without_gqa())
    assert record.status == "wrong-kernel"


def test_a_declared_kernel_that_does_nothing(steady_cpu: MeasuringDevice) -> None:
    """Fault: a range of the declared name is marked, and others do the work. Found: no such operator ran."""
    record = steady_cpu.measure(mislabelled_kernels.declared_kernel_does_nothing, case())
    assert record.status == "wrong-kernel"
    assert str(record.reason).startswith(
        "no kernel like 'my_fused_kernel|distribution_elementwise' ran; instead: aten::"
    )


def test_a_declared_operator_of_little_time(steady_cpu: MeasuringDevice) -> None:
    """No fault: what it declares takes under 2 % of the time, as where other work holds a CPU up meanwhile."""
    record = steady_cpu.passes(mislabelled_kernels.declared_beside_a_long_sort, case(), QUICK)
    assert steady_cpu.objections(record) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_float32_in_a_half_precision_case(steady_cpu: MeasuringDevice, dtype: str) -> None:
    """A half-precision case is computed in float32.

    Own code that declares no kernels may do so, and the report says so. Fault: it declares other kernels. Found:
    wrong-kernel, by the dtypes of operands.
    """
    record = steady_cpu.passes(mislabelled_kernels.in_float32, case(dtype=dtype))
    assert steady_cpu.cautions(record) == []
    assert any(
        f"aten::bmm<float> ran: a float32 product in a {dtype} case" in text for text in steady_cpu.facts(record)
    )
    record = steady_cpu.measure(mislabelled_kernels.in_float32_undeclared, case(dtype=dtype))
    assert record.status == "wrong-kernel"


@pytest.mark.parametrize(("kernels", "status"), [("", "ok"), ("softmax", "wrong-kernel")])
def test_float32_in_a_class_of_ones_own(steady_cpu: MeasuringDevice, kernels: str, status: str) -> None:
    """A person's class without declared kernels may choose its precision, like a function, but attnbench's may not."""
    own = mislabelled_kernels.InFloat32()
    own.forward_kernels = kernels  # type: ignore[misc]
    assert steady_cpu.measure(own, case(dtype="bf16")).status == status
    own.forward_kernels = ""  # type: ignore[misc]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mislabelled_kernels.InFloat32, "__module__", "attnbench.backends.mine")
        assert steady_cpu.measure(own, case(dtype="bf16")).status == "wrong-kernel"


@pytest.mark.parametrize("kernel", [mislabelled_kernels.WorksInCanonical, mislabelled_kernels.FinishesInCanonical])
def test_work_left_to_canonical(steady_cpu: MeasuringDevice, kernel: Any) -> None:
    """Fault: the launch returns a function, or half the result, and `canonical` computes. Found: wrong-kernel."""
    record = steady_cpu.measure(kernel(), case())
    assert record.status == "wrong-kernel"


# Traces of a GPU, written by hand

US = 1e-6


def trace(*kernels: tuple[str, float, float], overrun: float = 0.0) -> TracedCall:
    """Return a traced call of (name, start, end) in microseconds, with each kernel on its own stream."""
    spans = tuple(Activity(name, start * US, end * US, stream) for stream, (name, start, end) in enumerate(kernels))
    return TracedCall(spans, overrun * US)


NOTHING = trace()
FLASH, MATMUL = ("flash_fwd_kernel", 0.0, 100.0), ("cutlass_sgemm_128x64", 0.0, 100.0)


@pytest.mark.parametrize(
    ("launched", "named", "expected"),
    [
        (trace(FLASH), NOTHING, None),
        (trace(FLASH, ("flash_fwd_kernel", 0.0, 101.0)), NOTHING, None),
        (trace(FLASH, overrun=0.0), NOTHING, None),
        (NOTHING, NOTHING, "nothing ran on the device during the launch"),
        (NOTHING, trace(FLASH), "nothing ran on the device during the launch"),
        (trace(FLASH, overrun=40.0), NOTHING, "its work ran for 40 us after its stream had passed it"),
        (trace(FLASH), trace(("copy_kernel", 0.0, 5.0)), "copy_kernel ran after the launch"),
        (trace(("flash_fwd_kernel", 0.0, 300.0)), NOTHING, "part of its work is not in its time"),
        (trace(("another_kernel", 0.0, 100.0)), NOTHING, "no kernel like 'flash_fwd' ran; instead: another_kernel"),
        (trace(FLASH, MATMUL), NOTHING, "cutlass_sgemm_128x64 ran: a float32 product in a bf16 case; "),
        (trace(FLASH, ("pytorch_mem_efficient", 0.0, 100.0)), NOTHING, "which is another implementation's"),
        (trace(("flash_fwd_kernel", 0.0, 1.0), ("another_kernel", 1.0, 100.0)), NOTHING, "another_kernel did more"),
    ],
    ids=[
        "no fault",
        "no fault, on two streams",
        "no fault, waited for",
        "a stored result",
        "work in canonical",
        "on another stream",
        "the rest in canonical",
        "work that was not timed",
        "falls back",
        "float32",
        "the other one as well",
        "little time",
    ],
)
def test_traces_of_faults(
    steady_cpu: MeasuringDevice,
    monkeypatch: pytest.MonkeyPatch,
    launched: TracedCall,
    named: TracedCall,
    expected: str | None,
) -> None:
    """Fault: as in a handwritten trace, for samples of 103 us. Found: wrong-kernel, with what the trace shows."""
    measurer = steady_cpu.measurer

    class Traced:
        def calls(self, launches: Sequence[Callable[[], Any]], before_each_try: Callable[[], Any]) -> list[TracedCall]:
            before_each_try()
            for launch in launches:
                launch()
            return [launched, named]

    monkeypatch.setattr(measurer, "device", torch.device("cuda"))
    monkeypatch.setattr(measurer, "tracer", Traced())
    timing = Timing({"time": Measurement("s", (103 * US,) * 9)}, "events", "cold", [])
    prepared = Prepared(launch=lambda: "raw", canonical=lambda raw: {"out": raw})
    signature = Signature(("flash_fwd",), ("mem_efficient",))
    shown = kernel_trace.trace_launch(measurer, case(dtype="bf16"), signature, prepared, timing, renew=list)
    assert shown.result == "raw"
    assert expected in str(shown.problem) if expected else (shown.problem, shown.notes) == (None, ())
