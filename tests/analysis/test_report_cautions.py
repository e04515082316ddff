"""The cautions of a report, and their rules: one caution for each place where a rule holds, in the order of rules."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.cautions import Rule, furthest, in_cells, stated, when
from attnbench.analysis.report.cautions import cautions
from attnbench.core.case import Case
from attnbench.core.flops import Convention
from attnbench.core.record import Approximation, Measurement, Record
from attnbench.render.document import Caution
from attnbench.results import run_file
from attnbench.results.cells import cells
from builders import CPU, H200, case, decode, ended, job, ok, run


def warned(*records: Record, **changes: Any) -> str:
    made = run(records, **changes)
    return "\n".join(map(str, cautions(cells([made]), [made])))


def test_cautions() -> None:
    good = ok(case(), "eager", 30.0)
    assert warned(good) == ""
    noisy = ok(case(2048), "triton", 300.0, spread=0.1)
    assert (
        "Noisy: 1 of 2 cells not known to 0.5% from the samples of their process, the worst to 2.1%: triton 2k"
        in warned(good, noisy)
    )
    held = replace(good, limits=("power cap",))
    assert "Clock held down by power cap in 1 of 1 cell." in warned(held)
    few = ok(case(2048), "triton", 300.0, n=4)
    assert "Few samples in 1 cell, the fewest 4: triton 2k d128 full fwd." in warned(good, few)
    assert "Below 6 the interval takes" in warned(few)
    assert "Few" not in warned(ok(case(2048), "triton", 300.0, n=6))  # six are enough for long calls
    kept = warned(ok(case(), "eager", 30.0, n=1), reduced=True)
    assert "1 baseline among these: a baseline keeps one value per round." in kept
    assert "Few samples" not in kept
    unknown = warned(good, device=replace(H200, name="GPU of tomorrow"))
    assert "no bf16 peak is on file for GPU of tomorrow" in unknown
    assert "--peak bf16=..." in unknown
    wrong = ended(case(2048), "triton", "wrong", "out is off")
    assert "1 result wrong: triton 2k d128 full fwd." in warned(good, wrong)
    half = ended(case(), "eager", "timeout", "took 120 s", round=1)
    assert "1 cell measured in some rounds only: eager 1k d128 full fwd (TIMEOUT: took 120 s)." in warned(good, half)


def test_a_verdict_that_todays_check_may_not_give_accuses_nobody() -> None:
    copied = ended(case(), "eager", "wrong-kernel", "its declared kernels took 0.86% of the time; copies did more")
    in_fp8 = ended(case(dtype="fp8"), "fa3", "wrong", "on hard inputs: out is off by 0.3 where 0.05 is allowed")
    missed = ended(case(2048), "fa1", "wrong", "dropout drops the same probabilities every 2 keys")
    earlier = warned(copied, in_fp8, missed, check=1)
    assert "2 results wrong by an earlier check of attnbench: eager 1k" in earlier
    assert "1 result wrong: fa1 2k" in earlier, "the check of it has not changed"
    today = warned(copied, in_fp8, missed)
    assert "earlier check" not in today
    assert "2 results wrong: fa1 2k" in today


def test_a_figure_that_no_device_can_reach_is_a_fault_of_ours() -> None:
    """A rate that no device can reach is reported as attnbench's fault: 989 TFLOP/s at 1830 of 1980 MHz, 4.8 TB/s."""

    def said(record: Record, **changes: Any) -> bool:
        text = warned(record, **changes)
        assert "This is a fault of attnbench; please report it" in text or "above what" not in text
        (cell,) = cells([run([record], **changes)])
        assert cell.is_ranked == (cell.is_exact and "above what" not in text)
        return "1 figure above what the device can do: triton" in text

    assert said(ok(case(), "triton", 1100.0))
    assert not said(ok(case(), "triton", 1060.0)), "at the highest clock"
    assert not said(ok(case(), "triton", 1100.0), peak={"bf16": 5e14}), "a peak that a person gave"
    near = Approximation("few keys", 0.4, None, rows=64, heads=4)
    assert not said(ok(case(), "triton", 1100.0, approximation=near)), "by exact attention's FLOPs"
    read = decode(16384, "triton", 20.0)  # 4 FLOPs a byte: 5 TB/s
    assert said(read)
    assert not said(replace(read, l2="warm"))
    assert not said(decode(16384, "triton", 19.0))


def test_a_clock_held_down_by_the_gauge() -> None:
    records = [ok(case(), "eager", 30.0, clock_held=1.98e9), ok(case(2048), "triton", 300.0, clock_held=1.7e9)]
    text = warned(*records)
    assert "Clock held down in 1 of 2 cells, SM clock 1700 of 1980 MHz." in text
    assert "--isolate-power" in text
    capped = warned(records[0], replace(records[1], limits=("power cap",)))
    assert "Clock held down by power cap in 1 of 2 cells" in capped
    assert warned(replace(records[0], limits=("power cap",))) == ""  # NVML reports it, but the clock was reached


def test_drift() -> None:
    def drifting(which: Any, backend: str, *thirds: float, **rest: Any) -> Record:
        return ok(which, backend, 300.0, time=[t for third in thirds for t in [third] * 10], **rest)

    steady = drifting(case(), "eager", 1e-3, 1.02e-3, 1.01e-3)
    assert "while measured" not in warned(steady)
    text = warned(
        steady, drifting(case(2048), "triton", 1.05e-3, 1e-3, 1e-3), drifting(case(), "fa4", 2e-3, 1e-3, 1e-3)
    )
    assert "Still getting faster while measured: 2 cells, by 50% at most: fa4 1k d128 full fwd." in text
    assert "longer --warmup or --max-seconds" in text
    text = warned(steady, drifting(case(2048), "triton", 1e-3, 1e-3, 1.1e-3))
    assert "Getting slower while measured: 1 cell, by 10% at most: triton 2k d128 full fwd." in text
    assert "faster" not in text
    slower = partial(drifting, case(2048), "triton", 1e-3, 1e-3, 1.1e-3)
    assert "The clock fell meanwhile. " in warned(slower(clock_held=[1.98e9, 1.8e9]))
    assert "--isolate-power" not in warned(slower(), device=CPU)
    assert "The clock held, so something else began to run" in warned(slower(clock_held=[1.8e9, 1.8e9]))
    assert "while measured" not in warned(slower(host_bound=True)), "the host's time moved"


def test_the_state_of_the_machine() -> None:
    good = ok(case(), "eager", 30.0)
    shared = replace(ok(case(2048), "triton", 300.0), others=("python (pid 12)", "blender (pid 9)"))
    text = warned(good, shared)
    assert "Shared GPU: other processes computed on it during 1 of 2 cells: blender (pid 9), python (pid 12)." in text
    assert "--device cuda:N" in text
    mistaken = ended(case(2048), "triton", "wrong-kernel", "kernels ran for longer", others=shared.others)
    assert "Shared GPU: other processes computed on it during 1 of 2 cells" in warned(good, mistaken)
    failing = replace(shared, others=(), ecc_errors=2)
    text = warned(good, failing)
    assert "The GPU counted 2 uncorrected memory errors during triton 2k d128 full fwd." in text
    text = warned(good, replace(good, backend="triton", l2="unproven"))
    assert "L2 not proven cold in 1 of 2 cells" in text
    assert "--timer cupti" in text
    assert "sizes beyond the cache" in warned(replace(good, l2="unproven"), device=CPU)


def test_an_incomplete_run_says_how_to_finish_it() -> None:
    plan = [job(case(), "eager"), job(case(2048), "eager"), replace(job(case(4096), "eager"), skip="too large")]
    half = run([ok(case(), "eager", 30.0)], plan=plan)
    (found,) = map(str, cautions(cells([half]), [half], [Path("results/half.jsonl")]))
    assert '1 of 2 jobs to measure of suite "quick" have no record.' in found
    assert "attnbench run --resume results/half.jsonl" in found
    late = ended(case(), "eager", "skipped", "no time left", resumable=True)
    assert "1 job skipped for want of time" in warned(late)


def test_records_that_later_ones_replace_are_told() -> None:
    later = ok(case(), "eager", 3.0)
    for earlier, told in ((ok(case(), "eager", 30.0), True), (ended(case(), "eager", "skipped", "no time"), False)):
        made = run_file.with_records(run([]), [earlier, later])
        said = "\n".join(map(str, cautions(cells([made]), [made])))
        assert ("1 record replaced by a later one" in said) is told


def test_latencies_that_hold_the_hosts_time() -> None:
    waiting, hidden = (
        ok(case(length), "eager", 30.0, host_bound=True, time=[1e-3] * 10, enqueue=[launch] * 10)
        for length, launch in ((1024, 5e-4), (4096, 2e-5))
    )
    text = warned(waiting, ok(case(2048), "eager", 30.0), hidden)
    assert "Host-bound: 1 cell where the device waited for the host: eager 1k d128 full fwd." in text
    assert "capture them in a CUDA graph" in text


def test_instruments_that_disagree_on_long_calls() -> None:
    def compared(seqlen: int, events: float, cupti: float) -> Record:
        return ok(case(seqlen), "triton", 300.0, turns_events=(events,) * 8, turns_cupti=(cupti,) * 8)

    good = compared(1024, 1e-3, 0.99e-3)
    text = warned(good, compared(2048, 1e-3, 0.9e-3), compared(4096, 1e-3, 0.95e-3))
    assert "Instruments disagree: by more than 2% in 2 cells of 100 us and more, by 10% in the worst: triton 2k" in text
    assert "Instruments disagree" not in warned(good, compared(2048, 50e-6, 40e-6))  # the launch gap is expected


def test_windows_by_the_papers_convention() -> None:
    def said(which: Case, convention: Convention) -> bool:
        made = run([ok(which, "triton", 300.0)])
        return any("ignores windows" in str(c) for c in cautions(cells([made], convention), [made]))

    window = case(causal=True, window_size=(255, 0))
    assert said(window, "fa")
    assert not said(window, "exact")
    assert not said(case(causal=True), "fa")


def test_an_incomplete_half_of_an_ab() -> None:
    plan = [job(case(), "eager"), job(case(2048), "eager")]
    text = warned(ok(case(), "eager", 30.0), plan=plan, turns="3f2a")
    assert "1 cell of 2 of this half of an A/B have no record: it ended early." in text
    assert "--resume" not in text
    late = ended(case(), "eager", "skipped", "no time left", resumable=True)
    assert "A longer --time-limit of attnbench ab measures them." in warned(late, turns="3f2a")


def test_the_most_serious_come_first() -> None:
    records = [
        ok(case(), "eager", 30.0, time=[1e-3, 1.1e-3] * 5, limits=("power cap",)),
        ended(case(), "triton", "wrong", "off by 3"),
        ended(case(2048), "triton", "wrong-kernel", "sgemm ran"),
    ]
    starts = [text.split()[:2] for text in warned(*records).splitlines()]
    assert starts == [["1", "result"], ["1", "cell"], ["Clock", "held"], ["Noisy:", "1"]]


def test_a_wrong_result_of_ones_own_file_is_sent_to_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ended(case(), "tiled", "wrong", "out is off")
    mine = warned(wrong, ended(case(), "triton", "wrong", "off"), specs={"tiled": f"{tmp_path / 'mine.py'}:tiled"})
    assert "1 result wrong: tiled 1k d128 full fwd." in mine
    assert f"attnbench check .{os.sep}mine.py:tiled --wrong FILE" in mine
    assert mine.count("report it to the backend's authors") == 1
    split = ended(replace(case(), ranks=2), "tiled", "wrong", "out is off")
    mine = warned(split, specs={"tiled": f"{tmp_path / 'mine.py'}:tiled"})
    assert "1 result wrong: tiled" in mine
    assert "attnbench check" not in mine, "it splits no sequence"


def test_a_figure_far_above_the_measured_ceiling_is_doubted() -> None:
    ceiling = {"ceiling_matmul": Measurement("FLOP/s", (100e12,))}
    slow, fast = (ok(case(n), "triton", tflops) for n, tflops in ((1024, 90.0), (2048, 220.0)))
    slow = replace(slow, measurements={**slow.measurements, **ceiling})
    assert "1 cell above the measured ceiling (220%): triton 2k d128 full fwd." in warned(slow, fast)
    assert "ceiling" not in warned(slow, ok(case(2048), "triton", 105.0))


RULES = (
    Rule[list[int]](lambda found: ({"n": n} for n in found if n < 0), "{n} is below 0.", todo="Leave {n} out."),
    Rule[list[int]](lambda found: when(len(found) > 2, number=len(found)), "{number} numbers.", "Too many."),
)


def test_a_caution_for_each_place_in_the_order_of_the_rules() -> None:
    assert stated(RULES, [-1, 2, -3]) == (
        Caution("-1 is below 0.", "", "Leave -1 out."),
        Caution("-3 is below 0.", "", "Leave -3 out."),
        Caution("3 numbers.", "Too many."),
    )
    assert stated(RULES, [1, 2]) == ()


def test_values_may_hold_braces() -> None:
    rule = Rule[str](lambda name: when(name, name=name), "No {name}.")
    assert stated([rule], "{x}") == (Caution("No {x}."),)


def test_no_cells_are_no_place() -> None:
    assert list(in_cells([])) == list(furthest([])) == []
