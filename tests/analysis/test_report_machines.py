"""What each device is and how it was measured."""

from __future__ import annotations

from dataclasses import replace

from report_text import shown

from attnbench.analysis.report.machine_summary import machines
from attnbench.core.record import Record
from attnbench.render.document import Machine
from attnbench.results.cells import cells
from builders import H200, case, environment, ok, run


def test_how_it_was_measured() -> None:
    def method(*records: Record) -> str:
        (found,) = machines(cells([run(records)]))
        return found.method

    assert method(ok(case(), "triton", 300.0, timer="graph", l2="warm")) == (
        "latency = median of 100 samples, CUDA graph replay, L2 warm"
    )
    assert method(ok(case(), "triton", 300.0, timer="cupti", l2="unproven")) == (
        "latency = median of 100 samples, CUPTI kernel spans, L2 unproven"
    )
    tiny = case(128, batch=1)
    spans = ok(tiny, "triton", 2.0, span=(55e-6,) * 30, clock_held=(1.98e9, 1.97e9, 1.9e9), clock_sm=1e9)
    bf16 = ok(case(), "triton", 300.0, clock_sm=1.6e9, ceiling_matmul=7.95e14, ceiling_copy=4.2e12)
    fp16 = ok(case(dtype="fp16"), "triton", 300.0, ceiling_matmul=8e14)
    assert method(spans, bf16, fp16) == (
        "latency = median of 30 to 100 samples, CUDA events, CUPTI kernel spans in cases under 100 us, L2 cold, "
        "SM clock 1600-1970 of 1980 MHz; ceilings here: matmul 795 TFLOP/s bf16, 800 TFLOP/s fp16, copy 4.20 TB/s"
    )
    slow = ok(case(dtype="fp32"), "eager", 0.1, ceiling_copy=43.1e9)
    assert "; ceilings here: copy 43.1 GB/s" in method(slow)


def test_a_figure_of_one_sample_says_so() -> None:
    assert "latency = median of 1 sample," in shown([run([ok(case(), "triton", 300.0, n=1)])])


def test_rounds_say_how_well_they_agree() -> None:
    records = [ok(case(), "triton", speed, round=i) for i, speed in enumerate((300.0, 303.0, 297.0))]
    (found,) = machines(cells([run(records)]))
    assert found.method == (
        "latency = median of 100 samples, then over 3 rounds, CUDA events, L2 cold, rounds agree within 2% in the "
        "median cell, 2% in the 95th percentile and 2% in the worst"
    )


def test_runs_of_the_same_machine_say_how_well_they_agree() -> None:
    first = run([ok(case(), "triton", 300.0), ok(case(2048), "triton", 300.0, time=[0.0] * 9)])
    second = replace(first, records=(ok(case(), "triton", 306.0), first.records[1]), started="2026-07-02")
    _, again = machines(cells([first, second]))
    assert again == Machine(
        "NVIDIA H200 (run of 2026-07-02)",
        "2026-07-02",
        "differs from NVIDIA H200 (run of 2026-07-01 10:00) by 2% in the median cell, 2% in the 95th percentile "
        "and 2% in the worst",
    )
    other = replace(second, environment=environment(torch="2.12.0"))
    assert all("agrees with" not in found.method for found in machines(cells([first, other])))


def test_ceilings_of_several_runs_are_their_median() -> None:
    runs = [
        run([ok(case(1024 * 2**i), "triton", 300.0, ceiling_matmul=speed, ceiling_copy=4e12)])
        for i, speed in enumerate((7e14, 7.5e14, 8e14))
    ]
    (found,) = machines(cells(runs))
    assert found.method.endswith("; ceilings here: matmul 750 TFLOP/s bf16, copy 4.00 TB/s")


def test_devices_are_machines_of_their_own() -> None:
    b200 = replace(H200, name="NVIDIA B200", memory=192 * 10**9)
    runs = [run([ok(case(), "triton", 300.0)]), run([ok(case(), "triton", 500.0)], device=b200)]
    assert [found.label for found in machines(cells(runs))] == ["NVIDIA H200", "NVIDIA B200"]
