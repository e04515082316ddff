"""An A/B with workers in this process: the order of turns, the time limit, the end, and the verdict."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import worker_here
from attnbench.analysis.ab import run_ab
from attnbench.analysis.ab.run_ab import Outcome, ab
from attnbench.analysis.gate import findings as gate_findings
from attnbench.analysis.gate.document import document_of
from attnbench.core.errors import Interrupted, UserError
from attnbench.core.record import Job, Record, Run
from attnbench.render import terminal
from attnbench.results import run_file
from attnbench.run import device_probe, run_suite, workers
from attnbench.run.ab.builds import builds
from attnbench.run.ab.schedule import LOOKS, affordable, to_look
from attnbench.run.suite import parse_options
from builders import case

OWN = """
import random
import signal
from attnbench.backends.fake import Fake

class A(Fake):
    noise = {512: 0.001, 1024: 0.001, 2048: 0.03}  # by seqlen

    def prepare(self, case, inputs):
        if case.shape.seqlen_q in getattr(self, "fails", ()):
            raise RuntimeError("broken build")
        self.speed = getattr(self, "factor", 1.0) * (1 + self.noise[case.shape.seqlen_q] * random.uniform(-1, 1))
        return super().prepare(case, inputs)

class Slow(A):
    factor = 0.9

class Wrong(A):
    def prepare(self, case, inputs):
        self.faults = {1024: "wrong"}
        return super().prepare(case, inputs)

class OneSlow(A):
    def prepare(self, case, inputs):
        self.factor = 0.9 if case.shape.seqlen_q == 512 else 1.0
        return super().prepare(case, inputs)

class Broken(A):
    fails = (1024,)

class Refuses(A):
    def unsupported(self, case, device):
        return "not in this build" if case.shape.seqlen_q == 1024 else None
"""


class Here(worker_here.Here):
    """A worker in this process; the name of its interpreter sets how it differs from others."""

    started: list[str | None] = []  # noqa: RUF012

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["op"] == "run" and len(self.started) < 10_000:
            self.started.append(self.python)
        answer = super().answer(request)
        if request["op"] == "environment" and self.python and "torch" in self.python:
            answer["environment"] = {**answer["environment"], "torch": self.python}
        return answer


class Watcher:
    """An observer that records its calls and can interrupt the A/B at a turn."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.turns: list[tuple[str, int]] = []  # side, jobs
        self.looks: list[tuple[int, int, int]] = []
        self.interrupt_at = interrupt_at

    def say(self, text: str) -> None: ...

    def begun(self, a: Run, b: Run, cells: int, paths: Sequence[Path], notes: Sequence[str]) -> None: ...

    def turn(self, number: int, side: str, jobs: int, open_cells: int, left: float) -> None:
        self.turns.append((side, jobs))
        if number == self.interrupt_at:
            raise Interrupted(signal.SIGINT)

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job, record: Record) -> None: ...

    def looked(self, pairs: int, settled: int, open_cells: int) -> None:
        self.looks.append((pairs, settled, open_cells))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder with own.py, with workers that are objects of this process."""
    for module in (workers, device_probe):
        monkeypatch.setattr(module, "WorkerProcess", Here)
    monkeypatch.chdir(tmp_path)
    random.seed(7)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def request(a: str = "own.py:A", b: str = "own.py:A", *, seqlen: str = "512,1k", **changes: Any) -> run_ab.Request:
    metrics = changes.pop("metrics", ("latency",))
    options = {
        "axes": {"seqlen": seqlen, "headdim": "128", "causal": False, "direction": "fwd"},
        "backends": changes.pop("backends", None),
    }
    judged = gate_findings.Request(metrics, expect=changes.pop("expect", ()))
    return run_ab.Request(a, b, judged_by=judged, settings=parse_options(options), **{"device": "fake", **changes})


def verdicts(outcome: Outcome) -> dict[int, str]:
    assert outcome.judgement
    return {f.case.shape.seqlen_q: f.verdict for f in outcome.judgement.findings}


def rounds(path: Path) -> dict[int, int]:
    """Return seqlen -> number of records of a run file."""
    found, problems = run_file.read(path)
    assert not problems
    lengths = [r.case.shape.seqlen_q for r in found.records]
    return {n: lengths.count(n) for n in lengths}


def script(name: str) -> str:
    """Make an executable file that is never run, and return its path."""
    Path(name).write_text("")
    os.chmod(name, 0o755)
    return f"./{name}"


def test_a_slower_build_is_a_regression_in_turns(here: Path) -> None:
    watcher = Watcher()
    outcome = ab(request(b="own.py:Slow", out=here / "ab"), watcher)
    assert verdicts(outcome) == {512: "regressed", 1024: "regressed"}
    assert not any("one build" in line for line in (outcome.judgement or fail()).heading)
    assert outcome.exit_code == 1
    assert [side for side, _ in watcher.turns] == list("ABBABAAB")
    assert watcher.looks == [(4, 2, 0)]
    assert outcome.paths == (here / "ab/a.jsonl", here / "ab/b.jsonl")
    assert rounds(outcome.paths[0]) == rounds(outcome.paths[1]) == {512: 4, 1024: 4}
    assert outcome.judgement
    assert outcome.judgement.heading[0].startswith("A/B in turns")
    assert "own.py:Slow" in outcome.judgement.heading[2]
    assert "own.py:A" in outcome.judgement.heading[1]
    assert "A/B in turns" in terminal.text(document_of(outcome.judgement))


def test_settled_cells_leave_and_time_goes_to_the_noisy_one() -> None:
    watcher = Watcher()
    outcome = ab(request(seqlen="512,1k,2k"), watcher)
    found = rounds(outcome.paths[0])
    assert (found[512], found[1024]) == (4, 4)
    assert found[2048] > 4
    assert [jobs for _, jobs in watcher.turns[:9]] == [3] * 8 + [1]
    assert outcome.judgement
    of_pairs = {f.case.shape.seqlen_q: f.rounds for f in outcome.judgement.findings}
    assert of_pairs == {n: (count, count) for n, count in found.items()}


def fail() -> gate_findings.Judgement:
    raise AssertionError


def test_one_build_twice_is_said_to_test_the_machine() -> None:
    outcome = ab(request(), Watcher())
    assert outcome.exit_code == 0
    assert any("one build" in line for line in (outcome.judgement or fail()).heading)


def test_interrupted_it_judges_by_what_is_there() -> None:
    outcome = ab(request(b="own.py:Slow"), Watcher(interrupt_at=8))
    assert outcome.judgement
    assert rounds(outcome.paths[0]) == {512: 4, 1024: 4}
    assert rounds(outcome.paths[1]) == {512: 3, 1024: 3}
    assert {f.rounds for f in outcome.judgement.findings} == {(3, 3)}
    assert any("an early look was taken" in note for note in outcome.judgement.notes)
    assert outcome.judgement.notes[-1].startswith("Interrupted after 3 whole pairs of turns")
    assert outcome.exit_code == outcome.judgement.exit_code


def test_interrupted_before_a_pair_there_is_no_judgement() -> None:
    outcome = ab(request(), Watcher(interrupt_at=2))
    assert (outcome.judgement, outcome.exit_code) == (None, 130)
    assert rounds(outcome.paths[0]) == {512: 1, 1024: 1}


def test_when_the_time_is_up_what_is_open_stays_so() -> None:
    """When the time is up, open cells stay open. The clock advances by a second at each reading."""
    now = iter(range(10_000))
    outcome = ab(request(seqlen="2k", time_limit=30.0), Watcher(), clock=lambda: float(next(now)))
    assert outcome.judgement
    assert any("30s was up after" in note for note in outcome.judgement.notes)
    assert outcome.exit_code == 3


def test_too_little_time_for_a_pair_is_said_before_anything_is_written(here: Path) -> None:
    with pytest.raises(UserError, match="too short for one pair of turns"):
        ab(request(time_limit=0.1), Watcher())
    assert not (here / "results").exists()


def test_what_fails_in_one_build_is_not_tried_again() -> None:
    outcome = ab(request(b="own.py:Broken"), Watcher())
    assert verdicts(outcome) == {512: "unchanged", 1024: "newly-failing"}
    assert rounds(outcome.paths[0]) == {512: 4, 1024: 1}
    assert outcome.exit_code == 1


def test_it_stops_where_a_result_is_wrong_and_says_of_which_build() -> None:
    outcome = ab(request(b="own.py:Wrong"), Watcher())
    assert verdicts(outcome) == {512: "inconclusive", 1024: "wrong"}
    assert rounds(outcome.paths[0]) == rounds(outcome.paths[1]) == {512: 1, 1024: 1}
    assert outcome.exit_code == 5
    assert any("Stopped after 1 pair of turns" in note for note in (outcome.judgement or fail()).notes)
    of_a = ab(request(a="own.py:Wrong", b="own.py:A"), Watcher())
    assert (verdicts(of_a)[1024], of_a.exit_code) == ("newly-working", 0)
    assert "was: WRONG: out is off by 1" in (of_a.judgement or fail()).findings[0].reason


def test_a_wrong_result_that_is_allowed_does_not_stop_it() -> None:
    asked = request(a="own.py:Wrong", b="own.py:Wrong")
    outcome = ab(replace(asked, judged_by=replace(asked.judged_by, allow_wrong=True)), Watcher())
    assert verdicts(outcome) == {512: "unchanged", 1024: "wrong"}
    assert outcome.exit_code == 0


def test_it_stops_at_the_look_that_finds_a_regression() -> None:
    watcher = Watcher()
    outcome = ab(request(b="own.py:OneSlow", seqlen="512,1k,2k"), watcher)
    assert verdicts(outcome) == {512: "regressed", 1024: "unchanged", 2048: "inconclusive"}
    assert watcher.looks == [(4, 2, 1)]
    assert (len(watcher.turns), outcome.exit_code) == (8, 1)
    said = "Stopped after 4 pairs of turns, as more cannot change the exit code: 1 cell not settled."
    assert (outcome.judgement or fail()).notes[-1] == said


def test_what_one_build_refuses_is_missing_or_new() -> None:
    outcome = ab(request(b="own.py:Refuses"), Watcher())
    assert verdicts(outcome) == {512: "unchanged", 1024: "missing"}
    assert "not in this build" in next(f.reason for f in (outcome.judgement or fail()).findings if not f.metric)
    outcome = ab(request(a="own.py:Refuses", b="own.py:A"), Watcher())
    assert verdicts(outcome) == {512: "unchanged", 1024: "newly-working"}


def test_no_cell_in_both_is_one_line() -> None:
    with pytest.raises(UserError, match=r"no cell can be measured in both builds \(B: not in this build\)"):
        ab(request(b="own.py:Refuses", seqlen="1k"), Watcher())


def test_two_interpreters_run_the_same_backends() -> None:
    Here.started.clear()
    a, b = script("main"), script("pr")
    outcome = ab(request(a, b, backends=["own.py:A"]), Watcher())
    assert outcome.exit_code == 0
    order = [os.path.basename(python or "") for python in Here.started[::2]]
    assert order == ["main", "pr", "pr", "main", "pr", "main", "main", "pr"]
    assert outcome.judgement
    assert outcome.judgement.heading[2].endswith("pr")


def test_another_torch_is_refused_before_anything_is_measured(here: Path) -> None:
    """Another torch, which is no backend under test, is refused; --expect torch allows it."""
    watcher = Watcher()
    asked = request(script("main"), script("torch-2.12"), backends=["own.py:A"])
    outcome = ab(asked, watcher)
    assert outcome.exit_code == 4
    assert outcome.judgement
    assert [d.remedy for d in outcome.judgement.refused] == ["--expect torch"]
    assert (watcher.turns, outcome.paths, list(here.glob("results/*"))) == ([], (), [])
    assert ab(replace(asked, judged_by=replace(asked.judged_by, expect=("torch",))), Watcher()).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": "nothing-such", "b": "/bin/sh"}, "--a: 'nothing-such' is not an interpreter"),
        ({"a": "own.py:A", "b": "/bin/sh"}, "code on both sides"),
        ({"a": "own.py:A", "b": "fke"}, "--b: 'fke' is not an interpreter (an executable file), a backend"),
        ({"backends": ["fake"]}, "--backend: --a and --b name the code"),
        ({"a": "/bin/sh", "b": "/bin/sh", "pythons": ("fake=/bin/sh",)}, "leave it out"),
        ({"a": "own.py:Nothing"}, "--a own.py:Nothing: cannot be imported"),
        ({"metrics": ("cycles",)}, "known only for a GPU"),
        ({"out": Path("own.py")}, "give a folder"),
    ],
)
def test_what_a_person_gets_wrong_is_said_at_once(here: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        ab(request(**changes), Watcher())
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not (here / "results").exists()


def test_files_are_not_overwritten_and_not_resumed_alone(here: Path) -> None:
    outcome = ab(request(out=here / "ab"), Watcher())
    with pytest.raises(UserError, match="is not overwritten"):
        ab(request(out=here / "ab"), Watcher())
    with pytest.raises(UserError, match="one half of an A/B"):
        run_suite.run_suite(run_suite.Request(resume=outcome.paths[0]), None)  # type: ignore[arg-type]


def test_pairs_until_the_next_look() -> None:
    assert [to_look(pair) for pair in range(9)] == [4, 3, 2, 1, 2, 1, 2, 1, 4]
    assert to_look(LOOKS[-1] - 1) == 1


COSTS = {(case(n), "triton"): seconds for n, seconds in ((1024, 1.0), (2048, 2.0), (4096, 10.0))}


def lengths(*which: object) -> list[int]:
    return sorted(c.shape.seqlen_k for c, _ in affordable(COSTS, *which))  # type: ignore[arg-type]


def test_the_cheapest_cells_fit_first() -> None:
    assert lengths(1.0, 2, 100.0) == [1024, 2048, 4096]
    assert lengths(1.0, 2, 29.9) == [1024, 2048]  # 2 (2 + 13) = 30
    assert lengths(1.0, 2, 7.0) == [1024]
    assert lengths(1.0, 4, 11.0) == [1024, 2048], "where no cell fits until the look, one pair may"
    assert lengths(1.0, 4, 2.5) == []


def test_two_pieces_of_code_share_a_name() -> None:
    a, b = builds("sdpa-flash", "triton", [])
    assert list(a.specs) == list(b.specs) == ["sdpa-flash-vs-triton"]
    assert (a.python, b.python, a.interpreters) == (None, None, {})
    a, b = builds("old.mod:attention", "new.mod:attention", [], [f"attention={sys.executable}"])
    assert (a.specs, b.specs) == ({"attention": "old.mod:attention"}, {"attention": "new.mod:attention"})
    assert a.python == b.interpreters["attention"] == sys.executable
    a, b = builds("fa2", "fa3", [], [f"fa3={sys.executable}"])
    assert (a.python, b.python, b.interpreters) == (None, sys.executable, {"fa2-vs-fa3": sys.executable})


def test_interpreters_are_not_resolved_to_the_python_they_link_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("main", "pr"):
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    a, b = builds(str(tmp_path / "main"), "pr", ["fa2", "triton"])
    assert a.interpreters == dict.fromkeys(("fa2", "triton"), str(tmp_path / "main"))
    assert (a.specs, b.python) == (b.specs, str(tmp_path / "pr"))
