"""The timers on a GPU, against each other and against kernels of known length. `pytest -s` prints the figures."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attnbench import backends
from attnbench.core import stats
from attnbench.core.case import Case, Shape
from attnbench.core.policy import Policy
from attnbench.core.record import Record
from attnbench.judge import inputs
from attnbench.results import metrics, run_file
from attnbench.results.rows import Row, Source
from attnbench.worker import environment
from attnbench.worker.instruments import Instruments
from attnbench.worker.measure import cuda_graph, l2_cache
from attnbench.worker.measure.cuda_events import EventTimer
from attnbench.worker.measure.nvml import StateSampler
from attnbench.worker.measure.sampling import Pacer, collect_samples, do_nothing, pause

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.fixture(scope="module")
def instruments() -> Instruments:
    return Instruments(environment.with_quick_rates(environment.describe("cuda:0").device))


def spin(events: EventTimer, seconds: float) -> Callable[[], None]:
    """Return a launch of a kernel that spins for `seconds`."""
    return partial(events.gauge.spin, seconds)


@pytest.mark.parametrize("seconds", [20e-6, 200e-6, 2e-3])
def test_events_and_spans_read_a_kernel_of_known_length(instruments: Instruments, seconds: float) -> None:
    events, tracer = instruments.events, instruments.tracer
    assert events is not None
    assert tracer is not None
    events.calibrate()
    # Both timers read the same calls, because one step of the clock changes 2 ms by 15 us.
    calls = tracer.calls([spin(events, seconds)] * 20)
    by_events, by_cupti = (stats.median(read) for read in ([c.events for c in calls], [c.span for c in calls]))
    print(f"{seconds * 1e6:.0f} us: events {by_events * 1e6:.2f}, CUPTI {by_cupti * 1e6:.2f}")
    assert by_cupti == pytest.approx(seconds, rel=0.01, abs=1.5e-6)
    assert -0.2e-6 < by_events - by_cupti < 5e-6


def test_a_graph_of_copies_reads_what_the_spans_say(instruments: Instruments) -> None:
    events, tracer = instruments.events, instruments.tracer
    assert events is not None
    assert tracer is not None
    x = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    out = [torch.empty_like(x[0]) for _ in x]
    launches = [partial(torch.matmul, a, a, out=b) for a, b in zip(x, out, strict=True)]
    timer = cuda_graph.GraphTimer(events, lambda: launches, 200e-6)
    ratios = []
    for _ in range(10):
        replayed = stats.median(timer.samples(3 * timer.launches))
        pause(0.01)
        ratios.append(replayed / stats.median(tracer.samples(launches[0], 10)))
        pause(0.01)
    timer.close()
    print(f"graph / CUPTI on a matmul: {stats.median(ratios):.4f}")
    assert stats.median(ratios) == pytest.approx(1, abs=0.02)


def test_the_exp_ceiling_is_what_the_special_function_units_do(instruments: Instruments) -> None:
    """The exp ceiling is the special function units' 16 a cycle and multiprocessor, from Ampere to Blackwell.

    The figure is from the CUDA programming guide, "Arithmetic throughput".
    """
    rate = max(instruments.ceilings(torch.bfloat16)["ceiling_exp"].values)
    assert instruments.events is not None
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    a_cycle = rate / multiprocessors / instruments.events.best_clock
    print(f"{rate / 1e12:.2f} Texp/s, {a_cycle:.2f} a cycle and multiprocessor at the best clock")
    assert 14.4 < a_cycle <= 16.05


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_events_and_spans_agree_on_the_same_calls(instruments: Instruments, backend: str) -> None:
    """Events and spans agree on the same calls, even if tracing slows the kernel, because both include the slowdown.

    Prints the cost of tracing, measured in turns.
    """
    events, tracer = instruments.events, instruments.tracer
    assert events is not None
    assert tracer is not None
    events.before = tracer.before = instruments.flush
    case = Case(Shape(2, 8192, 8192, 16, 16, 128, 128), "bf16", "fwd")
    prepared = backends.load(backend, backends.BACKENDS[backend]).prepare(case, inputs.make(case, "cuda:0", 0))
    prepared.launch()
    ratios, tracing_costs = [], []
    for _ in range(8):
        plain = stats.median(events.samples(prepared.launch, 2))
        pause(0.05)
        calls = tracer.calls([prepared.launch] * 2)
        pause(0.05)
        ratios += [call.span / call.events for call in calls]
        tracing_costs.append(stats.median([call.events for call in calls]) / plain - 1)
    print(f"{backend}: CUPTI / events {stats.median(ratios):.4f}, tracing costs {stats.median(tracing_costs):.4f}")
    assert max(ratios) < 1
    assert min(ratios) > 0.995
    assert (stats.median(tracing_costs) > 0.005) == (backend == "eager")


CONCURRENT_TRACING = """
import ctypes, glob, sys
import torch
from attnbench.core import stats

library = next(p for d in sys.path for p in glob.glob(d + "/nvidia/**/libcupti.so*", recursive=True))
cupti = ctypes.CDLL(library)
buffers = []

sizes = ctypes.POINTER(ctypes.c_size_t)

@ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), sizes, sizes)
def requested(buffer, size, most):
    buffers.append(ctypes.create_string_buffer(2**22))
    buffer[0], size[0], most[0] = (ctypes.addressof(buffers[-1]) + 7) // 8 * 8, 2**22 - 16, 0

@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
def completed(context, stream, buffer, size, valid):
    pass

assert cupti.cuptiActivityRegisterCallbacks(requested, completed) == 0
x = torch.randn(32, 8192, 8192, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(x)

def read():
    values = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(400_000)
        start.record()
        torch.softmax(x, -1, out=out)
        end.record()
        torch.cuda.synchronize()
        values.append(start.elapsed_time(end))
    return stats.median(values)

read()
off, serialized, concurrent = [], [], []
for _ in range(3):
    off.append(read())
    for kind, found in ((3, serialized), (10, concurrent)):  # CUPTI_ACTIVITY_KIND_KERNEL, _CONCURRENT_KERNEL
        assert cupti.cuptiActivityEnable(kind) == 0
        found.append(read())
        cupti.cuptiActivityFlushAll(1)
        assert cupti.cuptiActivityDisable(kind) == 0
print(stats.median(serialized) / stats.median(off), stats.median(concurrent) / stats.median(off))
"""


def test_cuptis_concurrent_mode_slows_kernels(tmp_path: Path) -> None:
    """CUPTI's concurrent mode, which torch.profiler uses, slows a softmax; its serialised mode does not."""
    (tmp_path / "toll.py").write_text(CONCURRENT_TRACING)
    done = subprocess.run([sys.executable, str(tmp_path / "toll.py")], capture_output=True, text=True)
    if "StopIteration" in done.stderr:
        pytest.skip("no libcupti in torch's packages")
    assert done.returncode == 0, done.stderr
    serialized, concurrent = map(float, done.stdout.split())
    print(f"softmax while CUPTI traces: serialised {serialized:.4f}, concurrent {concurrent:.4f}")
    assert serialized == pytest.approx(1, abs=0.003)
    assert concurrent > 1.01


@pytest.mark.parametrize("name", ["events", "cupti"])
def test_l2_is_cold_or_warm_as_set(instruments: Instruments, name: str) -> None:
    timer: Any = instruments.events if name == "events" else instruments.tracer
    found = {}
    for expected_state, before in (("cold", instruments.flush), ("warm", do_nothing)):
        timer.before = before
        found[expected_state] = l2_cache.observed_state(timer, instruments.device, instruments.l2_bytes)
    timer.before = instruments.flush
    assert found == {"cold": "cold", "warm": "warm"}


def test_a_graph_over_copies_is_cold(instruments: Instruments) -> None:
    assert instruments.events is not None
    found = cuda_graph.l2_state(instruments.events, instruments.device, instruments.l2_bytes, instruments.bandwidth)
    assert found == "cold"


def test_the_sampler_costs_a_short_kernel_under_0_3_percent(instruments: Instruments) -> None:
    events, state = instruments.events, instruments.state
    assert events is not None
    assert state is not None
    events.calibrate()
    launch = spin(events, 20e-6)
    ratios = []
    for turn in range(60):
        means = {}
        for sampled in (True, False) if turn % 2 else (False, True):
            if sampled:
                with StateSampler(state) as seen:
                    values = [v for _ in range(4) for v in events.samples(launch, 32)]
                assert seen.readings["clock_sm"]
            else:
                values = [v for _ in range(4) for v in events.samples(launch, 32)]
            means[sampled] = math.fsum(values) / len(values)
        ratios.append(means[True] / means[False])
    low, high = stats.median_interval(ratios)
    print(f"with the sampler / without: {stats.median(ratios):.5f}, 95 % interval {low:.5f} to {high:.5f}")
    assert abs(stats.median(ratios) - 1) < 0.003


def test_the_gauge_reads_what_nvml_says_of_a_steady_state(instruments: Instruments) -> None:
    """Under a steady load the gauge agrees with NVML within a step of the clock (15 MHz) on average over 2 s.

    At the power cap NVML may read too much: on two H200s a matmul ran at 1372 MHz by the gauge and at 1520 MHz by NVML,
    on an H100 at 1405 and 1412. There the gauge is tested by the matmul, which must take as many cycles as at the
    highest clock, within 2 %, because memory has another clock.
    """
    assert instruments.events is not None
    gauge, state = instruments.events.gauge, instruments.state
    instruments.events.calibrate()
    assert not gauge.fault
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wide, tall = (torch.randn(8192, 512, device="cuda").mT, torch.randn(8192, 8192, device="cuda"))
    loads = {
        "spin": (partial(gauge.spin, 2e-3), 2e-3),
        "copy": (tall.clone, 2e-4),
        "fp32 matmul": (lambda: wide @ tall, 2e-3),
        "bf16 matmul": (lambda: a @ b, 1.6e-3),
    }

    def window(launch: Callable[[], object], count: int) -> tuple[float, float, float]:
        """Return the clock by the gauge, the clock by NVML, and the cycles over `count` launches."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        gauge.begin()
        start.record()
        for _ in range(count):
            launch()
        end.record()
        gauge.end()
        readings = [state.clock_hz()]
        while not end.query():
            readings.append(state.clock_hz())
            time.sleep(0.01)
        hz = gauge.held_hz()
        return hz, math.fsum(readings) / len(readings), hz * start.elapsed_time(end) / 1e3

    for name, (launch, seconds) in loads.items():
        launch()
        torch.cuda.synchronize()
        time.sleep(1)
        few, many = int(0.005 / seconds), int(0.25 / seconds)
        some, twice = (stats.median([window(launch, count)[2] for _ in range(7)]) for count in (few, 2 * few))
        found = [window(launch, many) for _ in range(14)][4:]
        capped = state.limits()
        ours, nvml, cycles = (math.fsum(values) / len(found) for values in zip(*found, strict=True))
        told = f"{name}: counted {ours / 1e6:.0f} MHz, NVML {nvml / 1e6:.0f} MHz, {', '.join(capped)}"
        at_best = (twice - some) / few  # without the kernels that begin and end a window
        print(f"{told}; cycles of a launch over those of a short load {cycles / many / at_best:.4f}")
        if capped:
            assert cycles / many == pytest.approx(at_best, rel=0.02)
        assert capped or abs(ours - nvml) < 15e6


def test_readings_of_the_gauge_repeat(instruments: Instruments) -> None:
    """Readings of the gauge over 0.2 ms and over 5 ms agree within 0.5 % while the clock is steady."""
    assert instruments.events is not None
    gauge = instruments.events.gauge
    gauge.wake()
    time.sleep(0.2)
    gauge.wake()
    short = [gauge.now_hz() for _ in range(20)]
    gauge.spin(5e-3)
    assert short == [pytest.approx(gauge.spun_hz(), rel=0.005)] * 20


def test_a_writing_flush_slows_the_next_launch(instruments: Instruments) -> None:
    """A decode step waits for the write-back of L2 after a flush that writes, not after a flush that reads."""
    events, flush = instruments.events, instruments.flush
    assert events is not None
    q = torch.randn(1, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, 32, 16384, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    launch = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v)
    found: dict[str, list[float]] = {"writes": [], "reads": []}
    for _ in range(8):
        for name, before in (("writes", flush.buffer.zero_), ("reads", flush)):
            events.before = before
            found[name].append(stats.median(events.samples(launch, 24)))
    events.before = flush
    writes, reads = (stats.median(found[name]) * 1e6 for name in found)
    print(f"after a flush that writes {writes:.1f} us, that reads {reads:.1f} us")
    assert reads < writes


TWINS = """
import torch
import torch.nn.functional as F

def base(q, k, v, *, causal, softmax_scale):
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == "cudnn")
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)

def slower(q, k, v, *, causal, softmax_scale):
    out = base(q, k, v, causal=causal, softmax_scale=softmax_scale)
    torch.cuda._sleep(CYCLES)
    return out
"""
CYCLES = 68_000  # 34 us at 1.98 GHz: 2 % of cuDNN's forward at 16k on an H200, which is limited by the power cap


def test_a_slowdown_of_2_percent_is_measured_as_2_percent(tmp_path: Path) -> None:
    """A slowdown of 2 % of a power-limited cell is measured as 2 % in five rounds of fresh processes."""
    (tmp_path / "twins.py").write_text(TWINS.replace("CYCLES", str(CYCLES)))
    out = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "attnbench", "run", "-b", f"{tmp_path}/twins.py:base"]
    command += ["-b", f"{tmp_path}/twins.py:slower", "--seqlen", "16k", "--headdim", "128", "--causal", "--pass", "fwd"]
    done = subprocess.run([*command, "--rounds", "5", "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    by: dict[str, list[Record]] = {}
    run, _ = run_file.read(out)
    source = Source(run)
    for record in run.records:
        assert record.status == "ok", record.reason
        by.setdefault(record.backend, []).append(record)
    latency = {name: [metrics.value("latency", Row(r, source)) or 0.0 for r in rs] for name, rs in by.items()}
    # The spin runs at the clock of other spins, which cuDNN's forward does not reach.
    clock = stats.median([v for r in by["base"] for v in r.measurements["clock_before"].values])
    expected = CYCLES / clock / stats.median(latency["base"])
    read = [s / b - 1 for b, s in zip(latency["base"], latency["slower"], strict=True)]
    spread = max(latency["base"]) / min(latency["base"]) - 1
    each = ", ".join(f"{r:.4f}" for r in read)
    print(f"planted {expected:.4f}, read {stats.median(read):.4f} ({each}), A/A {spread:.4f}")
    assert stats.median(read) == pytest.approx(expected, abs=0.003)


def test_a_call_that_cannot_be_captured_is_skipped_and_others_are_measured(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    out = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "attnbench", "run", "-b", f"{tmp_path}/waits.py:waits", "--seqlen", "1k,2k"]
    command += ["--headdim", "64", "--causal", "--pass", "fwd", "--timer", "graph", "--out", str(out)]
    subprocess.run(command, capture_output=True, text=True)
    by = {r.case.shape.seqlen_q: r for r in run_file.read(out)[0].records}
    assert by[1024].status == "skipped"
    assert "cannot be captured in a CUDA graph" in (by[1024].reason or "")
    assert by[2048].status == "ok", by[2048].reason


WAITS = """
import torch
import torch.nn.functional as F

def waits(q, k, v, *, causal, softmax_scale):
    if q.shape[1] == 1024:
        q.sum().item()
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)
"""


def test_bursts_are_repeatable_where_power_limits(instruments: Instruments) -> None:
    """A power-limited cell after a pause and after a heavy load, in turns, agrees within 0.5 %.

    Medians are compared, because a GPU that becomes warm loses a step of its clock (0.8 % on an H200), after a pause as
    well as after a load.
    """
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    events = instruments.events
    assert isinstance(events, EventTimer)
    events.before = instruments.flush
    q, k, v = (torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    after: dict[str, list[float]] = {"a pause": [], "a load": []}
    for turn in range(10):
        if turn % 2:
            for _ in range(200):
                a @ a
        events.reset()
        pacer = Pacer(events.clocks, events.best_clock, Policy().burst_s)
        times = collect_samples(partial(events.samples, partial(sdpa, q, k, v)), Policy(), pacer=pacer)
        after["a load" if turn % 2 else "a pause"].append(stats.median(times))
        clock = stats.median([found.held for found in events.clocks])
        print(f"{stats.median(times) * 1e6:.1f} us at {clock / 1e6:.0f} MHz")
    assert stats.median(after["a load"]) == pytest.approx(stats.median(after["a pause"]), rel=0.005)
