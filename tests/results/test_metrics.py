"""Every metric against numbers computed by hand, for a row with known rates, and its declared properties."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.record import Accuracy, Measurement, Record, TensorError
from attnbench.results import metrics
from attnbench.results.metrics import METRICS
from attnbench.results.rows import Rates, Row
from builders import case, measurements, row

# 4 * 2 * 1024 * 1024 * 64 = 536,870,912 FLOPs; 4 tensors of 1024 * 2 * 64 * 2 bytes = 1,048,576 bytes
SMALL = Case(Shape(1, 1024, 1024, 2, 2, 64, 64), "bf16", "fwd")


def record(times: tuple[float, ...] = (), **changes: Any) -> Record:
    """Return a record of SMALL with these samples in seconds, or with other measurements."""
    return replace(Record(SMALL, "triton", 0, "ok", measurements={"time": Measurement("s", times)}), **changes)


def value(name: str, which: Record | Row) -> float | None:
    """Return the metric of a row, or of a record without known rates."""
    return metrics.value(name, which if isinstance(which, Row) else row(which))


def test_latency_and_what_follows_from_it() -> None:
    r = row(record((2e-6, 1e-6, 4e-6)), Rates(peak=989e12), eager=5e-6)  # median 2 us
    assert value("latency", r) == 2e-6
    assert value("tflops", r) == pytest.approx(268.435456)
    assert value("utilization", r) == pytest.approx(268.435456 / 989)
    assert value("gbps", r) == pytest.approx(524.288)
    assert value("speedup", r) == pytest.approx(2.5)
    assert value("samples", r) == 3
    assert value("latency_p10", r) == pytest.approx(1.2e-6)  # 1 + 0.2 * (2 - 1)
    assert value("latency_p90", r) == pytest.approx(3.6e-6)
    assert value("cov", r) == pytest.approx(math.sqrt(7 / 3) / (7 / 3))


def test_what_needs_more_samples_is_absent() -> None:
    assert value("latency_p99", record((1e-6,) * 99)) is None
    assert value("latency_p99", record((1e-6,) * 100)) == pytest.approx(1e-6)
    assert value("ci", record((1e-6,))) is None
    assert value("ci_within", record((1e-6, 2e-6, 3e-6, 3e-6, 4e-6, 5e-6))) == pytest.approx(2 / 3)
    assert value("cov", record((1e-6,))) is None


def test_communication_is_exposed_in_cycles_where_both_clocks_are_known() -> None:
    """Exposed communication is in cycles where both clocks are known, because they differ at a power cap."""
    taken = measurements(time=1.0, compute=0.8, clock_held=1.5e9, clock_compute=1.8e9)
    assert value("exposed", record(measurements=taken)) == pytest.approx(1 - 0.8 * 1.8 / 1.5)
    assert value(
        "exposed", record(measurements=measurements(time=1.0, compute=0.8, clock_held=1.5e9))
    ) == pytest.approx(0.2)
    assert value("exposed", record(measurements=measurements(time=1.0, compute=1.1))) == 0
    assert value("exposed", record((1.0,))) is None


def test_utilisation_three_ways() -> None:
    taken = measurements(time=2e-6, clock_held=(1.4e9, 1.5e9, 1.6e9), clock_sm=1e9)
    rates = Rates(peak=1e15, clock=2e9, ceiling=8e14)
    r = row(record(measurements=taken), rates)  # 268.435456 TFLOP/s
    assert value("utilization", r) == pytest.approx(0.268435456)
    assert value("utilization_clock", r) == pytest.approx(0.268435456 / 0.75)
    assert value("utilization_ceiling", r) == pytest.approx(0.33554432)
    nvml = record(measurements=measurements(time=2e-6, clock_sm=1e9))
    assert value("utilization_clock", row(nvml, rates)) == pytest.approx(0.268435456 / 0.5)
    unknown = record((2e-6,))
    assert value("utilization_clock", row(unknown, rates)) is None
    assert value("utilization_clock", row(r.record, Rates(peak=1e15))) is None
    assert value("utilization_ceiling", r.record) is None


def test_bandwidth_and_roofline() -> None:
    r = record((2e-6,))  # 524.288 GB/s, 536.87 MFLOP, 1 MiB
    rates = Rates(peak=1e15, bandwidth=1e12, copy=8e11)
    assert value("bandwidth_utilization", row(r, rates)) == pytest.approx(0.524288)
    assert value("bandwidth_ceiling", row(r, rates)) == pytest.approx(0.65536)
    assert metrics.bound(SMALL, rates) == "memory"  # 1.05 us of traffic, 0.54 us of arithmetic
    assert value("roofline", row(r, rates)) == pytest.approx(0.524288)
    fast = replace(rates, bandwidth=4e12)
    assert metrics.bound(SMALL, fast) == "compute"
    assert value("roofline", row(r, fast)) == pytest.approx(0.268435456)
    assert value("roofline", row(r, fast, convention="fa")) == pytest.approx(0.268435456)
    assert metrics.bound(SMALL, Rates(peak=1e15)) is None
    assert value("roofline", row(r, Rates(bandwidth=1e12))) is None


def test_the_roofline_counts_exact_flops_whatever_the_convention() -> None:
    window = replace(SMALL, causal=True, window_size=(15, 0))
    rates = Rates(peak=1e14, bandwidth=1e13)
    assert metrics.bound(window, rates) == "memory"  # by the fa count arithmetic would take 2.7 us
    exact, fa = (row(record((1e-6,), case=window), rates, convention=how) for how in ("exact", "fa"))
    assert value("roofline", exact) == value("roofline", fa)
    assert value("tflops", fa) > 10 * value("tflops", exact)


@pytest.mark.parametrize(
    "name",
    [
        *("memory_driver", "memory_saved", "memory_peak"),  # the largest
        *("enqueue", "first_call", "plan", "clock_held", "clock_sm", "clock_mem", "temperature", "cores_left"),
    ],
)
def test_what_a_row_has_of_a_measurement(name: str) -> None:
    r = record(measurements={"time": Measurement("s", (1e-6,)), name: Measurement("", (2.0, 7.0, 3.0))})
    assert value(name, r) == (7.0 if name.startswith("memory") else 3.0)
    assert value(name, record((1e-6,))) is None


def test_drift() -> None:
    assert value("drift", record((2e-6,) * 10 + (1e-6,) * 20)) == pytest.approx(-0.5)
    assert value("drift", record((1e-6,))) == 0


def test_sustained_and_its_energy() -> None:
    taken = measurements(time=1e-6, sustained=(2e-6, 3e-6, 4e-6), sustained_power=600, sustained_power_error=0.01)
    r = record(measurements=taken)
    assert value("sustained_latency", r) == pytest.approx(3e-6)  # the mean
    assert value("sustained_tflops", r) == pytest.approx(178.956970667)
    assert value("joules", r) == pytest.approx(1.8e-3)
    assert value("tflops_per_watt", r) == pytest.approx(178.956970667 / 600)
    assert value("power_error", r) == 0.01
    without = record(measurements=measurements(time=1e-6, sustained=3e-6))
    assert [value(m, without) for m in ("sustained_tflops", "joules", "tflops_per_watt", "power_error")] == [
        pytest.approx(178.956970667),
        None,
        None,
        None,
    ]


def test_instruments_are_compared_turn_by_turn() -> None:
    """Instruments are compared turn by turn, because the clock falls by more than the instruments differ."""
    taken = measurements(turns_events=(1.0, 2.0, 4.0), turns_graph=(1.01, 2.02, 4.2), turns_cupti=(0.97, 1.94, 3.88))
    r = record(measurements=taken)
    assert metrics.turn_ratios(row(r), "graph") == pytest.approx((1.01, 1.01, 1.05))
    assert value("disagreement", r) == pytest.approx(0.03)
    assert value("disagreement", record(measurements=measurements(turns_events=1.0))) is None
    assert value("graph_latency", record(measurements=measurements(turns_graph=(1.0, 3.0, 2.0)))) == 2.0
    assert value("graph_latency", record(measurements=measurements(time=(1.0, 3.0, 2.0)), timer="graph")) == 2.0
    assert value("graph_latency", record(measurements=measurements(time=1.0))) is None
    odd = record(measurements=measurements(turns_events=(0.0, 2), turns_cupti=(1, 1)))
    assert metrics.turn_ratios(row(odd), "cupti") == (0.5,)
    without = record((1e-6,))
    assert [value(name, without) for name in ("disagreement", "tracing")] == [None, None]


def test_spans_are_compared_with_events_of_the_same_calls() -> None:
    """Spans are compared with events of the same calls: both include the 2 % by which tracing slows a kernel."""
    taken = measurements(turns_events=(1.0, 2.0, 4.0), turns_traced=(1.02, 2.04, 4.0), turns_cupti=(1.01898, 2.0, 4.0))
    r = record(measurements=taken)
    assert metrics.turn_ratios(row(r), "cupti") == pytest.approx((0.999, 0.98039, 1.0), abs=1e-5)
    assert value("disagreement", r) == pytest.approx(0.001)
    assert value("tracing", r) == pytest.approx(0.02)
    assert value("tracing", record(measurements=measurements(turns_events=1.0))) is None


def test_turns_that_read_nothing_are_left_out() -> None:
    taken = measurements(turns_events=(0.0, 2.0), turns_traced=(1.0, 2.2), turns_graph=(math.inf, 2.0))
    r = record(measurements=taken)
    assert value("tracing", r) == pytest.approx(0.1)
    assert value("disagreement", r) == 0
    alone = record(measurements=measurements(turns_events=0.0, turns_traced=1.0))
    assert (value("tracing", alone), value("disagreement", alone)) == (None, None)


def test_the_launch_gap_is_of_the_same_calls() -> None:
    taken = measurements(time=(10e-6,) * 3, span=(8e-6, 9e-6, 20e-6), span_events=(9e-6, 11e-6, 22e-6))
    r = record(measurements=taken, timer="events")
    assert value("launch_gap", r) == pytest.approx(2e-6)


def test_errors_are_those_of_the_worst_result() -> None:
    accuracy = Accuracy(
        {"dq": TensorError(0.1, 0.1, 0.4, 0.02), "dk": TensorError(0.3, 0.1, 0.4, 0.01)}, rows=1, heads=1
    )
    assert value("error", record((1e-6,), accuracy=accuracy)) == pytest.approx(0.75)
    assert value("relative_error", record((1e-6,), accuracy=accuracy)) == 0.02
    assert [value(name, record(measurements={})) for name in ("latency", "tflops", "error")] == [None] * 3


@pytest.mark.parametrize("status", ["skipped", "wrong", "wrong-kernel", "oom", "failed", "timeout"])
def test_only_ok_records_have_metrics(status: str) -> None:
    r = record((1e-6,) * 200, status=status)
    assert all(value(name, row(r, Rates(peak=1e12), eager=1e-6)) is None for name in METRICS)


def test_nothing_that_is_not_finite() -> None:
    exact = Accuracy({"out": TensorError(0.1, 0.0, 0.0, 0.0)}, rows=1, heads=1)
    r = record((0.0,) * 10, accuracy=exact)
    assert value("error", r) is None
    assert value("tflops", r) is None
    assert value("latency", r) == 0


def test_cycles_are_latency_times_the_clock_held() -> None:
    taken = measurements(time=(2e-6, 1e-6, 4e-6), clock_held=(1.4e9, 1.5e9, 1.6e9), clock_sm=1e9)
    assert value("cycles", record(measurements=taken)) == pytest.approx(3000)
    assert value("cycles", record(measurements=measurements(time=2e-6, clock_sm=1e9))) is None
    assert METRICS["cycles"].format(98.4e6) == "98.4 Mcycles"


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        ("latency", 999.7e-6, "1.00 ms"),
        ("latency", 2.5, "2.50 s"),
        ("latency", 3e-8, "0.0300 us"),
        ("tflops", 99.96, "100"),
        ("tflops", 1613.0, "1613"),
        ("tflops", 0.1234, "0.123"),
        ("tflops", 1e-7, "1.00e-07"),
        ("tflops", 0.0, "0"),
        ("utilization", 0.617, "62%"),
        ("utilization", 0.0042, "0.4%"),
        ("ci", 0.00421, "0.42%"),
        ("ci", 1.5, "150%"),
        ("memory_peak", 1023.9 * 2**20, "1.00 GiB"),
        ("memory_peak", 0, "0 B"),
        ("speedup", 3.456, "3.46x"),
        ("clock_sm", 1.755e9, "1755 MHz"),
        ("samples", 1000.0, "1000"),
        ("drift", -0.0213, "-2.1%"),
        ("joules", 0.1234, "123 mJ"),
    ],
)
def test_formats(name: str, number: float, text: str) -> None:
    assert METRICS[name].format(number) == text


@pytest.mark.parametrize(
    ("of", "peak", "found"),
    [
        (case(8192), 1e15, "compute"),
        (case(256, batch=64, causal=True), 1e15, "memory"),
        (case(8192, seqlen_q=1, nheads_k=4, batch=16), 1e15, "memory"),
        (case(8192, seqlen_q=16, nheads=128, nheads_k=1, batch=16), 1e15, "compute"),
        (case(128, batch=1), 1e15, "launch"),
        (case(8192), None, "compute"),
        (case(8192, seqlen_q=1), None, "memory"),
    ],
)
def test_the_unit_of_a_case_follows_from_its_limit(of: Case, peak: float | None, found: str) -> None:
    rates = Rates(peak=peak, clock=None, bandwidth=4.8e12, ceiling=None, copy=None, exp=None)
    assert metrics.limit(of, rates) == found
    unit = {"compute": "TFLOP/s", "memory": "GB/s", "launch": "s"}[found]
    assert metrics.METRICS[metrics.usual(of, rates)[0]].unit == unit
