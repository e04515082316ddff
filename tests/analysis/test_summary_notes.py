"""What stands below the tables: reasons, cautions, facts, and how good the forecast was."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attnbench.analysis.summary import cautions, facts, no_figure
from attnbench.analysis.summary.forecast import forecast_line
from attnbench.commands.run import _epilogue
from attnbench.core.errors import EXIT_INTERRUPTED
from attnbench.core.record import Forecast, Measurement, Record
from attnbench.results import case_names
from attnbench.results.cells import cells
from attnbench.run.run_suite import Outcome
from builders import CPU, H200, case, ended, job, ok, run


def test_reasons_that_differ_in_numbers_are_one_line() -> None:
    records = [ok(case(), "eager", 30.0)]
    records += [
        ended(case(s, direction=d), "eager", "skipped", f"needs {need} of scores; 22 GiB free")
        for s, need in ((2048, "512 MiB"), (4096, "8.0 GiB"), (8192, "32 GiB"))
        for d in ("fwd", "bwd")
    ]
    records += [ok(case(16384), "eager", 30.0), ended(case(), "sm_90a", "failed", "exit code -11 in sm_90 kernel")]
    found = no_figure.notes(cells([run(records)]))
    assert [(n.word, n.who, n.reason) for n in found] == [
        ("FAIL", "sm_90a 1k d128 full fwd", "exit code -11 in sm_90 kernel"),
        ("skip", "eager (6 cases: 2k-8k)", "needs 512 MiB to 32 GiB of scores; 22 GiB free"),
    ]


def test_cells_of_several_dtypes_name_theirs() -> None:
    records = [
        ok(case(), "triton", 300.0, spread=0.1, forecast=Forecast(1.0, 1e-3, 0), seconds=9.0),
        ended(case(dtype="fp16"), "triton", "wrong", "off by 3"),
        ended(case(2048, dtype="fp8"), "triton", "failed", "no such type"),
    ]
    made = run(records)
    assert [n.who for n in no_figure.notes(cells([made]))] == [
        "triton 1k d128 full fwd fp16",
        "triton 2k d128 full fwd fp8",
    ]
    assert "1 result wrong: triton 1k d128 full fwd fp16." in warned(*records)
    assert "the worst to 2.1%: triton 1k d128 full fwd bf16." in warned(*records)
    assert "(triton 1k d128 full fwd bf16)" in (forecast_line(made) or "")
    assert [n.who for n in no_figure.notes(cells([run(records[1:2])]))] == ["triton 1k d128 full fwd"]


def test_on_a_cpu_nobody_is_sent_to_options_of_a_gpu() -> None:
    slower = replace(ok(case(), "eager", 30.0), measurements={"time": Measurement("s", (1e-3,) * 40 + (2e-3,) * 40)})
    assert "by 100% at most: eager 1k d128 full fwd. The clock fell" in warned(slower)
    assert "--isolate-power" in warned(slower)
    assert "--isolate-power" not in warned(slower, device=CPU)


def test_durations_in_reasons_merge() -> None:
    reasons = ["forecast 12s, beyond 1m00s", "forecast 3m05s, beyond 1m00s", "forecast 0.4s, beyond 1m00s"]
    assert len({case_names.template(r) for r in reasons}) == 1
    assert case_names.merged(reasons) == "forecast 0.4s to 3m05s, beyond 1m00s"


def warned(*records: Record, **changes: Any) -> str:
    made = run(records, **changes)
    return "\n".join(map(str, cautions.cautions(cells([made]), [made])))


def told(*records: Record, **changes: Any) -> str:
    return "\n".join(map(str, facts.facts(cells([run(records, **changes)]))))


def test_which_interpreter_ran_a_backend_where_it_was_not_the_usual_one() -> None:
    records = [ok(case(), name, 300.0) for name in ("eager", "fa4", "sdpa-fa4", "xformers")]
    chosen = {"sdpa-fa4": "/envs/fa4/bin/python", "fa4": "/envs/fa4/bin/python", "xformers": "/x/python", "fa2": "/y"}
    said = told(*records, interpreters=chosen)
    assert "sdpa-fa4, fa4 ran in /envs/fa4/bin/python." in said
    assert "xformers ran in /x/python." in said
    assert "/y" not in said
    assert " ran in " not in told(*records)


def test_cautions() -> None:
    good = ok(case(), "eager", 30.0)
    assert warned(good) == ""
    noisy = ok(case(2048), "triton", 300.0, spread=0.1)
    assert "Noisy: 1 of 2 cells not known to 0.5%, the worst to 2.1%: triton 2k d128 full fwd." in warned(good, noisy)
    held = replace(good, limits=("power cap",))
    assert "Clock held down by power cap in 1 of 1 cell." in warned(held)
    few = ok(case(2048), "triton", 300.0, n=4)
    assert "Few samples in 1 cell, the fewest 4: triton 2k d128 full fwd." in warned(good, few)
    assert "below 6 no 95 % interval" in warned(few)
    assert "Few" not in warned(ok(case(2048), "triton", 300.0, n=6))  # enough for calls that take long
    unknown = warned(good, device=replace(H200, name="GPU of tomorrow"))
    assert "no bf16 peak is on file for GPU of tomorrow" in unknown
    assert "--peak bf16=..." in unknown
    wrong = ended(case(2048), "triton", "wrong", "out is off")
    assert "1 result wrong: triton 2k d128 full fwd." in warned(good, wrong)
    half = ended(case(), "eager", "timeout", "took 120 s", round=1)
    assert "1 cell measured in some rounds only: eager 1k d128 full fwd (TIMEOUT: took 120 s)." in warned(good, half)


def test_a_clock_held_down_by_the_gauge() -> None:
    records = [ok(case(), "eager", 30.0, clock_held=1.98e9), ok(case(2048), "triton", 300.0, clock_held=1.7e9)]
    text = warned(*records)
    assert "Clock held down in 1 of 2 cells, SM clock 1700 of 1980 MHz." in text
    assert "--isolate-power" in text
    capped = warned(records[0], replace(records[1], limits=("power cap",)))
    assert "Clock held down by power cap in 1 of 2 cells" in capped
    assert warned(replace(records[0], limits=("power cap",))) == ""  # NVML says so, but the clock was there


def test_drift() -> None:
    def drifting(which: Any, backend: str, *thirds: float) -> Record:
        return ok(which, backend, 300.0, time=[t for third in thirds for t in [third] * 10])

    steady = drifting(case(), "eager", 1e-3, 1.02e-3, 1.01e-3)
    assert "while measured" not in warned(steady)
    text = warned(
        steady, drifting(case(2048), "triton", 1.05e-3, 1e-3, 1e-3), drifting(case(), "fa4", 2e-3, 1e-3, 1e-3)
    )
    assert "Still getting faster while measured: 2 cells, by 50% at most: fa4 1k d128 full fwd." in text
    assert "warmup_s" in text
    text = warned(steady, drifting(case(2048), "triton", 1e-3, 1e-3, 1.1e-3))
    assert "Getting slower while measured: 1 cell, by 10% at most: triton 2k d128 full fwd." in text
    assert "faster" not in text


def test_the_state_of_the_machine() -> None:
    good = ok(case(), "eager", 30.0)
    shared = replace(ok(case(2048), "triton", 300.0), others=("python (pid 12)", "blender (pid 9)"))
    text = warned(good, shared)
    assert "Shared GPU: others computed on it during 1 of 2 cells: blender (pid 9), python (pid 12)." in text
    assert "--device cuda:N" in text
    mistaken = ended(case(2048), "triton", "wrong-kernel", "kernels ran for longer", others=shared.others)
    assert "Shared GPU: others computed on it during 1 of 2 cells" in warned(good, mistaken)
    failing = replace(shared, others=(), ecc_errors=2)
    text = warned(good, failing)
    assert "The GPU counted 2 uncorrected memory errors during triton 2k d128 full fwd." in text
    text = warned(good, replace(good, backend="triton", l2="unproven"))
    assert "L2 not proven cold in 1 of 2 cells" in text
    assert "--timer cupti" in text
    assert "exceeds the cache" in warned(replace(good, l2="unproven"), device=CPU)


def turns(
    backend: str, events: float, graph: float | None, cupti: float, seqlen: int = 1024, toll: float = 0
) -> Record:
    traced = (1 + toll) * events
    taken = {"turns_events": (events,) * 8, "turns_cupti": ((1 + toll) * cupti,) * 8, "turns_traced": (traced,) * 8}
    return ok(case(seqlen), backend, 300.0, **taken, **({"turns_graph": (graph,) * 8} if graph else {}))


def test_the_cross_check() -> None:
    records = [
        turns("triton", 1000e-6, 1000e-6, 999e-6),
        turns("triton", 1000e-6, 1004e-6, 990e-6, 2048),
        turns("triton", 1000e-6, 1001e-6, 997e-6, 4096, toll=0.03),
        turns("triton", 50e-6, 49.5e-6, 48.5e-6, 8192),
        turns("eager", 20e-6, None, 16.5e-6),
        turns("eager", 10e-6, None, 8e-6, 2048),
    ]
    assert told(*records).splitlines() == [
        "Cross-check of eager: CUPTI reads 2.0 to 3.5 us less than CUDA events in 2 shorter cells.",
        "Cross-check of triton: CUDA graph replay differs from CUDA events by 0.1% in the median and 0.4% in the worst "
        "of 3 cells of 100 us and more and reads 0.5 us less in 1 shorter cell; CUPTI differs from CUDA events of "
        "the same calls by 0.3% in the median and 1% in the worst of 3 cells of 100 us and more and reads 1.5 us less "
        "in 1 shorter cell; tracing costs 0%, 3% at most.",
    ]
    assert warned(*records) == ""
    text = warned(*records, turns("triton", 1e-3, 1e-3, 0.9e-3, 16384))
    assert (
        "Instruments disagree: by more than 2% in 1 cell of 100 us and more, by 10% in the worst: "
        "triton 16k d128 full fwd." in text
    )


def test_what_tracing_slows_is_said_where_the_latency_is_a_span() -> None:
    def traced(by: float, seqlen: int, **changes: Any) -> Record:
        taken = {"time": (50e-6,) * 30, "span": (48e-6 + by,) * 30, "span_events": (50e-6 + by,) * 30}
        return ok(case(seqlen), "eager", 300.0, **taken, **changes)

    slow = "Tracing slows 1 cell whose latency is a span: eager 2k d128 full fwd."
    assert slow in told(traced(0.0, 1024), traced(1.4e-6, 2048))
    assert "Tracing" not in told(traced(1.2e-6, 2048))  # 2 %, and the gap may grow by 0.3 us
    assert "Tracing" not in told(traced(1.4e-6, 2048, host_bound=True))
    assert "Latency is of traced calls." in told(ok(case(2048), "eager", 300.0, time=(1e-3,) * 30, timer="cupti"))


def test_short_kernels_and_their_launch_gaps() -> None:
    def short(backend: str, seqlen: int, gap: float, **changes: Any) -> Record:
        return ok(case(seqlen), backend, 300.0, time=(50e-6,) * 30, span=(50e-6 - gap,) * 30, **changes)

    records = [short("triton", 1024, 1.2e-6), short("triton", 2048, 2.3e-6), short("eager", 1024, 4e-6)]
    assert told(*records) == (
        "Latency is the kernels' own span (CUPTI) in 3 cells. CUDA events read under 100 us there, launch gap "
        "included: eager 4.0 us, triton 1.2 to 2.3 us. -m launch_gap has it by cell."
    )
    bound = short("eager", 1024, 40e-6, host_bound=True)
    assert "launch gap included." in told(bound)  # its readings hold the host's time too
    assert told(ok(case(), "eager", 30.0)) == ""


def test_what_the_host_launches_more_slowly_than_the_gpu_runs() -> None:
    records = [ok(case(s), b, 300.0, enqueue=e) for s, b, e in ((1024, "eager", 1.0), (2048, "eager", 1.0))]
    records += [ok(case(), "triton", 300.0, enqueue=1e-6), ok(case(2048), "triton", 300.0, enqueue=2.0)]
    text = told(*records)
    assert "Launch-bound: 3 cells where the host takes longer to launch a call than the GPU to run it" in text
    assert "(eager 2, triton 1)" in text
    assert told(records[2]) == ""


def test_memory_that_torch_does_not_know() -> None:
    def took(backend: str, seqlen: int, peak: int, outside: int) -> Record:
        peak, outside = peak * 2**20, outside * 2**20
        return ok(case(seqlen), backend, 300.0, memory_peak=peak, memory_driver=peak + outside)

    records = [took("sdpa-cudnn", s, 64, mib) for s, mib in ((1024, 100), (2048, 128), (4096, 200))]
    records += [took("eager", 1024, 64, 30), took("triton", 1024, 4000, 100)]
    assert told(*records) == (
        "Memory outside torch's allocator: sdpa-cudnn 128 MiB (median of 3 cells). memory_peak leaves it out. "
        "-m memory_driver has all of it."
    )
    assert told(*records, device=CPU) == ""


def test_what_records_say_is_said_once() -> None:
    text = "cross-check: graph: L2 is cold only with {} copies of its operands, over 512"
    records = [ok(case(1024 * 2**i), "triton", 300.0, notes=(text.format(600 + i),)) for i in range(3)]
    records += [ok(case(), "eager", 30.0, notes=(text.format(700), "no \x1b[31mjoules")), ok(case(2048), "eager", 30.0)]
    assert told(*records).splitlines() == [
        "cross-check: graph: L2 is cold only with 600 to 700 copies of its operands, over 512 (4 cells: eager, triton)",
        "no joules (1 cell: eager)",
    ]


def test_facts_stand_apart_for_several_devices() -> None:
    b200 = replace(H200, name="NVIDIA B200", memory=192 * 10**9)
    runs = [run([turns("triton", 1e-3, 1e-3, 1e-3)]), run([turns("triton", 1e-3, 1e-3, 1e-3)], device=b200)]
    found = [str(f) for f in facts.facts(cells(runs))]
    assert [text.partition(":")[0] for text in found] == [
        "Cross-check of triton on NVIDIA H200",
        "Cross-check of triton on NVIDIA B200",
    ]


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
    assert case_names.span([1024, 2048], known) == "1k, 2k"
    assert case_names.span([1024, 2048, 3000, 8192], known) == "1k-3000, 8k"
    assert case_names.span([65536], known) == "64k"


def test_what_is_left_of_an_interrupted_run_does_not_count_what_it_would_skip() -> None:
    jobs = [job(case(), "eager"), job(case(2048), "eager"), replace(job(case(4096), "eager"), skip="too large")]
    jobs.append(replace(job(case(8192), "eager"), skip="no time", resumable=True))
    console = Console(file=io.StringIO(), width=100)
    _epilogue(console, Outcome(run([ok(case(), "eager", 30.0)], plan=jobs), Path("run.jsonl"), EXIT_INTERRUPTED))
    assert isinstance(console.file, io.StringIO)
    assert "Go on with the 2 jobs left:" in console.file.getvalue()
