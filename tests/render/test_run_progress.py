"""The progress of a run: a plain line for each job in a pipe, one line that is redrawn on a terminal."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from attnbench.core.record import Job, Run
from attnbench.render.progress import progress_line, run_progress
from attnbench.render.progress.run_progress import RunProgress, plan_summary
from builders import case, decode, ended, job, ok, run


def printed(made: Run, todo: Sequence[Job] | None = None, notes: Sequence[str] = (), path: Path | None = None) -> str:
    """Return the output to a pipe for a run whose jobs end with these records."""
    stream = io.StringIO()
    progress = RunProgress(Console(file=stream, width=200))
    jobs = {(job.case, job.backend, job.round): job for job in made.plan}
    progress.planned(replace(made, records=()), made.plan if todo is None else todo, path, notes)
    for record in made.records:
        job = jobs[record.case, record.backend, record.round]
        if record.status != "skipped":
            progress.started(job)
        progress.ended(job, record)
    progress.close()
    return stream.getvalue()


def test_a_pipe_gets_a_line_for_each_job() -> None:
    records = [
        ok(case(16384), "triton", 300.0),
        decode(16384, "triton", 12.0),
        ended(case(16384), "fa4", "wrong-kernel", "sgemm\n\x1b[31mran", seconds=1.0),
    ]
    said = printed(run(records), notes=["a note"], path=Path("run.jsonl"))
    assert said.splitlines() == [
        "attnbench  NVIDIA H200, 140 GiB, 700 W, torch 2.11.0+cu130",
        "suite quick: 3 jobs to measure, forecast 3.0s",
        "a note",
        "writing run.jsonl",
        "[1/3] triton 16k d128 full fwd  300 TFLOP/s 30%",
        "[2/3] triton 1x16k d128 full fwd b64 h32/8  1.43 ms, 3001 GB/s 63%",
        "[3/3] fa4 16k d128 full fwd  KERNEL! sgemm ran",
    ]


def test_a_run_of_several_dtypes_names_them_as_it_goes() -> None:
    said = printed(run([ok(case(dtype=dtype), "triton", 300.0) for dtype in ("bf16", "fp8")]))
    assert "triton 1k d128 full fwd bf16  300" in said
    assert "triton 1k d128 full fwd fp8  300" in said


def test_a_record_that_is_not_finite_is_shown_all_the_same() -> None:
    odd = ok(case(), "eager", 30.0, time=[math.nan] * 3)
    assert "[1/1] eager 1k d128 full fwd  0 TFLOP/s" in printed(run([odd]))


def test_what_the_plan_skips_is_no_job() -> None:
    skipped = replace(job(case(2048), "eager"), skip="too large")
    records = [ok(case(), "eager", 30.0), ended(case(2048), "eager", "skipped", "too large")]
    said = printed(run(records, plan=[job(case(), "eager"), skipped]))
    assert "suite quick: 1 job to measure, forecast 1.0s; 1 skipped\n" in said
    assert [text[:5] for text in said.splitlines() if text.startswith("[")] == ["[1/1]"]
    assert plan_summary([skipped]) == "0 jobs to measure, forecast 0.0s; 1 backend cannot run any"
    absent = [replace(job(case(n), "fa2"), skip="flash_attn is not installed") for n in (1024, 2048)]
    assert plan_summary([job(case(), "eager"), *absent]).endswith("forecast 1.0s; 1 backend cannot run them")


def test_a_skip_for_want_of_time_that_is_measured_after_all_counts() -> None:
    late = replace(job(case(2048), "eager"), skip="no time", resumable=True)
    said = printed(run([ok(case(), "eager", 30.0), ok(case(2048), "eager", 30.0)], plan=[late, job(case(), "eager")]))
    assert [text.split("]")[0] for text in said.splitlines() if text.startswith("[")] == ["[1/1", "[1/1, 1 more"]


def test_skips_for_want_of_time_are_one_line() -> None:
    records = [ended(case(2**i), "eager", "skipped", f"forecast {i}.0s; no room", resumable=True) for i in range(7, 10)]
    said = printed(run([ok(case(), "eager", 30.0), *records]))
    assert said.splitlines()[-2:] == [
        "[1/4] eager 1k d128 full fwd  30.0 TFLOP/s 3%",
        "[4/4] 3 jobs  skip forecast 7.0s to 9.0s; no room",
    ]
    said = printed(run([records[0], ok(case(), "eager", 30.0)]))
    assert said.splitlines()[-2].startswith("[1/2] eager 128 d128 full fwd  skip forecast 7.0s; no room")


def test_a_terminal_gets_one_line_that_never_wraps() -> None:
    records = [ok(case(16384), "triton", 300.0), ended(case(16384), "fa4", "failed", "x" * 200)]
    made = run(records)
    stream = io.StringIO()
    progress = RunProgress(Console(file=stream, width=60, force_terminal=True, color_system=None))
    progress.planned(replace(made, records=()), made.plan, None, ())
    for planned, record in zip(made.plan, records, strict=True):
        progress.started(planned)
        assert len(progress.line.plain) < 60
        assert planned.backend in progress.line.plain
        progress.ended(planned, record)
        assert "last: " in progress.line.plain
    assert progress.line.plain.startswith("[2/2] ")
    progress.close()
    assert "fa4 16k d128 full fwd  FAIL" in stream.getvalue()
    assert "triton 16k d128 full fwd  300 TFLOP/s" not in stream.getvalue()  # no line for each job


def test_a_terminal_shows_the_fastest_backends_of_each_case_so_far() -> None:
    short, long = case(1024), case(16384)
    records = [
        ok(short, "triton", 300.0),
        ok(long, "triton", 500.0),
        ok(short, "fa4", 310.0),
        ended(long, "fa4", "failed", "x"),
        ok(long, "eager", 20.0),
        decode(16384, "triton", 12.0),
        decode(16384, "fa4", 10.0),
    ]
    made = run(records)
    progress = RunProgress(Console(file=io.StringIO(), width=78, height=11, force_terminal=True))
    progress.planned(replace(made, records=()), made.plan, None, ())
    for planned, record in zip(made.plan, records, strict=True):
        progress.started(planned)
        progress.ended(planned, record)
    *table, line = progress.__rich__().plain.splitlines()
    assert table == [
        "1k d128 full fwd               fa4 310 TFLOP/s  triton 300  2 of 2",
        "16k d128 full fwd              triton 500 TFLOP/s  eager 20.0  3 of 3",
        "1x16k d128 full fwd b64 h32/8  triton 3001 GB/s  fa4 2501  2 of 2",
    ]
    assert line.startswith("[7/7]")
    assert progress.__rich__().plain.count("\n") < 11
    progress.close()


def test_the_time_left_is_no_more_than_the_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left is at most the limit's rest, 20 s, even if a job took 100 s instead of 1 s and three remain."""
    now = [0.0]
    monkeypatch.setattr(run_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    records = [replace(ok(case(1024 * n), "triton", 300.0), seconds=100.0) for n in (1, 2, 3, 4)]
    made = run(records)
    progress = RunProgress(Console(file=io.StringIO(), width=120, force_terminal=True))
    progress.planned(replace(made, records=()), made.plan, None, (), 120.0)
    progress.started(made.plan[0])
    now[0] = 100.0
    progress.ended(made.plan[0], records[0])
    shown = progress.line.plain
    progress.close()
    assert " 20s left" in shown


def test_a_pipe_gets_from_time_to_time_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "IN_A_PIPE_EVERY", 0.2)
    stream = io.StringIO()
    line = progress_line.ProgressLine(Console(file=stream, width=80))
    line.say("importing fa3")
    line.say("opening the device")
    assert stream.getvalue() == ""
    time.sleep(0.5)
    line.close()
    assert stream.getvalue() == "opening the device\n", "what goes on now, and once"
    line.say("after the end")
    time.sleep(0.3)
    assert stream.getvalue() == "opening the device\n"
