"""Every metric against numbers worked out by hand; cells: rounds, several runs, the peak that counts."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.record import Accuracy, Measurement, Record, TensorError
from attnbench.results import derive, metrics
from attnbench.results.cells import cells
from attnbench.results.derive import Context
from attnbench.results.metrics import METRICS
from builders import CPU, H200, case, ended, environment, measurements, ok, run

# 4 * 2 * 1024 * 1024 * 64 = 536,870,912 FLOPs; 4 tensors of 1024 * 2 * 64 * 2 bytes = 1,048,576 bytes
SMALL = Case(Shape(1, 1024, 1024, 2, 2, 64, 64), "bf16", "fwd")


def record(values: tuple[float, ...], **changes: object) -> Record:
    return replace(Record(SMALL, "triton", 0, "ok", measurements={"time": Measurement("s", values)}), **changes)


def test_latency_and_what_follows_from_it() -> None:
    r = record((2e-6, 1e-6, 4e-6))  # median 2 us
    context = Context(peak=989e12, eager=5e-6)
    assert metrics.value("latency", r, context) == 2e-6
    assert metrics.value("tflops", r, context) == pytest.approx(268.435456)
    assert metrics.value("utilization", r, context) == pytest.approx(268.435456 / 989)
    assert metrics.value("gbps", r, context) == pytest.approx(524.288)
    assert metrics.value("speedup", r, context) == pytest.approx(2.5)
    assert metrics.value("samples", r, context) == 3
    assert metrics.value("latency_p10", r, context) == pytest.approx(1.2e-6)  # 1 + 0.2 * (2 - 1)
    assert metrics.value("latency_p90", r, context) == pytest.approx(3.6e-6)
    assert metrics.value("cov", r, context) == pytest.approx(math.sqrt(7 / 3) / (7 / 3))


def test_conventions() -> None:
    causal = replace(SMALL, causal=True)
    r = replace(record((1e-6,)), case=causal)
    assert metrics.value("tflops", r, Context(convention="fa")) == pytest.approx(536870912 / 2 / 1e6)
    assert metrics.value("tflops", r) == pytest.approx(536870912 * (1024 * 1025 / 2) / 1024**2 / 1e6)


def test_what_needs_more_samples_is_absent() -> None:
    assert metrics.value("latency_p99", record((1e-6,) * 99)) is None
    assert metrics.value("latency_p99", record((1e-6,) * 100)) == pytest.approx(1e-6)
    assert metrics.value("ci", record((1e-6, 2e-6, 3e-6, 4e-6, 5e-6))) is None
    assert metrics.value("ci", record((1e-6, 2e-6, 3e-6, 3e-6, 4e-6, 5e-6))) == pytest.approx(2 / 3)
    assert metrics.value("cov", record((1e-6,))) is None


def short(**changes: object) -> Record:
    """Events read 10 us, CUPTI 8 us."""
    taken = measurements(time=(9e-6, 10e-6, 12e-6), span=(7e-6, 8e-6, 9e-6))
    return record((), **{"measurements": taken, "timer": "events", **changes})


def test_the_span_of_a_short_kernel_takes_the_place_of_the_events() -> None:
    r = short()
    assert derive.samples(r) == (7e-6, 8e-6, 9e-6)
    assert metrics.value("latency", r) == 8e-6
    assert metrics.value("latency_p90", r) == pytest.approx(8.8e-6)
    assert metrics.value("tflops", r) == pytest.approx(536870912 / 8e-6 / 1e12)
    assert metrics.value("speedup", r, Context(eager=16e-6)) == pytest.approx(2)
    assert metrics.value("launch_gap", r) == pytest.approx(2e-6)


def test_the_reading_stands_where_the_span_is_no_better() -> None:
    assert metrics.value("latency", short(timer="graph")) == 10e-6
    assert metrics.value("launch_gap", short(timer="graph")) is None
    long = short(measurements=measurements(time=101e-6, span=98e-6))
    assert metrics.value("latency", long) == 101e-6
    assert metrics.value("launch_gap", long) == pytest.approx(3e-6)
    no_span = record((10e-6,), timer="events")
    assert (metrics.value("latency", no_span), metrics.value("launch_gap", no_span)) == (10e-6, None)
    assert metrics.value("latency", short(measurements=measurements(span=8e-6))) is None


def test_utilisation_three_ways() -> None:
    taken = measurements(time=2e-6, clock_held=(1.4e9, 1.5e9, 1.6e9), clock_sm=1e9)
    r = record((), measurements=taken)  # 268.435456 TFLOP/s
    context = Context(peak=1e15, clock=2e9, ceiling=8e14)
    assert metrics.value("utilization", r, context) == pytest.approx(0.268435456)
    assert metrics.value("utilization_clock", r, context) == pytest.approx(0.268435456 / 0.75)
    assert metrics.value("utilization_ceiling", r, context) == pytest.approx(0.33554432)
    nvml = record((), measurements=measurements(time=2e-6, clock_sm=1e9))
    assert metrics.value("utilization_clock", nvml, context) == pytest.approx(0.268435456 / 0.5)
    unknown = record((2e-6,))
    assert metrics.value("utilization_clock", unknown, context) is None
    assert metrics.value("utilization_clock", r, Context(peak=1e15)) is None
    assert metrics.value("utilization_ceiling", r) is None


def test_bandwidth_and_roofline() -> None:
    r = record((2e-6,))  # 524.288 GB/s, 536.87 MFLOP, 1 MiB
    context = Context(peak=1e15, bandwidth=1e12, copy=8e11)
    assert metrics.value("bandwidth_utilization", r, context) == pytest.approx(0.524288)
    assert metrics.value("bandwidth_ceiling", r, context) == pytest.approx(0.65536)
    assert derive.bound(SMALL, context) == "memory"  # 1.05 us of traffic, 0.54 us of arithmetic
    assert metrics.value("roofline", r, context) == pytest.approx(0.524288)
    fast = replace(context, bandwidth=4e12)
    assert derive.bound(SMALL, fast) == "compute"
    assert metrics.value("roofline", r, fast) == pytest.approx(0.268435456)
    assert metrics.value("roofline", r, replace(fast, convention="fa")) == pytest.approx(0.268435456)
    assert derive.bound(SMALL, Context(peak=1e15)) is None
    assert metrics.value("roofline", r, Context(bandwidth=1e12)) is None


def test_the_roofline_counts_exact_flops_whatever_the_convention() -> None:
    window = replace(SMALL, causal=True, window_size=(15, 0))
    context = Context(peak=1e14, bandwidth=1e13, convention="fa")
    assert derive.bound(window, context) == "memory"  # by the fa count arithmetic would take 2.7 us
    assert derive.bound(window, replace(context, convention="exact")) == "memory"


def test_state_of_the_gpu() -> None:
    taken = measurements(
        time=1e-6,
        enqueue=(5e-6, 7e-6, 6e-6),
        clock_held=(1.98e9, 1.9e9, 1.8e9),
        clock_mem=3.2e9,
        power=(400, 420, 500),
        temperature=(40, 44),
    )
    r = record((), measurements=taken)
    found = {name: metrics.value(name, r) for name in METRICS}
    assert found["enqueue"] == 6e-6
    assert (found["clock_held"], found["clock_sm"], found["clock_mem"]) == (1.9e9, None, 3.2e9)
    assert (found["power"], found["temperature"]) == (420, 42)
    assert found["drift"] == 0
    assert metrics.value("drift", record((2e-6,) * 10 + (1e-6,) * 20)) == pytest.approx(-0.5)


def test_sustained_and_its_energy() -> None:
    taken = measurements(time=1e-6, sustained=(2e-6, 3e-6, 4e-6), sustained_power=600, sustained_power_error=0.01)
    r = record((), measurements=taken)
    assert metrics.value("sustained_latency", r) == pytest.approx(3e-6)  # the mean
    assert metrics.value("sustained_tflops", r) == pytest.approx(178.956970667)
    assert metrics.value("joules", r) == pytest.approx(1.8e-3)
    assert metrics.value("tflops_per_watt", r) == pytest.approx(178.956970667 / 600)
    assert metrics.value("power_error", r) == 0.01
    without = record((), measurements=measurements(time=1e-6, sustained=3e-6))
    assert [metrics.value(m, without) for m in ("sustained_tflops", "joules", "tflops_per_watt", "power_error")] == [
        pytest.approx(178.956970667),
        None,
        None,
        None,
    ]


def test_instruments_are_compared_turn_by_turn() -> None:
    """The clock falls from turn to turn, by more than the instruments differ."""
    taken = measurements(turns_events=(1.0, 2.0, 4.0), turns_graph=(1.01, 2.02, 4.2), turns_cupti=(0.97, 1.94, 3.88))
    r = record((), measurements=taken)
    assert derive.ratios(r, "graph") == pytest.approx((1.01, 1.01, 1.05))
    assert metrics.value("disagreement", r) == pytest.approx(0.03)
    assert metrics.value("disagreement", record((), measurements=measurements(turns_events=1.0))) is None
    assert derive.ratios(record((), measurements=measurements(turns_events=(0.0, 2), turns_cupti=(1, 1))), "cupti") == (
        0.5,
    )


def test_spans_are_compared_with_events_of_the_same_calls() -> None:
    """Tracing slows the kernel by 2 %, and both instruments see that."""
    taken = measurements(turns_events=(1.0, 2.0, 4.0), turns_traced=(1.02, 2.04, 4.0), turns_cupti=(1.01898, 2.0, 4.0))
    r = record((), measurements=taken)
    assert derive.ratios(r, "cupti") == pytest.approx((0.999, 0.98039, 1.0), abs=1e-5)
    assert metrics.value("disagreement", r) == pytest.approx(0.001)
    assert metrics.value("tracing", r) == pytest.approx(0.02)
    assert metrics.value("tracing", record((), measurements=measurements(turns_events=1.0))) is None


def test_the_launch_gap_is_of_the_same_calls() -> None:
    taken = measurements(time=(10e-6,) * 3, span=(8e-6, 9e-6, 20e-6), span_events=(9e-6, 11e-6, 22e-6))
    r = record((), measurements=taken, timer="events")
    assert metrics.value("launch_gap", r) == pytest.approx(2e-6)


def test_memory_clock_first_call_error() -> None:
    measured = {
        "memory_peak": Measurement("B", (100.0, 300.0)),
        "memory_driver": Measurement("B", (400.0,)),
        "memory_saved": Measurement("B", (0.0,)),
        "first_call": Measurement("s", (1.5,)),
        "clock_sm": Measurement("Hz", (1.4e9, 1.6e9)),
    }
    accuracy = Accuracy(
        {"dq": TensorError(0.1, 0.1, 0.4, 0.02), "dk": TensorError(0.3, 0.1, 0.4, 0.01)}, rows=1, heads=1
    )
    r = record((1e-6,), measurements=measured, accuracy=accuracy)
    found = {name: metrics.value(name, r) for name in METRICS}
    assert found["memory_peak"] == 300
    assert found["memory_driver"] == 400
    assert found["memory_saved"] == 0
    assert found["first_call"] == 1.5
    assert found["clock_sm"] == 1.5e9
    assert found["error"] == pytest.approx(0.75)
    assert found["relative_error"] == 0.02
    assert found["latency"] is None
    assert found["tflops"] is None


@pytest.mark.parametrize("status", ["skipped", "wrong", "wrong-kernel", "oom", "failed", "timeout"])
def test_only_ok_records_have_metrics(status: str) -> None:
    r = record((1e-6,) * 200, status=status)
    assert all(metrics.value(name, r, Context(peak=1e12, eager=1e-6)) is None for name in METRICS)


def test_nothing_that_is_not_finite() -> None:
    exact = Accuracy({"out": TensorError(0.1, 0.0, 0.0, 0.0)}, rows=1, heads=1)
    r = record((0.0,) * 10, accuracy=exact)
    assert metrics.value("error", r) is None
    assert metrics.value("tflops", r) is None
    assert metrics.value("latency", r) == 0


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        ("latency", 412.34e-6, "412 us"),
        ("latency", 999.7e-6, "1.00 ms"),
        ("latency", 0.0123, "12.3 ms"),
        ("latency", 2.5, "2.50 s"),
        ("latency", 3e-8, "0.0300 us"),
        ("tflops", 617.4, "617"),
        ("tflops", 98.26, "98.3"),
        ("tflops", 99.96, "100"),
        ("tflops", 1613.0, "1613"),
        ("tflops", 0.1234, "0.123"),
        ("tflops", 1e-7, "1.00e-07"),
        ("tflops", 0.0, "0"),
        ("utilization", 0.617, "62%"),
        ("utilization", 0.027, "3%"),
        ("utilization", 0.0042, "0.4%"),
        ("utilization", 1.04, "104%"),
        ("ci", 0.00421, "0.42%"),
        ("ci", 1.5, "150%"),
        ("memory_peak", 1023.9 * 2**20, "1.00 GiB"),
        ("memory_peak", 64 * 2**20, "64.0 MiB"),
        ("memory_peak", 0, "0 B"),
        ("speedup", 3.456, "3.46x"),
        ("clock_sm", 1.755e9, "1755 MHz"),
        ("clock_held", 1.9803e9, "1980 MHz"),
        ("samples", 1000.0, "1000"),
        ("drift", -0.0213, "-2.1%"),
        ("joules", 0.1234, "123 mJ"),
        ("joules", 4.5e-6, "4.50 uJ"),
        ("power", 412.3, "412"),
        ("temperature", 61.0, "61"),
        ("roofline", 0.414, "41%"),
        ("disagreement", 0.0031, "0.31%"),
    ],
)
def test_formats(name: str, number: float, text: str) -> None:
    assert METRICS[name].format(number) == text


def test_registry_is_consistent() -> None:
    assert all(name == metric.name for name, metric in METRICS.items())
    assert all(metric.doc.endswith(".") for metric in METRICS.values())
    assert METRICS["tflops"].heading == "Throughput, TFLOP/s"
    assert METRICS["latency"].heading == "Latency"
    assert METRICS["joules"].heading == "Energy of one call"
    assert METRICS["power"].heading == "Power, W"
    assert METRICS["enqueue"].title == "CPU launch overhead"
    assert {name for name, metric in METRICS.items() if metric.clocked} >= {"latency", "tflops", "utilization", "gbps"}
    assert not any(METRICS[name].clocked for name in ("utilization_clock", "memory_peak", "error", "sustained_tflops"))


def test_rounds_are_aggregated_by_their_median() -> None:
    rounds = [ok(case(), "triton", t, round=i) for i, t in enumerate((300.0, 500.0, 330.0))]
    (cell,) = cells([run(rounds)])
    assert cell.value("tflops") == pytest.approx(330)
    assert cell.value("utilization") == pytest.approx(330 / 989.4)


def test_speedup_compares_within_a_round() -> None:
    records = [ok(case(), "eager", t, round=i) for i, t in enumerate((10.0, 20.0))]
    records += [ok(case(), "triton", t, round=i) for i, t in enumerate((30.0, 60.0))]
    eager, triton = cells([run(records)])
    assert eager.value("speedup") == 1.0
    assert triton.value("speedup") == pytest.approx(3)


def test_speedup_without_eager() -> None:
    records = [ended(case(), "eager", "oom", "out of memory"), ok(case(), "triton", 30.0)]
    assert [c.value("speedup") for c in cells([run(records)])] == [None, None]
    records = [ok(case(), "eager", 10.0), ok(case(), "eager", 10.0, round=1), ok(case(), "triton", 40.0, round=7)]
    assert cells([run(records)])[1].value("speedup") == pytest.approx(4)


def test_the_last_record_of_a_job_wins() -> None:
    (cell,) = cells([run([ended(case(), "triton", "timeout", "120 s"), ok(case(), "triton", 300.0)])])
    assert cell.status == "ok"
    assert len(cell.records) == 1


def test_status_of_rounds() -> None:
    good, bad = ok(case(), "triton", 300.0), ended(case(), "triton", "wrong", "out is off", round=1)
    (cell,) = cells([run([good, bad])])
    assert (cell.status, cell.reason, cell.value("tflops")) == ("wrong", "out is off", None)
    (cell,) = cells([run([good, replace(bad, status="wrong-kernel", reason="sgemm ran")])])
    assert (cell.status, cell.reason, cell.value("tflops")) == ("wrong-kernel", "sgemm ran", None)
    (cell,) = cells([run([bad, replace(bad, round=2, status="wrong-kernel")])])
    assert cell.status == "wrong"
    (cell,) = cells([run([good, replace(bad, status="oom")])])
    assert (cell.status, cell.value("tflops")) == ("ok", pytest.approx(300))


def test_given_peak_beats_the_datasheet() -> None:
    records = [ok(case(), "triton", 300.0)]
    for peak, expected in (
        ({}, 989.4e12),
        ({"": 1e15}, 1e15),
        ({"": 1e15, "bf16": 6e14}, 6e14),
        ({"fp16": 1.0}, 989.4e12),
    ):
        assert cells([run(records, peak=peak)])[0].rates.peak == expected
    unknown = replace(H200, name="GPU of tomorrow")
    assert cells([run(records, device=unknown)])[0].rates.peak is None
    assert cells([run(records, device=unknown)])[0].value("utilization") is None
    assert cells([run(records, device=CPU)])[0].rates.bandwidth is None


def test_a_given_peak_has_no_clock() -> None:
    records = [ok(case(), "triton", 300.0, clock_held=1.83e9)]
    (cell,) = cells([run(records)])
    assert cell.rates.clock == pytest.approx(1.83e9, rel=1e-3)
    assert cell.value("utilization_clock") == pytest.approx(300 / 989.4, rel=1e-3)
    (given,) = cells([run(records, peak={"bf16": 6e14})])
    assert (given.rates.clock, given.value("utilization_clock")) == (None, None)
    assert given.value("utilization") == pytest.approx(0.5)


def test_ceilings_are_of_the_run_and_the_dtype() -> None:
    records = [
        ok(case(), "triton", 300.0, ceiling_matmul=(6e14, 8e14), ceiling_copy=4e12),
        ended(
            case(), "eager", "failed", "x", measurements=measurements(ceiling_matmul=7e14, ceiling_copy=(2e12, 3e12))
        ),
        ok(case(dtype="fp16"), "triton", 300.0, ceiling_matmul=5e14),
    ]
    other = run([ok(case(2048), "triton", 300.0)])
    found = {(c.backend, c.case): c for c in cells([run(records), other])}
    bf16, fp16 = found["triton", case()], found["triton", case(dtype="fp16")]
    assert (bf16.rates.ceiling, bf16.rates.copy) == (7e14, 3e12)
    assert (fp16.rates.ceiling, fp16.rates.copy) == (5e14, 3e12)
    assert bf16.value("utilization_ceiling") == pytest.approx(3 / 7)
    assert found["triton", case(2048)].rates.ceiling is None


def held(*clocks: float | None, limits: tuple[str, ...] = (), **changes: object) -> list[bool]:
    records = [
        ok(case(1024 * 2**i), "triton", 300.0, limits=limits, **({} if hz is None else {"clock_held": hz}))
        for i, hz in enumerate(clocks)
    ]
    return [c.held_down for c in cells([run(records, **changes)])]


def test_cells_whose_clock_was_held_down() -> None:
    """By the gauge where there is one, against the run's best; NVML's limit alone holds nothing at the full clock."""
    assert held(None, None) == [False, False]
    assert held(None, limits=("power cap",)) == [True]
    assert held(1.98e9, 1.96e9, 1.94e9) == [False, False, True]
    assert held(1.98e9, 1.94e9, limits=("power cap",)) == [False, True]
    assert held(1.7e9, 1.7e9) == [False, False]  # a clock that someone chose
    assert held(1.7e9, 1.7e9, limits=("thermal",)) == [True, True]
    assert held(1.7e9, limits=("thermal",), environment=environment(clock_max_hz=None)) == [True]


def test_runs_of_one_setting_join_and_others_stay_apart() -> None:
    a, b = run([ok(case(), "eager", 10.0)]), run([ok(case(), "triton", 30.0)])
    joined = cells([a, b])
    assert {c.device for c in joined} == {"NVIDIA H200"}
    assert joined[1].value("speedup") == pytest.approx(3)
    again = cells([a, replace(a, started="2026-07-02")])
    assert [c.device for c in again] == [f"NVIDIA H200 (run of {t})" for t in (a.started, "2026-07-02")]
    newer = replace(b, environment=environment(torch="2.12.0"))
    assert [c.device for c in cells([a, newer])] == [
        "NVIDIA H200 (torch 2.11.0+cu130)",
        "NVIDIA H200 (torch 2.12.0)",
    ]
    assert cells([a, newer])[1].value("speedup") is None
    assert [c.device for c in cells([a, a])] == ["NVIDIA H200 (run 1)", "NVIDIA H200 (run 2)"]


def test_reports_start_without_heavy_imports() -> None:
    code = (
        "import sys, attnbench.report.terminal, attnbench.report.markdown, attnbench.report.export.flat_rows;"
        "print([m for m in ('torch', 'pandas', 'numpy', 'scipy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
