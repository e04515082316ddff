"""How good the forecast of a run's time was, and what is left of one that was interrupted."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from attnbench.analysis.report.forecast import forecast_line
from attnbench.commands.run import _epilogue
from attnbench.core.errors import EXIT_INTERRUPTED
from attnbench.core.record import Forecast
from attnbench.run.run_suite import Outcome
from builders import CPU, case, ended, job, ok, run


def test_forecast_line() -> None:
    records = [
        replace(ok(case(), "eager", 30.0), forecast=Forecast(2.0, 1.0, 1), seconds=3.0),
        replace(ok(case(), "triton", 30.0), forecast=Forecast(8.0, 1.0, 1), seconds=2.0),
        replace(ok(case(2048), "triton", 30.0), forecast=Forecast(10.0, 1.0, 1), seconds=10.0),
        ended(case(), "sdpa-math", "skipped", "needs a CUDA GPU", forecast=Forecast(1.0, 1.0, 1), seconds=0.0),
    ]
    assert forecast_line(run(records)) == (
        "Time of 3 jobs: forecast 20s, took 15s; took over forecast by job: median 1.00, furthest 0.250 "
        "(triton 1k d128 full fwd)."
    )
    assert forecast_line(run([ended(case(), "sdpa-math", "skipped", "needs a CUDA GPU")])) is None


def test_what_is_left_of_an_interrupted_run_does_not_count_what_it_would_skip() -> None:
    jobs = [job(case(), "eager"), job(case(2048), "eager"), replace(job(case(4096), "eager"), skip="too large")]
    jobs.append(replace(job(case(8192), "eager"), skip="no time", resumable=True))
    console = Console(file=io.StringIO(), width=100)
    _epilogue(console, Outcome(run([ok(case(), "eager", 30.0)], plan=jobs), Path("run.jsonl"), EXIT_INTERRUPTED))
    assert isinstance(console.file, io.StringIO)
    assert "Go on with the 2 jobs left (forecast 2.0s):" in console.file.getvalue()


def test_a_forecast_names_the_dtype_of_its_worst_job_where_there_are_several() -> None:
    records = [
        ok(case(), "triton", 300.0, forecast=Forecast(1.0, 1e-3, 0), seconds=9.0),
        ended(case(dtype="fp16"), "triton", "wrong", "off by 3"),
    ]
    assert "(triton 1k d128 full fwd bf16)" in (forecast_line(run(records)) or "")


def test_simulated_seconds_and_jobs_without_a_forecast_tell_nothing() -> None:
    assert forecast_line(run([ok(case(), "fake", 300.0)], device=replace(CPU, kind="fake"))) is None
    assert forecast_line(run([ok(case(), "eager", 30.0, forecast=None)])) is None
    assert forecast_line(run([ok(case(), "eager", 30.0, seconds=0.0)])) is None
    assert forecast_line(run([])) is None


def test_the_last_record_of_a_job_counts() -> None:
    first = ok(case(), "eager", 30.0, forecast=Forecast(2.0, 1.0, 1), seconds=8.0)
    assert "took 4.0s" in (forecast_line(run([first, replace(first, seconds=4.0)])) or "")
