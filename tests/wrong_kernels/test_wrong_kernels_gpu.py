"""Faults that need a GPU: streams, kernels, power, L2, memory outside torch, other processes."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

import hidden_costs
import mislabelled_kernels
import pytest
import right_attention
import stale_results
import torch
import wrong_on_gpu
import wrong_repeats
import wrong_results
from measuring_device import NOISE, MeasuringDevice, judged_device

from attnbench import judge
from attnbench.backends.pytorch.sdpa import Flash
from attnbench.core import stats
from attnbench.core.backend import Inputs, Signature
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Environment
from attnbench.core.policy import Policy
from attnbench.judge import inputs, screen
from attnbench.worker import environment
from attnbench.worker.measure import cuda_graph
from attnbench.worker.serve import Worker
from busy_process import busy_process

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("default"),
]

POLICY = Policy(target=0.05)
IN_A_LATER_LAUNCH = ("in the second launch", "in call ", "after timing")
MIB = 2**20


@pytest.fixture(scope="module")
def machine() -> Environment:
    found = environment.describe("cuda:0")
    return replace(found, device=environment.with_quick_rates(found.device, ["bf16", "fp32"]))


def measuring_device(machine: Environment) -> MeasuringDevice:
    made = judged_device(machine.device, POLICY)
    made.environment = machine
    return made


@pytest.fixture(scope="module")
def gpu(machine: Environment) -> MeasuringDevice:
    return measuring_device(machine)


@pytest.fixture
def fresh_gpu(machine: Environment) -> MeasuringDevice:
    """Return a device for one test, which may change its instruments."""
    return measuring_device(machine)


def case(direction: Any = "fwd", seqlen: int = 2048, dtype: Any = "bf16", causal: bool = False) -> Case:
    """Return a case of some 0.3 ms in bf16, for which a launch gap does not matter."""
    return Case(Shape(4, seqlen, seqlen, 16, 16, 128, 128), dtype, direction, causal)


def unexpected_cautions(device: MeasuringDevice, record: Any, policy: Policy | None = None) -> list[str]:
    """Return the cautions that do not appear by chance; after tests that draw power a replay may be at the cap."""
    return [text for text in device.cautions(record, policy) if not text.startswith((*NOISE, "Clock held down"))]


@pytest.mark.parametrize("timer", ["events", "graph", "cupti"])
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_right_kernels_pass(gpu: MeasuringDevice, timer: Any, direction: str) -> None:
    """No fault: torch's fused attention is ok with each timer, with L2 cold, and the report has no caution."""
    policy = Policy(timer=timer, target=0.05)
    record = gpu.passes(right_attention.fused, case(direction), policy)
    assert (record.timer, record.l2, record.host_bound, record.others) == (timer, "cold", False, ())
    assert unexpected_cautions(gpu, record, policy) == []
    assert record.kernels


@pytest.mark.parametrize("backend", [right_attention.attention, Flash()], ids=["own", "sdpa-flash"])
def test_right_kernels_run_what_they_declare(gpu: MeasuringDevice, backend: Any) -> None:
    """No fault: matmuls in bf16, and SDPA forced to flash, run what they declare."""
    record = gpu.passes(backend, case(causal=True))
    assert unexpected_cautions(gpu, record) == []


# Results


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (wrong_results.zeros, "out is off by"),
        (wrong_results.unwritten, "never written"),
        (wrong_on_gpu.unwritten_end, "never written"),
    ],
)
def test_zeros_and_unwritten_results(gpu: MeasuringDevice, kernel: Any, expected: str) -> None:
    """Fault: zeros; nothing written; all but the last row written. Found: wrong, as memory was filled with NaN."""
    reason = gpu.finds_wrong(kernel, case())
    assert expected in reason


@pytest.mark.parametrize("operands", ["qkvp", "qk", "v", "p"])
@pytest.mark.parametrize("causal", [False, True])
def test_fp8_inside(gpu: MeasuringDevice, operands: str, causal: bool) -> None:
    """Fault: operands are rounded to float8_e4m3fn. Found: wrong."""
    gpu.finds_wrong(wrong_results.InFewerBits(operands, wrong_results.fp8), case(seqlen=512, causal=causal))


def test_tf32_in_fp32(gpu: MeasuringDevice) -> None:
    """Fault: TF32 in a float32 case. Found: wrong; the same without TF32 is ok."""
    which = case(seqlen=1024, dtype="fp32")
    gpu.passes(right_attention.attention, which)
    gpu.finds_wrong(wrong_on_gpu.tf32, which)


def test_gradients_that_accumulate(gpu: MeasuringDevice) -> None:
    """Fault: it adds to .grad and never clears it. Found: wrong in a later launch."""
    reason = gpu.finds_wrong(wrong_results.AccumulatesGrad(), case("bwd", seqlen=1024))
    assert reason.startswith(IN_A_LATER_LAUNCH)


class WrongTileOf:
    """Returns the results of a right function, with zeros in 64 rows of one head."""

    def __init__(self, row: int, head: int) -> None:
        self.at = (0, slice(row, row + 64), head)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        out = right_attention.fused(q, k, v, **options).clone()
        out[self.at] = 0
        return out


@pytest.mark.parametrize("causal", [False, True])
def test_a_wrong_tile_in_one_head_of_a_long_case(gpu: MeasuringDevice, causal: bool) -> None:
    """Fault: 64 of 32768 rows of one head are zeros, with grouped heads; the sample sees half of such tiles. Found:
    wrong each time.
    """
    which = Case(Shape(1, 32768, 32768, 16, 4, 128, 128), "bf16", "fwd", causal)
    gpu.passes(right_attention.fused, which)
    for row, head in ((1024, 3), (9984, 0), (20032, 15), (32000, 8)):
        record = gpu.measure(WrongTileOf(row, head), which)
        print(row, head, record.reason)
        assert record.status == "wrong", f"the tile at row {row} of head {head}"


@pytest.mark.parametrize("kernel", ["EFFICIENT_ATTENTION", "FLASH_ATTENTION"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("lengths", [(16384, 16384), (8192, 32768)], ids=str)
@pytest.mark.parametrize("headdim", [64, 128, 256])
def test_the_screen_of_long_cases(kernel: str, dtype: Any, lengths: tuple[int, int], headdim: int) -> None:
    """No fault: no kernel of torch is found wrong where another one screens it, causal and with grouped heads.

    Fault: one tile of 64 rows is 10 % too large. Found: wrong.
    """
    which = Case(Shape(2, *lengths, 16, 2, headdim, headdim), dtype, "fwd", True)
    given = inputs.make(which, "cuda", 0)
    other = next(name for name in screen.KERNELS if name != kernel)
    out = torch.stack([screen._attend_fused(which, given, entry, other) for entry in range(2)])
    runs = Signature(("fmha_cutlass",)) if kernel == "FLASH_ATTENTION" else Signature()
    assert screen.other_kernels(torch.device("cuda"), runs)[0] == kernel
    assert screen.is_screened(which, torch.device("cuda"))
    difference, _ = screen._differences(which, given, out, kernel, {})
    print(f"largest difference beside the row's size: {float(difference.max()):.3g}")
    began = time.perf_counter()
    assert judge.find_wrong_rows(which, given, out, runs) is None
    print(f"{time.perf_counter() - began:.2f} s")
    out[1, 5056:5120, 11] *= 1.1
    assert judge.find_wrong_rows(which, given, out, runs) is not None


# Stored results


@pytest.mark.parametrize("clone", [False, True])
def test_a_stored_output(gpu: MeasuringDevice, clone: bool) -> None:
    """Fault: it returns the last output for the same addresses, or a copy of it. Found: wrong in a later launch."""
    stored = stale_results.CachesOutput(stale_results.by_address, clone=clone, right=right_attention.fused)
    assert gpu.finds_wrong(stored, case()).startswith(IN_A_LATER_LAUNCH)


def test_a_stored_output_by_contents(gpu: MeasuringDevice) -> None:
    """Fault: it returns the last output where a few values are the same. Found: a call on other inputs takes longer."""
    record = gpu.measure(
        stale_results.CachesOutput(stale_results.by_contents, clone=True, right=right_attention.fused),
        case(seqlen=8192),
    )
    assert record.status in ("wrong", "wrong-kernel")


def test_stored_probabilities(gpu: MeasuringDevice) -> None:
    """Fault: softmax(q k) is computed once for the same addresses. Found: wrong."""
    assert gpu.objections(gpu.measure(stale_results.CachesProbabilities(), case())), "it passed as right"


@pytest.mark.parametrize("direction", ["bwd", "fwd_bwd"])
def test_stored_gradients(gpu: MeasuringDevice, direction: str) -> None:
    """Fault: it returns the last gradients for the same addresses. Found: wrong after dout is changed."""
    gpu.finds_wrong(stale_results.CachesGradients(), case(direction, seqlen=1024))


# Work outside the measured time


@pytest.mark.parametrize("waits", [True, False], ids=["begins in turn", "begins at once"])
@pytest.mark.parametrize("part", [1.0, 0.5], ids=["all", "half"])
def test_on_another_stream(gpu: MeasuringDevice, waits: bool, part: float) -> None:
    """Fault: it computes all, or half, on another stream, and returns before that is done. Found: wrong or
    wrong-kernel.

    Half of it may be done in time by chance, and is marked then.
    """
    record = gpu.measure(wrong_on_gpu.OnAnotherStream(waits=waits, part=part), case())
    lucky = part == 0.5 and waits and gpu.objections(record)
    assert record.status in ("wrong", "wrong-kernel") or lucky, record.reason


@pytest.mark.parametrize(
    ("delay", "buffer"), [(2e-3, False), (2e-3, True), (0.3, True)], ids=["not written", "soon", "late"]
)
def test_work_left_to_a_thread(gpu: MeasuringDevice, delay: float, buffer: bool) -> None:
    """Fault: a Python thread launches the kernels after the call has returned. Found: wrong or wrong-kernel."""
    kernel = stale_results.ComputesLaterInThread(delay, buffer=buffer, right=right_attention.fused)
    record = gpu.measure(kernel, case())
    kernel.join()
    torch.cuda.synchronize()
    assert record.status in ("wrong", "wrong-kernel"), record.reason


@pytest.mark.parametrize("first_whole", [False, True])
def test_work_left_for_the_next_call(gpu: MeasuringDevice, first_whole: bool) -> None:
    """Fault: half the batch is computed at the start of the next call. Found: wrong."""
    record = gpu.measure(
        stale_results.LeavesWorkToNextCall(first_whole=first_whole, right=right_attention.fused), case()
    )
    assert record.status == "wrong", record.reason


@pytest.mark.parametrize("kernel", [mislabelled_kernels.WorksInCanonical, mislabelled_kernels.FinishesInCanonical])
def test_work_left_to_canonical(gpu: MeasuringDevice, kernel: Any) -> None:
    """Fault: `canonical` computes the results, or the last of the batch. Found: wrong-kernel."""
    record = gpu.measure(kernel(right_attention.fused), case())
    assert record.status == "wrong-kernel", record.reason
    assert "nothing ran" in str(record.reason) or "only name its results" in str(record.reason)


def test_less_when_captured(gpu: MeasuringDevice) -> None:
    """Fault: under CUDA graph capture it only fills zeros. Found: wrong-kernel, as a launch takes longer."""
    policy = Policy(timer="graph", target=0.05)
    record = gpu.measure(wrong_on_gpu.LessWhenCaptured(), case(), policy)
    assert record.status == "wrong-kernel", record.reason
    assert "part of its work is not in its time" in str(record.reason)


@pytest.mark.parametrize(("delay", "slow_calls"), [(2e-3, 10), (0.02, 10), (0.1, 5)])
def test_slow_at_first(gpu: MeasuringDevice, delay: float, slow_calls: int) -> None:
    """Fault: its first calls are slow. Found: the latency of later calls, or a note doubts it."""
    record = gpu.passes(hidden_costs.SlowAtFirst(delay, right_attention.fused, slow_calls), case())
    latency = gpu.value(record, "latency")
    assert latency is not None
    assert latency < delay / 2 or any("much slower than a later call" in note for note in record.notes)
    assert latency < delay / 2 or any("much slower than a later call" in text for text in gpu.facts(record))


@pytest.mark.parametrize("kernel", [wrong_on_gpu.waits_for_data, wrong_on_gpu.on_the_host])
def test_the_host_waits_inside(gpu: MeasuringDevice, kernel: Any) -> None:
    """Fault: the call waits for the device, or computes on the host, between its kernels. Found: host-bound, in the
    report too.
    """
    record = gpu.passes(kernel, case())
    assert record.host_bound
    assert any(text.startswith("Host-bound") for text in gpu.cautions(record))


def test_sleep_in_the_launch(gpu: MeasuringDevice) -> None:
    """Fault: 2 ms of host time in a launch, unseen by the device. Found: in enqueue, and the report says so."""
    record = gpu.passes(hidden_costs.sleeps_in_launch, case())
    enqueue = gpu.value(record, "enqueue")
    assert enqueue is not None
    assert enqueue >= 2e-3
    assert any(text.startswith(("Launch-bound", "Host-bound")) for text in gpu.objections(record))


def test_events_that_report_too_little(fresh_gpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: CUDA events report a tenth of what they measured. Found: CUPTI saw the kernels run for longer."""
    real = torch.cuda.Event.elapsed_time
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *events: real(*events) / 10)
    record = fresh_gpu.measure(right_attention.fused, case())
    assert fresh_gpu.objections(record), "it passed as right"
    assert record.status == "wrong-kernel"


# Another kernel than the name says


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_silent_fallback(gpu: MeasuringDevice, direction: str) -> None:
    """Fault: it declares my_fused_kernel and calls matmuls. Found: wrong-kernel, with the kernels that ran."""
    record = gpu.measure(mislabelled_kernels.falls_back, case(direction, seqlen=1024))
    assert record.status == "wrong-kernel", record.reason
    assert str(record.reason).startswith("no kernel like 'my_fused_kernel' ran; instead: ")


def test_a_declared_kernel_that_does_nothing(gpu: MeasuringDevice) -> None:
    """Fault: a kernel of the declared name runs and does nothing, and others do the work. Found: it took too little
    time.
    """
    record = gpu.measure(mislabelled_kernels.declared_kernel_does_nothing, case())
    assert any("distribution_elementwise" in name for name in record.kernels), record.reason
    assert gpu.objections(record), "it passed as right"


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_flash_that_chose_math(gpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    """Fault: SDPA is told flash and chooses math, because its switches do not work. Found: wrong-kernel."""
    for name in ("math", "mem_efficient", "flash", "cudnn"):
        set_switch = getattr(torch.backends.cuda, f"enable_{name}_sdp")
        monkeypatch.setattr(torch.backends.cuda, f"enable_{name}_sdp", lambda _, s=set_switch, n=name: s(n == "math"))
    record = gpu.measure(Flash(), case(direction, seqlen=1024))
    assert record.status == "wrong-kernel", record.reason
    assert "no kernel like 'flash_" in str(record.reason)


def test_eager_that_is_fused(gpu: MeasuringDevice) -> None:
    """Fault: the baseline of all speedups is torch's fused attention. Found: wrong-kernel."""
    assert gpu.measure(mislabelled_kernels.FusedCalledEager(), case()).status == "wrong-kernel"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kernel", [mislabelled_kernels.in_float32, wrong_on_gpu.in_tf32])
def test_float32_in_a_half_precision_case(gpu: MeasuringDevice, dtype: str, kernel: Any) -> None:
    """A half-precision case is computed in float32 or TF32.

    Own code may do so, and the report says so. Fault: it declares other kernels. Found: wrong-kernel, by the products'
    names.
    """
    record = gpu.measure(kernel, case(dtype=dtype))
    print(*record.kernels, sep="\n")
    assert record.status == "ok", record.reason
    assert any("a float32 product" in text for text in gpu.facts(record)), f"not known: {', '.join(record.kernels)}"
    declaring = functools.partial(kernel)
    declaring.kernels = "(?i)softmax"  # type: ignore[attr-defined]
    record = gpu.measure(declaring, case(dtype=dtype))
    assert record.status == "wrong-kernel", record.reason
    assert "a float32 product" in str(record.reason)


# The cache


@pytest.mark.parametrize("timer", ["events", "cupti"])
def test_a_flush_that_is_too_small(fresh_gpu: MeasuringDevice, timer: Any) -> None:
    """Fault: the flush before each sample writes 1 KiB. Found: l2 is "unproven", and the report says so."""
    fresh_gpu.measurer.flush.buffer = fresh_gpu.measurer.flush.buffer[:1024].clone()
    policy = Policy(timer=timer, target=0.05)
    record = fresh_gpu.passes(right_attention.fused, case(), policy)
    assert record.l2 == "unproven"
    assert any(text.startswith("L2 not proven cold") for text in fresh_gpu.cautions(record, policy))


def test_one_copy_in_the_graph(fresh_gpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the launches in a CUDA graph share one set of operands, which stays in L2. Found: l2 is "unproven"."""
    monkeypatch.setattr(cuda_graph, "copies_needed", lambda *_: 1)
    policy = Policy(timer="graph", target=0.05)
    record = fresh_gpu.passes(right_attention.fused, case(), policy)
    assert record.l2 == "unproven"
    assert any(text.startswith("L2 not proven cold") for text in fresh_gpu.cautions(record, policy))


def test_inputs_of_zeros(machine: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: inputs are zeros, which draw less power. Found: failed. The worker makes them, without a judge."""
    alone = MeasuringDevice(Worker(), machine.device, POLICY)
    real = inputs.make

    def make(*args: Any) -> Inputs:
        given = real(*args)
        return Inputs(*(torch.zeros_like(t) for t in (given.q, given.k, given.v)))

    monkeypatch.setattr(inputs, "make", make)
    record = alone.measure(right_attention.fused, case())
    assert record.status == "failed"
    assert "inputs: q hardly varies" in str(record.reason)


# Power, and other processes


def test_a_clock_that_falls(fresh_gpu: MeasuringDevice) -> None:
    """Fault: seconds of work without a pause, at the power cap. Found: clock_held falls, and the cell is marked.

    A call of 10 ms is a burst of its own, so that the first, after a pause, shows the clock of the cell's best burst.
    """
    policy = Policy(burst_s=5.0, min_seconds=3.0, max_seconds=4.0, target=0.05)
    record = fresh_gpu.passes(wrong_on_gpu.PowerHungry(6), case(), policy)
    clocks = record.measurements["clock_held"].values
    print(
        f"clock {min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz; {record.limits}; {fresh_gpu.cautions(record)}"
    )
    assert stats.median(clocks) < 0.985 * fresh_gpu.measurer.events.best_clock
    assert "power cap" in record.limits
    assert fresh_gpu.cell(record, policy).held_down
    assert any(text.startswith("Clock held down by power cap") for text in fresh_gpu.cautions(record, policy))


def test_a_clock_that_is_held(fresh_gpu: MeasuringDevice) -> None:
    """No fault: the same work in short bursts keeps its clock, and the cell is not marked."""
    record = fresh_gpu.passes(wrong_on_gpu.PowerHungry(4), case())
    clocks = record.measurements["clock_held"].values
    print(
        f"clock {min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz; {record.limits}; {fresh_gpu.cautions(record)}"
    )
    assert not fresh_gpu.cell(record).held_down


@pytest.mark.parametrize("seconds", [0.2, 3.0], ids=["a usual cell", "a long one"])
def test_another_process(gpu: MeasuringDevice, seconds: float) -> None:
    """Fault: another process computes on the GPU meanwhile. Found: the record names it, and the report says so."""
    policy = Policy(min_seconds=seconds, max_seconds=seconds, target=1e-6)
    alone = gpu.measure(right_attention.fused, case(), policy)
    assert alone.others == ()
    with busy_process():
        shared = gpu.measure(right_attention.fused, case(), policy)
    latencies = [gpu.value(r, "latency") for r in (alone, shared)]
    print(f"alone and shared: {latencies} s; {shared.others}; {gpu.cautions(shared, policy)}")
    assert shared.others
    assert any(text.startswith("Shared GPU") for text in gpu.cautions(shared, policy))


# Memory


def test_memory_outside_torch(gpu: MeasuringDevice, fresh_gpu: MeasuringDevice) -> None:
    """Fault: it takes 512 MiB by cudaMalloc. Found: they are in memory_driver, and the report says so."""
    gpu.measure(right_attention.fused, case())  # loads the modules of a first use
    right_record = fresh_gpu.measure(right_attention.fused, case())
    assert not [text for text in fresh_gpu.facts(right_record) if text.startswith("Memory outside torch")]
    kernel = hidden_costs.OutsideTorch(512 * MIB, right_attention.fused)
    wrong_record = fresh_gpu.measure(kernel, case())
    kernel.free()
    assert wrong_record.status == "ok", wrong_record.reason
    peak, driver = (wrong_record.measurements[name].values[0] for name in ("memory_peak", "memory_driver"))
    assert peak < 128 * MIB
    assert driver - peak >= 512 * MIB
    assert any(text.startswith("Memory outside torch's allocator") for text in fresh_gpu.facts(wrong_record))


def test_a_workspace_kept_from_the_first_call(gpu: MeasuringDevice) -> None:
    """Fault: it allocates 256 MiB in its first call and keeps them. Found: they are in both memory metrics."""
    right_record = gpu.measure(right_attention.fused, case())
    record = gpu.measure(hidden_costs.KeepsWorkspace(256 * MIB, right_attention.fused), case())
    for name in ("memory_peak", "memory_driver"):
        before, found = (r.measurements[name].values[0] for r in (right_record, record))
        assert found - before >= 256 * MIB


@pytest.mark.parametrize("every", [5, 10])
def test_wrong_in_one_call_of_some(gpu: MeasuringDevice, every: int) -> None:
    """Fault: each tenth call is wrong. Found: wrong."""
    gpu.finds_wrong(wrong_repeats.WrongNowAndThen(every, right_attention.fused), case())


class OnOneBuffer:
    """Sums to a buffer that a fill on another stream should have cleared, and does not wait for that fill."""

    def __init__(self) -> None:
        self.side = torch.cuda.Stream()
        self.buffer: torch.Tensor | None = None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        out = right_attention.fused(q, k, v, **options)
        if self.buffer is None:
            self.buffer = torch.zeros_like(out)
            torch.cuda.synchronize()
        result = self.buffer + out
        self.buffer.copy_(out)  # as a partial sum of this call
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(100_000)  # 50 us, in which the next call may begin
            self.buffer.zero_()
        return result


def test_a_missing_wait(gpu: MeasuringDevice) -> None:
    """Fault: a buffer is cleared on a stream that the next call does not wait for. Found: the record is marked."""
    record = gpu.measure(OnOneBuffer(), case())
    assert record.status != "ok" or gpu.objections(record), "it passed as right"


def test_a_workspace_hidden_in_prepare(gpu: MeasuringDevice) -> None:
    """Fault: it allocates 2 GiB of workspace in `prepare`. Found: a memory metric contains them, or the record is
    marked.
    """
    record = gpu.measure(hidden_costs.HidesWorkspace(2048 * MIB), case(seqlen=1024))
    most = max(record.measurements[name].values[0] for name in ("memory_peak", "memory_driver"))
    assert most >= 2048 * MIB or gpu.objections(record), "it passed as right"
