"""Every metric against numbers worked out by hand; cells: rounds, several runs, the peak that counts."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from builders import CPU, H200, case, ended, environment, ok, run

from attnbench import metrics
from attnbench.metrics import METRICS, Context
from attnbench.report.cells import cells
from attnbench.types import Accuracy, Case, Measurement, Record, Shape, TensorError

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


def test_memory_clock_first_call_error() -> None:
    measured = {
        "memory_peak": Measurement("B", (100.0, 300.0)),
        "memory_driver": Measurement("B", (400.0,)),
        "memory_saved": Measurement("B", (0.0,)),
        "first_call": Measurement("s", (1.5,)),
        "clock_sm": Measurement("Hz", (1.4e9, 1.6e9)),
    }
    accuracy = Accuracy({"dq": TensorError(0.1, 0.1, 0.4, 0.0), "dk": TensorError(0.3, 0.1, 0.4, 0.0)}, rows=1, heads=1)
    r = record((1e-6,), measurements=measured, accuracy=accuracy)
    found = {name: metrics.value(name, r) for name in METRICS}
    assert found["memory_peak"] == 300
    assert found["memory_driver"] == 400
    assert found["memory_saved"] == 0
    assert found["first_call"] == 1.5
    assert found["clock_sm"] == 1.5e9
    assert found["error"] == pytest.approx(0.75)
    assert found["latency"] is None
    assert found["tflops"] is None


@pytest.mark.parametrize("status", ["skipped", "wrong", "oom", "failed", "timeout"])
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
        ("samples", 1000.0, "1000"),
    ],
)
def test_formats(name: str, number: float, text: str) -> None:
    assert METRICS[name].format(number) == text


def test_registry_is_consistent() -> None:
    assert all(name == metric.name for name, metric in METRICS.items())
    assert all(metric.doc.endswith(".") for metric in METRICS.values())
    assert METRICS["tflops"].heading == "Throughput, TFLOP/s"
    assert METRICS["latency"].heading == "Latency"


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
        assert cells([run(records, peak=peak)])[0].peak == expected
    unknown = replace(H200, name="GPU of tomorrow")
    assert cells([run(records, device=unknown)])[0].peak is None
    assert cells([run(records, device=unknown)])[0].value("utilization") is None
    assert cells([run(records, device=CPU)])[0].bandwidth is None


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
        "import sys, attnbench.report.terminal, attnbench.report.markdown, attnbench.report.export;"
        "print([m for m in ('torch', 'pandas', 'numpy', 'scipy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
