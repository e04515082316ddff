"""Why cells have no figure, brought together."""

from __future__ import annotations

from attnbench.analysis.report.reasons import reasons
from attnbench.results.cells import cells
from builders import case, ended, ok, run


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
