"""What stands below the tables: reasons, warnings, and how good the forecast was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import H200, case, ended, job, ok, run

from attnbench.report import notes, words
from attnbench.report.cells import cells
from attnbench.report.forecast import forecast_line
from attnbench.types import Forecast, Record


def test_reasons_that_differ_in_numbers_are_one_line() -> None:
    records = [ok(case(), "eager", 30.0)]
    records += [
        ended(case(s, direction=d), "eager", "skipped", f"needs {need} of scores; 22 GiB free")
        for s, need in ((2048, "512 MiB"), (4096, "8.0 GiB"), (8192, "32 GiB"))
        for d in ("fwd", "bwd")
    ]
    records += [ok(case(16384), "eager", 30.0), ended(case(), "sm_90a", "failed", "exit code -11 in sm_90 kernel")]
    found = notes.notes(cells([run(records)]))
    assert [(n.word, n.who, n.reason) for n in found] == [
        ("FAIL", "sm_90a 1k d128 full fwd", "exit code -11 in sm_90 kernel"),
        ("skip", "eager (6 cases: 2k-8k)", "needs 512 MiB to 32 GiB of scores; 22 GiB free"),
    ]


def test_durations_in_reasons_merge() -> None:
    reasons = ["forecast 12s, beyond 1m00s", "forecast 3m05s, beyond 1m00s", "forecast 0.4s, beyond 1m00s"]
    assert len({words.template(r) for r in reasons}) == 1
    assert words.merged(reasons) == "forecast 0.4s to 3m05s, beyond 1m00s"


def warned(*records: Record, **changes: Any) -> str:
    made = run(records, **changes)
    return "\n".join(map(str, notes.warnings(cells([made]), [made])))


def test_warnings() -> None:
    good = ok(case(), "eager", 30.0)
    assert warned(good) == ""
    noisy = ok(case(2048), "triton", 300.0, spread=0.1)
    assert "Noisy: 1 of 2 cells not known to 0.5%, the worst to 2.1%: triton 2k d128 full fwd." in warned(good, noisy)
    held = replace(good, limits=("power cap",))
    assert "Clock held down by power cap in 1 of 1 cell." in warned(held)
    few = ok(case(2048), "triton", 300.0, n=4)
    assert "Few samples in 1 cell, the fewest 4: triton 2k d128 full fwd." in warned(good, few)
    assert "below 6 no 95 % interval" in warned(few)
    unknown = warned(good, device=replace(H200, name="GPU of tomorrow"))
    assert "no bf16 peak is on file for GPU of tomorrow" in unknown
    assert "--peak bf16=..." in unknown
    wrong = ended(case(2048), "triton", "wrong", "out is off")
    assert "1 result wrong: triton 2k d128 full fwd." in warned(good, wrong)
    half = ended(case(), "eager", "timeout", "took 120 s", round=1)
    assert "1 cell measured in some rounds only: eager 1k d128 full fwd (TIMEOUT: took 120 s)." in warned(good, half)


def test_an_incomplete_run_says_how_to_finish_it() -> None:
    plan = [job(case(), "eager"), job(case(2048), "eager"), replace(job(case(4096), "eager"), skip="too large")]
    text = warned(ok(case(), "eager", 30.0), plan=plan)
    assert '1 of 3 planned jobs of suite "quick" have no record.' in text
    assert "attnbench run --resume FILE" in text
    late = ended(case(), "eager", "skipped", "no time left", resumable=True)
    assert "1 job skipped for want of time" in warned(late)


def test_forecast_line() -> None:
    records = [
        replace(ok(case(), "eager", 30.0), forecast=Forecast(2.0, 1.0, 1), seconds=3.0),
        replace(ok(case(), "triton", 30.0), forecast=Forecast(8.0, 1.0, 1), seconds=2.0),
        replace(ok(case(2048), "triton", 30.0), forecast=Forecast(10.0, 1.0, 1), seconds=10.0),
        ended(case(), "sdpa-math", "skipped", "needs a CUDA GPU", forecast=Forecast(1.0, 1.0, 1), seconds=0.0),
    ]
    assert forecast_line(run(records)) == (
        "Time of 3 jobs: forecast 20s, took 15s; took over forecast by job: median 1.00, worst 0.250 "
        "(triton 1k d128 full fwd)."
    )
    assert forecast_line(run([ended(case(), "sdpa-math", "skipped", "needs a CUDA GPU")])) is None


def test_lengths_are_compressed() -> None:
    known = [1024, 2048, 3000, 4096, 8192, 65536]
    assert words.span([1024, 2048], known) == "1k, 2k"
    assert words.span([1024, 2048, 3000, 8192], known) == "1k-3000, 8k"
    assert words.span([65536], known) == "64k"
