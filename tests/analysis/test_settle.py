"""`gate --settle` measures open cells in turns, and runs only code that a person has named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from test_ab import OWN, Here, Watcher

from attnbench.analysis.ab.settle import Request, settle
from attnbench.analysis.baseline.reduce_run import reduced
from attnbench.analysis.gate import findings as gate_findings
from attnbench.analysis.gate import run_differences
from attnbench.analysis.gate.document import document_of
from attnbench.core.record import Run
from attnbench.render import terminal
from attnbench.results import run_file
from attnbench.run import device_probe, run_suite, workers
from attnbench.run.suite import parse_options

CODE = OWN.replace("self.speed =", "exec(os.environ.get('TOLD', '')); self.speed =")
CODE = f"import os{CODE}"  # the source does not show TOLD's text
BASE, NOW = Path("base.jsonl"), Path("now.jsonl")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Return a folder with old.py:A and new.py:A, alike and noisy at 2k; workers are objects of this process."""
    for module in (workers, device_probe):
        monkeypatch.setattr(module, "WorkerProcess", Here)
    monkeypatch.chdir(tmp_path)
    random.seed(7)
    for name in ("old.py", "new.py"):
        Path(name).write_text(CODE)


def measured(backends: Sequence[str], out: Path, rounds: int) -> Run:
    axes = {"seqlen": "512,2k", "headdim": "128", "causal": False, "direction": "fwd"}
    settings = parse_options({"axes": axes, "backends": list(backends)})
    run_suite.run_suite(run_suite.Request(settings=settings, device="fake", rounds=rounds, out=out), mock.Mock())
    return run_file.read(out)[0]


def gated(
    before: Sequence[str] = ("old.py:A",), after: Sequence[str] = ("new.py:A",), *, rounds: int = 5, **request: Any
) -> gate_findings.Judgement:
    """Return the gate of two runs, which leaves the noisy cell open, or all cells with a single round."""
    runs = measured(before, BASE, rounds), measured(after, NOW, rounds)
    Here.started.clear()
    return gate_findings.judge(*runs, gate_findings.Request(("latency", "first_call"), **request))


def settled(
    judgement: gate_findings.Judgement, *, watcher: Watcher | None = None, **request: Any
) -> tuple[gate_findings.Judgement, int]:
    asked = Request(**{"time_limit": 60.0, "trust": True, **request})
    asked.check()
    after, interrupt = settle(judgement, (BASE, NOW), asked, watcher or Watcher())  # type: ignore[arg-type]
    return after, interrupt or after.exit_code


def lengths(path: str) -> set[int]:
    return {record.case.shape.seqlen_q for record in run_file.read(Path(path))[0].records}


def stands(judgement: gate_findings.Judgement, said: str, **request: Any) -> None:
    """Assert that nothing is measured, that one line says why, and that the gate's own verdict remains."""
    after, code = settled(judgement, **request)
    assert not Here.started
    assert not list(Path().glob("*settle*"))
    (line,) = after.first[: len(after.first) - len(judgement.first)]
    assert line.startswith("Not settled in turns: ")
    assert said in line
    assert (after.findings, code) == (judgement.findings, judgement.exit_code)


def test_what_is_open_is_settled_and_nothing_else_is_measured() -> None:
    before = gated()
    assert {
        f.case.shape.seqlen_q for f in before.findings if f.verdict == "inconclusive" and f.metric == "latency"
    } == {2048}
    assert before.exit_code == 3
    after, code = settled(before)
    assert code == after.exit_code == 0
    assert [(f.case.shape.seqlen_q, f.metric, f.verdict, f.reason) for f in after.findings if f.in_turns] == [
        (2048, "latency", "unchanged", "in turns")
    ]
    assert all(f in before.findings for f in after.findings if not f.in_turns)
    assert after.first[0].startswith("1 of 1 open cell settled in turns against the baseline's build, by ")
    assert after.first[0].endswith("; run files: now-settle/a.jsonl, now-settle/b.jsonl")
    assert lengths("now-settle/a.jsonl") == lengths("now-settle/b.jsonl") == {2048}
    assert run_file.read(Path("now-settle/a.jsonl"))[0].specs["A"].endswith("old.py:A")
    assert "  in turns\n" in terminal.text(document_of(after))


def test_the_build_that_a_person_names_needs_no_trust_and_may_settle_a_part() -> None:
    """A saved baseline lacks the path of its code, so only the build that --a names is measured, without --trust."""
    Path("other.py").write_text(CODE + "\nclass Other(A): ...\n")
    before = gated(("old.py:A", "other.py:Other"), ("new.py:A", "other.py:Other"), rounds=1)
    before = replace(before, baseline=reduced(before.baseline))
    stands(before, "the baseline's build of A, Other is not known here: give --a")
    stands(before, "now.jsonl names ", a="old.py:A", trust=False)
    after, code = settled(before, a="old.py:A", b="new.py:A", trust=False)
    assert {(f.backend, f.verdict) for f in after.findings if f.in_turns} == {("A", "unchanged")}
    assert code == 3
    assert "the baseline's build of Other is not known here" in after.first[1]


def test_what_cannot_have_changed_is_measured_beside_what_is_under_test_and_not_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend of torch, equal in both runs, is measured beside the code under test, but not alone."""
    Path("other.py").write_text(CODE + "\nclass Other(A): ...\n")
    monkeypatch.setattr(run_differences, "controls", lambda *_: frozenset({"Other"}))
    judgement = gated(("new.py:A", "other.py:Other"), ("new.py:A", "other.py:Other"), rounds=1)
    stands(judgement, "the baseline's build of A is not known here")
    after, code = settled(judgement, a="old.py:A")
    assert {f.backend for f in after.findings if f.in_turns} == {"A", "Other"}
    assert code == 0
    one = replace(judgement, findings=tuple(f for f in judgement.findings if f.backend == "Other"))
    after, code = settled(one, a="old.py:A", b="new.py:A")  # a backend without open cells
    assert {f.backend for f in after.findings if f.in_turns} == {"Other"}
    assert code == 0


@pytest.mark.parametrize("file", ["interpreter", "code"])
def test_what_only_a_run_file_names_is_not_run(file: str) -> None:
    judgement = gated(("fake",), ("fake",), rounds=1)
    strange = {"interpreters": {"fake": "/bin/sh"}} if file == "interpreter" else {"specs": {"fake": "/tmp/evil.py:f"}}
    for side in ("baseline", "current"):
        name = "base.jsonl" if side == "baseline" else "now.jsonl"
        run = replace(getattr(judgement, side), **strange)
        stands(replace(judgement, **{side: run}), f"{name} names ", trust=False)


def test_a_mask_that_only_a_run_file_names_is_not_run() -> None:
    judgement = gated(("old.py:A",), rounds=1)
    masked = [replace(f, case=replace(f.case, mask="/tmp/evil.py:mask@0123abcd")) for f in judgement.findings]
    unplanned = replace(judgement, current=replace(judgement.current, plan=()), findings=tuple(masked))
    stands(unplanned, "names /tmp/evil.py:mask to run;", a="old.py:A", b="new.py:A", trust=False)


def test_a_build_is_not_compared_with_itself() -> None:
    """A file that was changed in place is one build for both runs, so it is not measured in turns against itself."""
    judgement = gated(("new.py:A",))
    stands(judgement, "the baseline's build of A is not known here: give --a, a Python that has it or FILE.py:function")
    stands(judgement, "--a and --b are one build, old.py:A, which would be", a="old.py:A", b="old.py:A")
    in_git = replace(judgement.baseline.environment, git="ab12cd3")
    at_commit = replace(judgement, baseline=replace(judgement.baseline, environment=in_git))
    stands(at_commit, "(git worktree add ../baseline ab12cd3 has its commit)")
    stands(judgement, "is not known here", a="new.py:A")


def test_a_build_that_is_not_that_of_its_run_is_refused() -> None:
    judgement = gated()
    was = replace(judgement.baseline, versions={"A": "older"})
    stands(
        replace(judgement, baseline=was),
        "the build found here differs from the build of the baseline: A was older and is simulated, source ",
    )
    stands(
        replace(judgement, current=replace(judgement.current, method=1)), "differs from the build of the current run"
    )


def test_where_the_exit_code_is_certain_nothing_is_measured() -> None:
    Path("new.py").write_text(CODE.replace('"factor", 1.0', '"factor", 0.9 if case.shape.seqlen_q == 512 else 1.0'))
    judgement = gated(expect=("A",))
    assert judgement.exit_code == 1
    stands(judgement, "the exit code is certain already")


def test_too_little_time_is_said_by_the_name_of_the_option() -> None:
    stands(gated(), "--settle: 0.1s is too short for one pair of turns; give more", time_limit=0.1)


def test_what_stays_open_says_so_and_keeps_the_figures_of_the_gate() -> None:
    before = gated()
    after, code = settled(before, watcher=Watcher(interrupt_at=9))
    (finding,) = [f for f in after.findings if f.verdict == "inconclusive" and f.metric == "latency"]
    assert finding.reason.endswith("; 4 pairs in turns did not")
    assert finding.decision in [f.decision for f in before.findings]
    assert code == 3
    assert after.first[0].startswith("0 of 1 open cell settled in turns")


def test_a_wrong_result_in_turns_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = gated()
    monkeypatch.setenv("TOLD", "self.faults = {2048: 'wrong'} if __file__.endswith('new.py') else {}")
    after, code = settled(judgement)
    assert code == after.exit_code == 5
    (wrong,) = [f for f in after.findings if f.verdict == "wrong"]
    assert wrong.reason.startswith("in turns: ")
    assert not [
        f for f in after.findings if f.case == wrong.case and f.verdict == "inconclusive" and f.metric == "latency"
    ]


def test_a_change_that_is_not_seen_in_turns_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that turns do not show is reported: another build has replaced the slow one since."""
    monkeypatch.setenv("TOLD", "self.factor = 0.8 if __file__.endswith('new.py') else 1.0")
    judgement = gated(rounds=1)
    monkeypatch.delenv("TOLD")
    after, code = settled(judgement)
    assert code == 0
    assert "2 cells changed otherwise in turns than between the runs" in after.first[1]
