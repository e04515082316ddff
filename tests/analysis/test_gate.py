"""From two runs to findings and one exit code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.gate import run_differences
from attnbench.analysis.gate.findings import Judgement, Request, judge
from attnbench.analysis.gate.margins import DEFAULT, Margins
from attnbench.analysis.gate.verdicts import Decision, interval
from attnbench.core.errors import UserError
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record, Run
from attnbench.results import run_file
from builders import H200, case, ended, environment, measurements, ok, run

WOBBLE = (0.0, 0.001, -0.001, 0.0005, -0.0005)
LENGTHS = (1024, 2048, 4096)
SLOW = 300 / 1.1
SPREADS = Path(__file__).parents[2] / "results" / "spreads"


def rounds(
    backend: str = "triton", tflops: float = 300, *, seqlens: Sequence[int] = LENGTHS, n: int = 5, **changes: Any
) -> list[Record]:
    return [
        ok(case(seqlen), backend, tflops * (1 + WOBBLE[i]), round=i, n=3, **changes)
        for seqlen in seqlens
        for i in range(n)
    ]


def gate(before: Sequence[Record], after: Sequence[Record], *metrics: str, **request: Any) -> Judgement:
    return judge(run(before), run(after), Request(metrics or ("latency",), **request))


def verdicts(judgement: Judgement) -> dict[tuple[int, str | None], str]:
    return {(f.case.shape.seqlen_k, f.metric): f.verdict for f in judgement.findings}


def of_one(before: Sequence[Record], after: Sequence[Record], **request: Any) -> tuple[str, str, int]:
    """Return (verdict, reason, exit code) of a gate of one cell."""
    judgement = gate(before, after, **request)
    (finding,) = judgement.findings
    return finding.verdict, finding.reason, judgement.exit_code


@pytest.mark.parametrize("card", ["h200-7f3cc288", "h200-9587d04c", "h100-ff241cb2"])
def test_two_runs_of_one_card_and_one_code_differ_in_nothing(card: str) -> None:
    """Errors of two runs of the same code do not differ, although each run draws other rows: both sample one error."""
    files = [SPREADS / f"{card}-{number}.jsonl.gz" for number in (1, 2)]
    found = judge(*(run_file.read(file)[0] for file in files), Request(DEFAULT))
    assert {f.metric for f in found.findings if f.verdict == "regressed"} == set()
    assert sum(f.metric == "relative_error" and f.verdict == "unchanged" for f in found.findings) > 50


def test_a_slower_cell_fails_and_comes_first() -> None:
    slow = [*rounds(seqlens=(1024, 4096)), *rounds(seqlens=(2048,), tflops=SLOW)]
    judgement = gate(rounds(), slow)
    assert judgement.exit_code == 1
    first = judgement.findings[0]
    assert (first.case.shape.seqlen_k, first.verdict) == (2048, "regressed")
    assert first.decision is not None
    assert first.decision.change == pytest.approx(0.1, abs=0.001)
    assert first.current == pytest.approx(1.1 * (first.baseline or 0), rel=0.001)
    assert [f.verdict for f in judgement.findings[1:]] == ["unchanged"] * 2


def test_the_figures_of_a_noisy_cell_tell_the_change_that_was_judged() -> None:
    """A noisy cell shows the geometric means that were compared; its medians are 100 and 100."""
    speeds = (100, 100, 400), (100, 100, 25)
    before, after = ([ok(case(), "triton", speed, round=i) for i, speed in enumerate(of)] for of in speeds)
    (finding,) = gate(before, after).findings
    assert finding.decision is not None
    assert (finding.current or 0) / (finding.baseline or 1) - 1 == pytest.approx(finding.decision.change)
    assert finding.decision.change == pytest.approx(16 ** (1 / 3) - 1)


def test_what_is_too_noisy_is_inconclusive_and_may_be_let_pass() -> None:
    noisy = [replace(r, measurements=ok(r.case, "triton", 300 * (1 + 40 * WOBBLE[r.round])).measurements)
             for r in rounds(seqlens=(1024,))]  # fmt: skip
    verdict, reason, code = of_one(noisy, noisy)
    assert (verdict, code) == ("inconclusive", 3)
    assert "more rounds of both runs" in reason
    assert of_one(noisy, noisy, inconclusive="pass")[2] == 0


def test_what_no_device_can_reach_improves_nothing() -> None:
    verdict, reason, code = of_one(rounds(seqlens=(1024,)), rounds(seqlens=(1024,), tflops=3000))
    assert (verdict, reason, code) == ("inconclusive", "its rate is above what the device can do", 3)


def test_margins_are_per_metric_and_cell() -> None:
    changed = rounds(tflops=300 / 1.06)
    own = Margins({"latency": 0.02}, (("triton 4k *", {"latency": 0.2}), ("triton 9k *", {"latency": 0.1})))
    judgement = gate(rounds(), changed, margins=own)
    assert [*verdicts(judgement).values()] == ["regressed", "regressed", "unchanged"]
    assert any("'triton 9k *'" in note for note in judgement.notes)
    assert not any("'triton 4k *'" in note for note in judgement.notes)


def broken(status: Any, *, bad: int = 5, reason: str = "it broke") -> list[Record]:
    good = rounds(seqlens=(1024,))
    return good[bad:] + [ended(case(), "triton", status, reason, round=i) for i in range(bad)]


@pytest.mark.parametrize(("status", "bad"), [("failed", 1), ("oom", 5), ("timeout", 1)])
def test_a_cell_that_fails_in_any_round_is_newly_failing(status: str, bad: int) -> None:
    verdict, reason, code = of_one(rounds(seqlens=(1024,)), broken(status, bad=bad))
    assert (verdict, code) == ("newly-failing", 1)
    assert f"{bad} of 5 rounds" in reason
    assert "it broke" in reason


@pytest.mark.parametrize(("status", "bad"), [("wrong", 1), ("wrong-kernel", 5)])
@pytest.mark.parametrize("before", ["ok", "oom", "skipped", "failed", "timeout", "wrong", "absent"])
def test_a_wrong_result_never_passes_whatever_was_before(before: str, bad: int, status: str) -> None:
    """A wrong result fails the gate even if the baseline has no right result for the cell."""
    more = rounds(seqlens=(2048,))
    old = {"ok": rounds(seqlens=(1024,)), "absent": []}[before] if before in ("ok", "absent") else broken(before)
    judgement = gate([*old, *more], [*broken(status, bad=bad, reason="out is off by 1"), *more])
    wrong = judgement.findings[0]
    assert (wrong.verdict, wrong.case.shape.seqlen_k, judgement.exit_code) == ("wrong", 1024, 5)
    assert f"{bad} of 5 rounds" in wrong.reason
    assert "out is off by 1" in wrong.reason
    assert ("the baseline is wrong too" in wrong.reason) == (before == "wrong")
    assert ("the baseline failed: 5 of 5 rounds" in wrong.reason) == (before in ("oom", "failed", "timeout"))
    allowed = gate([*old, *more], [*broken(status, bad=bad), *more], allow_wrong=True)
    assert allowed.exit_code == (1 if before == "ok" else 0)
    assert allowed.findings[0].verdict == ("newly-failing" if before == "ok" else "wrong")


def test_a_wrong_result_weighs_more_than_a_regression_and_is_named_where_nothing_is_compared() -> None:
    before, after = rounds(), [*rounds(seqlens=LENGTHS[1:], tflops=SLOW), *broken("wrong")]
    judgement = gate(before, after)
    assert [f.verdict for f in judgement.findings] == ["wrong", "regressed", "regressed"]
    assert judgement.exit_code == 5
    refused = judge(run(before), replace(run(after), environment=environment(driver="590.10")), Request(("latency",)))
    assert ([f.verdict for f in refused.findings], refused.exit_code) == (["wrong"], 4)
    alone = gate(rounds(seqlens=(4096,)), broken("wrong"))
    assert (alone.findings[0].verdict, alone.exit_code) == ("wrong", 5)


def test_a_wrong_half_of_a_pair_of_turns_counts_though_the_other_was_not_measured() -> None:
    a, b = rounds(seqlens=(1024,), n=1), [*rounds(seqlens=(1024,), n=1), *broken("wrong")[1:2]]
    halves = [replace(run(records), turns="one") for records in (a, b)]
    assert judge(*halves, Request(("latency",))).exit_code == 5


def test_a_round_that_failed_in_the_baseline_does_not_hide_what_came_of_the_others() -> None:
    flaky, slower = broken("oom", bad=1), rounds(seqlens=(1024,), tflops=300 / 1.1)
    judgement = gate(flaky, slower)
    assert verdicts(judgement) == {(1024, None): "newly-working", (1024, "latency"): "regressed"}
    assert judgement.exit_code == 1
    assert of_one(flaky, broken("oom", bad=5))[::2] == ("newly-failing", 1)
    assert of_one(flaky, broken("skipped", bad=5))[::2] == ("missing", 1)
    again = gate(flaky, broken("oom", bad=2))
    assert verdicts(again) == {(1024, "latency"): "unchanged"}
    assert any("1 cell failed in some rounds of both runs; the rounds that worked" in n for n in again.notes)
    assert not any("neither" in note for note in again.notes)


@pytest.mark.parametrize("status", ["skipped", "failed", "wrong"])
def test_a_cell_that_works_in_some_rounds_only_is_no_success(status: str) -> None:
    more = rounds(seqlens=(2048,))
    judgement = gate([*broken(status), *more], [*broken("failed", bad=2), *more])
    assert verdicts(judgement) == {(2048, "latency"): "unchanged"}
    assert any("worked in some rounds, and not in the baseline: not compared" in note for note in judgement.notes)
    assert not any("both runs" in note for note in judgement.notes)


def test_of_a_cell_that_was_wrong_in_any_round_nothing_is_compared() -> None:
    assert of_one(broken("wrong", bad=1), rounds(seqlens=(1024,)))[::2] == ("newly-working", 0)
    assert of_one(broken("wrong", bad=1), broken("wrong", bad=1))[::2] == ("wrong", 5)


def test_what_fails_in_both_runs_is_named_where_nothing_else_is_there() -> None:
    why = r"by latency \(triton 1k .*: baseline 5 of 5 rounds OOM: a; current run 5 of 5 rounds FAIL: b\)"
    with pytest.raises(UserError, match=why):
        gate(broken("oom", reason="a"), broken("failed", reason="b"))


def test_in_turns_a_cell_that_failed_in_a_round_decides_nothing_by_the_others() -> None:
    """A cell that failed in a round stays undecided: an A/B stops measuring it, so that it has too few rounds."""
    more = rounds(seqlens=(2048,))
    a, b = [*broken("failed", bad=4), *more], [*rounds(seqlens=(1024,)), *more]
    halves = [replace(run(records), turns="one") for records in (a, b)]
    assert verdicts(judge(*halves, Request(("latency",))))[1024, None] == "newly-working"
    assert (1024, "latency") not in verdicts(judge(*halves, Request(("latency",))))
    assert (1024, "latency") in verdicts(gate(a, b))
    both = [replace(run([*broken("failed", bad=2), *more]), turns="one") for _ in range(2)]
    judged = judge(*both, Request(("latency",)))
    assert {cell for cell, _ in verdicts(judged)} == {2048}
    assert any("1 cell failed in some rounds of both runs, not compared" in note for note in judged.notes)


def planned(records: list[Record], done: int) -> Run:
    """Return a run that was interrupted after `done` jobs."""
    forecast = Forecast(0.1, 0.001, 1)
    jobs = tuple(Job(r.case, r.backend, r.round, forecast) for r in records)
    return replace(run(records[:done]), plan=jobs)


def test_a_run_that_is_not_done_says_so() -> None:
    every = sorted(rounds(), key=lambda r: r.round)
    short = judge(run(every), planned(every, 9), Request(("latency",)))
    assert short.exit_code == 0
    assert any("The current run is incomplete: 6 of 15 planned jobs not measured." in note for note in short.notes)
    shorter = judge(planned(every, 14), planned(every, 2), Request(("latency",)))
    reasons = {f.case.shape.seqlen_k: f.reason for f in shorter.findings if f.verdict == "missing"}
    assert reasons == {4096: "planned, and not measured yet"}
    assert any("The baseline is incomplete: 1 of 15 planned jobs" in note for note in shorter.notes)
    none = judge(run(every), planned(every, 0), Request(("latency",)))
    assert ({f.verdict for f in none.findings}, none.exit_code) == ({"missing"}, 1)


def test_a_cell_that_is_gone_is_missing() -> None:
    """A cell that is gone is missing, so that a build in which a backend cannot be imported does not pass."""
    verdict, reason, code = of_one(rounds(seqlens=(1024,)), broken("skipped", reason="no module mylib"))
    assert (verdict, code) == ("missing", 1)
    assert "no module mylib" in reason
    assert of_one(rounds(seqlens=(1024,)), broken("skipped"), missing="pass")[2] == 0
    judgement = gate(rounds(), rounds(seqlens=(1024, 2048)))
    assert verdicts(judgement)[4096, None] == "missing"
    assert judgement.exit_code == 1


def test_a_metric_that_is_gone_is_missing() -> None:
    judgement = gate(rounds(memory_peak=2**30), rounds(), "latency", "memory_peak")
    assert judgement.count("missing") == 3
    assert judgement.count("unchanged") == 3


def test_a_timer_that_read_nothing_is_no_value() -> None:
    """A latency of 0 is no value, because a ratio to it would be infinite, which JSON cannot hold."""
    well, nothing = rounds(seqlens=LENGTHS[:2]), rounds(seqlens=LENGTHS[1:2])
    nothing += [replace(r, measurements=measurements(time=[0.0] * 3)) for r in rounds(seqlens=LENGTHS[:1])]
    assert verdicts(gate(well, nothing)) == {(1024, "latency"): "missing", (2048, "latency"): "unchanged"}
    assert verdicts(gate(nothing, well)) == {(2048, "latency"): "unchanged"}


def test_cells_beside_are_said_and_not_judged() -> None:
    before = [*rounds(seqlens=(1024,)), ended(case(2048), "triton", "oom", "too large")]
    after = [*rounds(seqlens=(1024, 4096)), ended(case(2048), "triton", "oom", "too large")]
    judgement = gate(before, after)
    assert len(judgement.findings) == 1
    assert any("worked in neither run: triton 2k" in note for note in judgement.notes)
    assert any("in the current run only, not compared: triton 4k" in note for note in judgement.notes)


def test_nothing_in_common_is_bad_input() -> None:
    with pytest.raises(UserError, match="no cell in common"):
        gate(rounds(seqlens=(1024,)), rounds(seqlens=(2048,)))
    with pytest.raises(UserError, match="compared by joules; attnbench report -m joules shows"):
        gate(rounds(), rounds(), "joules")


def test_a_mask_is_the_same_wherever_its_file_lies() -> None:
    """A mask has one identity by name, function and hash, in runs that were started in different folders too."""
    texts = ("w.py:f@12345678", "/a:b/masks/w.py:f@12345678", "masks/w.py:f@12345679", "masks/w.py:g@12345678")
    here, there, *others = ([ok(replace(case(), mask=text), "triton", 300.0)] for text in texts)
    assert len(verdicts(gate(here, there))) == 1
    for other in others:
        with pytest.raises(UserError, match="no cell in common"):
            gate(here, other)


def test_unlike_runs_are_not_compared_unless_meant() -> None:
    ours, theirs = run(rounds()), replace(run(rounds(tflops=SLOW)), environment=environment(driver="590.10"))
    refused = judge(ours, theirs, Request(("latency",)))
    assert (refused.findings, refused.exit_code) == ((), 4)
    assert [d.what for d in refused.refused] == ["driver was 580.82 and is 590.10"]
    meant = judge(ours, theirs, Request(("latency",), expect=("driver", "torch")))
    assert (meant.count("regressed"), meant.exit_code, len(meant.expected)) == (3, 1, 1)
    assert any(note.startswith("--expect torch: the runs do not differ in it") for note in meant.notes)


def test_cycles_cancel_the_clock() -> None:
    """With a tenth less clock and a tenth more time a cell is slower, but has the same number of cycles."""
    before, after = rounds(clock_held=1.98e9), rounds(tflops=SLOW, clock_held=1.98e9 / 1.1)
    assert {*verdicts(gate(before, after)).values()} == {"regressed"}
    assert {*verdicts(gate(before, after, "cycles")).values()} == {"unchanged"}
    with pytest.raises(UserError, match="cycles"):
        gate(rounds(), rounds(), "cycles")


def test_first_calls_are_compared_round_by_round() -> None:
    """First calls are compared round by round, because the first round fills a cache; small changes are ignored."""

    def first(slower: float) -> list[Record]:
        taken = [(r, measurements(first_call=slower * (0.2 if r.round else 5.0))) for r in rounds()]
        return [replace(r, measurements={**r.measurements, **of}) for r, of in taken]

    assert {*verdicts(gate(first(1.0), first(1.02), "first_call")).values()} == {"unchanged"}
    assert {*verdicts(gate(first(1.0), first(2.0), "first_call")).values()} == {"regressed"}
    assert {*verdicts(gate(rounds(first_call=0.001), rounds(first_call=0.09), "first_call")).values()} == {"unchanged"}
    cold = gate(first(1.0), [r for r in first(1.0) if r.round], "first_call")
    assert {f.rounds for f in cold.findings} == {(4, 4)}


def test_first_calls_that_empty_caches_may_explain_are_not_judged() -> None:
    """First calls that are all slower in each round, as in a container with empty caches, are no regression."""
    warm, cold = rounds(first_call=0.4), rounds(first_call=3.0)
    other = rounds("fa2", first_call=0.3)
    found = gate([*warm, *other], [*cold, *other], "first_call")
    assert {(f.backend, f.verdict) for f in found.findings} == {("triton", "inconclusive"), ("fa2", "unchanged")}
    assert found.exit_code == 0
    assert any(note.startswith("First calls of triton are slower in the current run, in ") for note in found.notes)
    for before in (cold, rounds(first_call=1e20)):  # as in an edited file
        back = gate(before, warm, "first_call")
        assert {f.verdict for f in back.findings} == {"inconclusive"}
        assert any("are slower in the baseline, in " in note for note in back.notes)
    one = gate([*warm, *other], [*rounds(first_call=3.0, seqlens=LENGTHS[:1]), *warm[5:], *other], "first_call")
    assert one.exit_code == 1, "one cell that compiles longer"
    fresh = [run(records, policy=Policy(caches="fresh")) for records in (warm, cold)]
    assert judge(*fresh, Request(("first_call",))).exit_code == 1, "both compiled in each call"
    open_ = gate(warm[:1], cold[:1], "first_call")
    assert (open_.count("inconclusive"), open_.exit_code) == (1, 0)
    mixed = judge(run(warm), fresh[1], Request(("first_call",), expect=("caches",)))
    assert ({f.verdict for f in mixed.findings}, mixed.exit_code) == ({"inconclusive"}, 0)
    assert any(note.startswith("First calls are not judged") for note in mixed.notes)


def test_one_round_says_how_weak_it_is() -> None:
    for before, after, said in ((1, 1, "does not show the noise"), (5, 1, "taken from the other side's")):
        (note,) = [n for n in gate(rounds(n=before), rounds(n=after)).notes if said in n]
        assert "--rounds 5" in note
    assert not any("round" in n for n in gate(rounds(n=2), rounds(n=2)).notes)


def test_an_interval_is_in_words_where_it_is_wider_than_a_factor_of_ten() -> None:
    for low, change, high, said in (
        (-0.9, 0.0, 9.0, "-90.0% to +900%"),
        (-1.0, 0.4, 1e12, "not known"),
        (-0.2, 10.0, 150.0, "-20.0% to more than 10 times"),
        (-0.999, -0.95, 0.1, "less than 1/10 to +10.0%"),
        (None, 0.02, None, "unknown"),
    ):
        assert interval(Decision("inconclusive", change, low, high, 0.1)) == said


def test_an_old_baseline_and_what_moves_all_cells_together_are_said() -> None:
    def judged(started: str, speed: float = 1.0) -> Judgement:
        lengths = [64 * (i + 1) for i in range(12)]
        before, after = (rounds(tflops=tflops, seqlens=lengths) for tflops in (300, 300 * speed))
        return judge(run(before, started="2026-01-10T00:00:00Z"), run(after, started=started), Request(("latency",)))

    old, young = judged("2026-11-10T00:00:00Z"), judged("2026-04-09T00:00:00Z", 1 / 1.02)
    assert any(note.startswith("The baseline is of 2026-01-10, 304 days before") for note in old.notes)
    assert not any("The baseline is of" in note for note in young.notes)
    assert young.first[0].startswith("Nearly all of 12 cells changed in one direction: the median latency by +2.00%")
    assert not old.first


# Several runs of a baseline


def several(*units: str | None, **changes: Any) -> list[Run]:
    rng = random.Random(3)
    return [
        run(
            [ok(case(128 * c), "triton", 300 * rng.gauss(1, 0.001), round=n) for n in range(5) for c in range(1, 31)],
            device=replace(H200, uuid=unit),
            started=f"2026-07-0{day}T10:00:00+00:00",
            **changes,
        )
        for day, unit in enumerate(units, start=1)
    ]


def test_the_latest_run_of_a_baseline_is_shown_and_all_of_its_unit_count() -> None:
    first, other, second, third = several("a", "b", "a", "a")
    found = judge(other, third, Request(("latency",)), (first, second))
    assert (found.baseline, found.earlier) == (second, (first,))
    assert {f.rounds for f in found.findings} == {(10, 5)}
    assert "1 run of the baseline, of other units of this GPU, left out." in found.notes
    assert judge(first, other, Request(("latency",)), (second, third)).baseline == third  # no run is of its unit


def test_cells_that_a_difference_concerns_do_not_count_in_earlier_runs() -> None:
    first, second, third = several("a", "a", "a")
    older = replace(first, environment=replace(first.environment, driver="570.1"))
    spec = {"triton": "/home/me/mine.py:f"}
    versions = zip((first, second, third), "122", strict=True)
    changed, *same = (replace(one, specs=spec, versions={"triton": version}) for one, version in versions)
    for earlier, latest, current in ((older, second, third), (changed, *same)):
        found = judge(latest, current, Request(("latency",)), (earlier,))
        assert {f.rounds for f in found.findings} == {(5, 5)}


def test_controls_are_torchs_own_where_nothing_else_differs() -> None:
    def of(**changes: Any) -> Run:
        records = [ok(case(1024), name, 300) for name in ("eager", "sdpa-flash", "triton", "fa2")]
        return run(records, environment=environment(packages={"flash-attn": "2.8"}, **changes))

    newer = replace(of(), environment=environment(packages={"flash-attn": "2.9"}))
    compiled, later = (
        replace(of(), environment=environment(packages={"triton": version}), versions={"triton": "1"})
        for version in ("3.6", "3.7")
    )
    assert "triton" in run_differences.concerned(compiled, later)  # the library has the name of a backend
    assert run_differences.controls(compiled, later) == {"eager", "sdpa-flash"}
    assert run_differences.controls(of(), newer) == {"eager", "sdpa-flash"}
    assert run_differences.controls(of(), of(driver="590.1")) == set()
    assert run_differences.controls(of(), of(torch="2.12")) == set()
