"""What each device is and how it was measured."""

from __future__ import annotations

from dataclasses import replace

from attnbench.analysis.report.machine_summary import machines
from attnbench.render.document import Machine
from attnbench.results.cells import cells
from builders import case, environment, ok, run


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
