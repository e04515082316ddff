"""The document of a plan before it is run, the error of its forecast, and its remaining jobs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from attnbench.analysis.report.planned import document, forecast_line
from attnbench.commands.run import _epilogue
from attnbench.core.errors import EXIT_INTERRUPTED
from attnbench.core.record import Forecast
from attnbench.render import json_and_csv, terminal
from attnbench.run.run_suite import Outcome
from builders import CPU, case, ended, job, ok, run


def test_a_line_a_backend_and_the_reasons_of_the_skips() -> None:
    jobs = [
        replace(job(case(), "eager"), forecast=Forecast(90.0, 2.5, 3 * 2**30)),
        replace(job(case(2048), "eager"), forecast=Forecast(30.0, 5e-3, 2**30)),
        replace(job(case(4096), "eager"), skip="needs 137 GiB of scores"),
        replace(job(case(), "triton"), forecast=Forecast(0.5, 1.234e-3, 2**20)),
        *(replace(job(case(n), "fa3"), skip="needs a CUDA GPU") for n in (1024, 2048)),
    ]
    shown = document(run([], plan=jobs))
    text = terminal.text(shown)
    _, eager, triton, *_ = (line.split() for line in text.splitlines())
    assert eager == ["eager", "2", "1", "2m00s", "2.5s", "3.0", "GiB"]
    assert triton == ["triton", "1", "0", "0.5s", "1.23", "ms", "1.0", "MiB"]
    assert "skip  eager 4k d128 full fwd: needs 137 GiB of scores\n" in text
    assert "skip  fa3 (all): needs a CUDA GPU\n" in text
    assert text.endswith("Nothing was measured or written. Job by job: --dry-run --json\n")
    found = json.loads(json_and_csv.json_text(shown))
    assert [one["backend"] for one in found if "skip" in one] == ["eager", "fa3", "fa3"]
    assert found[0]["forecast"] == {"seconds": 90.0, "call": 2.5, "nbytes": 3 * 2**30}


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
    records.append(ended(case(dtype="fp16"), "triton", "wrong", "off by 3"))
    assert "(triton 1k d128 full fwd bf16)" in (forecast_line(run(records)) or ""), "the dtype where there are several"
    assert forecast_line(run([ended(case(), "sdpa-math", "skipped", "needs a CUDA GPU")])) is None


def test_what_is_left_of_an_interrupted_run_does_not_count_what_it_would_skip() -> None:
    jobs = [job(case(), "eager"), job(case(2048), "eager"), replace(job(case(4096), "eager"), skip="too large")]
    jobs.append(replace(job(case(8192), "eager"), skip="no time", resumable=True))
    console = Console(file=io.StringIO(), width=100)
    _epilogue(console, Outcome(run([ok(case(), "eager", 30.0)], plan=jobs), Path("run.jsonl"), EXIT_INTERRUPTED))
    assert isinstance(console.file, io.StringIO)
    assert "Go on with the 2 jobs left (forecast 2.0s):" in console.file.getvalue()


def test_simulated_seconds_and_jobs_without_a_forecast_tell_nothing() -> None:
    assert forecast_line(run([ok(case(), "fake", 300.0)], device=replace(CPU, kind="fake"))) is None
    assert forecast_line(run([ok(case(), "eager", 30.0, forecast=None)])) is None
    assert forecast_line(run([ok(case(), "eager", 30.0, seconds=0.0)])) is None
    assert forecast_line(run([])) is None
    left_out = replace(job(case(), "eager"), skip="no time", resumable=True)
    assert forecast_line(run([ok(case(), "eager", 30.0)], plan=[left_out])) is None, "though a resumed run measured it"
