"""The text of a report: the fastest backends, reasons for missing figures, the machine, and the use of time."""

from __future__ import annotations

from dataclasses import replace

from attnbench.analysis.report.answer import answer
from attnbench.analysis.report.document import document
from attnbench.analysis.report.machine_summary import machines
from attnbench.analysis.report.phases import phases
from attnbench.analysis.report.reasons import MOST, OTHERS, reasons
from attnbench.core.record import Record, Run
from attnbench.render.document import Machine
from attnbench.results.cells import cells
from builders import case, ended, environment, ok, run


def answered(*runs: Run) -> tuple[str, ...]:
    return answer(cells(runs), runs)


def test_backends_are_ranked_by_their_wins() -> None:
    speeds = {1024: (300.0, 200.0), 2048: (200.0, 300.0), 4096: (200.0, 300.0)}
    records = [ok(case(n), b, s) for n, both in speeds.items() for b, s in zip(("fa4", "eager"), both, strict=True)]
    records.append(ok(case(8192), "fa4", 300.0))  # the only backend of its case
    assert answered(run(records))[1] == "Fastest of 3 cases: eager in 2, fa4 in 1."


def test_a_version_has_one_name_and_none_where_it_is_the_only_one() -> None:
    """A backend's name has its version only where several versions were measured; each version has one name."""
    fa4 = "flash-attn-4 4.0.0b36"
    both = run(raced(1024, "sdpa-fa4"), versions={"fa4": fa4, "sdpa-fa4": "torch 2.11.0, flash-attn-4 4.0.0b18"})
    alone = run(raced(2048, "eager"), versions={"fa4": fa4})
    assert answered(both, alone)[1] == "Fastest of 2 cases: fa4 in 2."
    assert {c.backend_name for c in cells([both, alone]) if c.backend == "fa4"} == {"fa4 (4.0.0b36)"}
    other = run(raced(4096, "eager"), versions={"fa4": "flash-attn-4 4.0.0b40"})
    assert answered(alone, other)[1] == (
        "Fastest of 2 cases: fa4 (flash-attn-4 4.0.0b36) in 1, fa4 (flash-attn-4 4.0.0b40) in 1."
    )


def raced(seqlen: int, slower: str) -> list[Record]:
    return [ok(case(seqlen), "fa4", 300.0), ok(case(seqlen), slower, 200.0)]


def test_nothing_measured() -> None:
    assert answered(run([])) == answered() == ("Nothing was measured: there are no records.",)
    skipped = run([ended(case(), "triton", "skipped", "needs a GPU")])
    assert answered(skipped) == ("1 cell: 1 skipped.", "Nothing was measured; the reasons are in this report.")


EAGER = 1e-3  # seconds


def test_a_latency_that_is_hardly_known_is_not_the_fastest() -> None:
    loud = ok(case(), "fa2", 100.0, time=[1e-9, 3e-4, 3e-2])
    reads_faster = "Fastest of 1 case: not known in 1, where fa2 may be faster, since it is hardly known."
    assert answered(run([loud, ok(case(), "eager", 50.0)]))[1] == reads_faster
    wide = (0.5, 0.7, 1, 1, 1.4, 2)
    for slower in (0.2, 1.3):  # times eager
        a_little = ok(case(), "fa2", 300.0, time=[EAGER * slower * factor for factor in wide])
        said = answered(run([a_little, ok(case(), "eager", 1.0, time=[EAGER] * 6)]))[1]
        assert "fa2 may be faster, since it is known to ±75% only." in said
    far = ok(case(), "fa2", 100.0, time=[EAGER * 3.0 * factor for factor in wide])
    assert answered(run([far, ok(case(), "eager", 1.0, time=[EAGER] * 6)]))[1] == "Fastest of 1 case: eager in 1."
    both = run([loud, ok(case(), "eager", 1.0, time=[1e-9, 3e-4, 3e-2])])
    said = "not known in 1, where no latency is known to better than a factor of 1.5."
    assert answered(both)[1] == f"Fastest of 1 case: {said}"


def test_reasons_that_differ_in_numbers_are_one_line() -> None:
    records = [ok(case(), "eager", 30.0)]
    records += [
        ended(case(s, direction=d), "eager", "skipped", f"needs {need} of scores; 22 GiB free")
        for s, need in ((2048, "512 MiB"), (4096, "8.0 GiB"), (8192, "32 GiB"))
        for d in ("fwd", "bwd")
    ]
    records += [ok(case(16384), "eager", 30.0), ended(case(), "sm_90a", "failed", "exit code -11 in sm_90 kernel")]
    found = reasons(cells([run(records)]))
    assert [(n.word, n.who, n.reason) for n in found] == [
        ("FAIL", "sm_90a 1k d128 full fwd", "exit code -11 in sm_90 kernel"),
        ("skip", "eager (6 cases: 2k-8k)", "needs 512 MiB to 32 GiB of scores; 22 GiB free"),
    ]


def test_backends_that_share_a_reason_and_their_cases_share_a_line() -> None:
    cases = [case(), case(causal=True)]
    records = [ended(c, b, "skipped", "needs a CUDA GPU") for c in cases for b in ("triton", "sdpa-cudnn")]
    records += [ended(c, "fa3", "skipped", "needs Hopper") for c in cases]
    records += [ok(case(2048), b, 300.0) for b in ("triton", "sdpa-cudnn")]
    assert [(n.word, n.who, n.reason) for n in reasons(cells([run(records)]))] == [
        ("skip", "sdpa-cudnn, triton (2 cases each: 1k)", "needs a CUDA GPU"),
        ("skip", "fa3 (all)", "needs Hopper"),
    ]


def test_the_worst_endings_come_first_and_an_unknown_reason_is_said() -> None:
    endings = ("skipped", "timeout", "oom", "failed", "wrong-kernel", "wrong")
    records = [ended(case(1024 * 2**i), "triton", status, None) for i, status in enumerate(endings)]
    found = reasons(cells([run(records)]))
    assert [n.word for n in found] == ["WRONG", "KERNEL!", "FAIL", "OOM", "TIMEOUT", "skip"]
    assert {n.reason for n in found} == {"no reason given"}


def test_how_it_was_measured() -> None:
    spans = ok(case(128, batch=1), "triton", 2.0, span=(55e-6,) * 30, clock_held=(1.98e9, 1.97e9, 1.9e9))
    bf16 = ok(case(), "triton", 300.0, clock_sm=1.6e9, ceiling_matmul=7.95e14, ceiling_copy=4.2e12)
    (found,) = machines(cells([run([spans, bf16])]))
    assert found.method == (
        "latency = median of 30 to 100 samples, CUDA events, CUPTI kernel spans in cases under 100 us, L2 cold, "
        "SM clock 1600-1970 of 1980 MHz; ceilings here: matmul 795 TFLOP/s bf16, copy 4.20 TB/s"
    )


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


def test_the_phases_of_all_jobs_by_backend() -> None:
    records = [
        ok(case(1024), "eager", 30.0, seconds=2.0, phases={"timing": 1.0, "check": 0.5}),
        ok(case(2048), "eager", 30.0, seconds=1.0, phases={"timing": 1.0}),
        ok(case(1024), "triton", 300.0, seconds=4.0, phases={"first call": 4.0}),
    ]
    (table,) = phases(cells([run(records)]))
    assert [column.heading for column in table.columns] == ["phase", "eager", "triton", "all", ""]
    assert table.rows == (
        ("first call", "0.0s", "4.0s", "4.0s", "57%"),
        ("timing", "2.0s", "0.0s", "2.0s", "29%"),
        ("check", "0.5s", "0.0s", "0.5s", "7%"),
        ("other", "0.5s", "0.0s", "0.5s", "7%"),
    )
    assert "Where 7.0s of jobs went" in table.title


def test_it_comes_with_the_seconds_only() -> None:
    measured = cells([run([ok(case(), "eager", 30.0, phases={"timing": 1.0})])])
    assert "phases" not in {getattr(b, "name", "") for b in document(measured, [measured[0].run]).blocks}
    blocks = document(measured, [measured[0].run], metrics=["seconds"]).blocks
    assert [b.name for b in blocks if hasattr(b, "name")] == ["phases"]
    assert phases(cells([run([ok(case(), "eager", 30.0)])])) == []  # as in a file of an older attnbench


def test_of_many_unlike_reasons_of_a_backend_the_first_are_told() -> None:
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
    records = [ended(case(1024 + i), "eager", "failed", f"no {word}") for i, word in enumerate(words)]
    found = reasons(cells([run(records)]))
    assert [f.reason for f in found] == [*(f"no {word}" for word in words[:MOST]), OTHERS]
    assert found[-1].who.startswith(f"eager ({1000 - MOST} cases")
