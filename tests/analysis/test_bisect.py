"""A bisection from request to outcome in a repository of eight commits, with workers in this process."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import test_ab

import worker_here
from attnbench.analysis.bisect import run_bisect
from attnbench.analysis.bisect.document import document
from attnbench.analysis.bisect.run_bisect import Outcome, Request, bisect
from attnbench.core.errors import EXIT_INTERRUPTED, EXIT_WRONG_RESULT, UserError
from attnbench.core.json import to_json
from attnbench.render import json_and_csv, terminal
from attnbench.run import device_probe, workers
from attnbench.run.ab import in_turns
from attnbench.run.suite import parse_options
from attnbench.worker import serve

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

COMMITS = 8
KERNEL = """
import random
from attnbench.backends.fake import Fake

class Mine(Fake):
    def prepare(self, case, inputs):
        self.faults = {{1024: {fault!r}}}
        self.speed = {speed} * (1 + 0.003 * random.uniform(-1, 1))
        return super().prepare(case, inputs)
"""


class Here(worker_here.Here):
    """A worker in this process that counts measurements."""

    measured = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        Here.measured += request["op"] == "run"
        return super().answer(request)


class Watcher(test_ab.Watcher):
    """An observer that counts the turns of all A/Bs."""

    def tell(self, text: str) -> None: ...

    def turn(self, number: int, *what: Any, **more: Any) -> None:
        super().turn(len(self.turns) + 1, *what, **more)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a new repository that is the working directory."""
    for module in (workers, device_probe):
        monkeypatch.setattr(module, "WorkerProcess", Here)
    monkeypatch.setattr(serve.own_source, "hash_of_source", lambda *_: "")  # it would read all imports of pytest
    (tmp_path / "temporary").mkdir()
    (tmp_path / "repository").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path / "repository")
    random.seed(7)
    git("init", "--quiet")
    return tmp_path / "repository"


def git(*words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *names, *words], check=True, capture_output=True, text=True).stdout


def commit_all(
    slowdowns: Mapping[int, float], broken: Sequence[int] = (), faults: Mapping[int, str] | None = None
) -> None:
    """Make commit 0, tagged "good", and eight more, of which some make the kernel slower or do not build."""
    speed = 1.0
    for place in range(COMMITS + 1):
        speed /= 1 + slowdowns.get(place, 0.0)
        Path("kernel.py").write_text(KERNEL.format(speed=speed, fault=(faults or {}).get(place, "")))
        Path("build.sh").write_text(f"# {place}\necho wrote this\nexit {int(place in broken)}\n")
        git("add", ".")
        git("commit", "--quiet", "-m", f"change {place}")
        if not place:
            git("tag", "good")


AXES = {"seqlen": "512,1k", "headdim": "128", "causal": False, "direction": "fwd"}


def request(**changes: Any) -> Request:
    usual: dict[str, Any] = {
        "commits": "good..",
        "cell": "Mine 1k *",
        "code": "kernel.py:Mine",
        "build": "sh build.sh",
        "settings": parse_options({"axes": AXES}),
        "device": "fake",
        "out": Path("out"),
    }
    return Request(**{**usual, **changes})


def run(watcher: Watcher | None = None, **changes: Any) -> Outcome:
    return bisect(request(**changes), watcher or Watcher())  # type: ignore[arg-type]


def answer(outcome: Outcome) -> str:
    """Return the answer that a person reads first, and the last line."""
    shown = document(outcome)
    assert "Commits that were tried" in terminal.text(shown) or not outcome.every
    json_and_csv.json_text(shown)
    assert shown.verdict
    return " ".join((*shown.answer, shown.verdict.text))


# The search tries the commits that do not build, and they are not next to the culprit.
@pytest.mark.parametrize(("culprit", "broken"), [(1, 4), (5, 2)])
def test_a_slowdown_of_3_percent_is_found(culprit: int, broken: int, here: Path) -> None:
    commit_all({culprit: 0.03}, broken=[broken])
    outcome = run()
    assert (outcome.exit_code, outcome.low, outcome.high) == (0, culprit - 1, culprit)
    said = answer(outcome)
    assert f'"change {culprit}" of 20' in said
    found = git("rev-list", "HEAD").split()[COMMITS - culprit]
    (told,) = (sentence for sentence in document(outcome).answer if "made it slower by" in sentence)
    assert told.startswith(f'{found[:12]} "change {culprit}"')  # a hash at the start has no capital letter
    assert "with a probability of at least 99%" in said
    assert outcome.last is not None
    assert outcome.last.decision is not None
    assert outcome.last.decision.change == pytest.approx(0.03, abs=0.005)
    assert to_json(document(outcome).data)["found"] == found
    assert git("worktree", "list").count("\n") == 1
    assert not [*(here.parent / "temporary").iterdir()]


def test_a_commit_that_does_not_build_beside_the_culprit_leaves_a_range() -> None:
    commit_all({5: 0.03}, broken=[4])
    outcome = run()
    assert (outcome.exit_code, outcome.low, outcome.high) == (3, 3, 5)
    assert "UNDECIDED: the commit is one of 2 commits" in answer(outcome)
    (skipped,) = (step for step in outcome.steps if step.verdict == "skipped")
    assert "the build ended with exit code 1 (wrote this)" in skipped.reason


def test_no_difference_and_one_that_is_spread_over_commits_blame_none() -> None:
    commit_all({})
    outcome = run()
    assert (outcome.exit_code, len(outcome.every)) == (3, 1)
    assert "There is nothing to find" in answer(outcome)
    git("tag", "-d", "good")
    commit_all({2: 0.02, 4: 0.02, 6: 0.02})
    outcome = run()
    assert (outcome.exit_code, outcome.high) == (3, 4)
    assert "the slowdown is spread over several commits" in answer(outcome)


def test_a_commit_with_wrong_results_is_skipped_and_a_wrong_one_at_the_end_is_told() -> None:
    commit_all({2: 0.03}, faults={4: "wrong"})
    outcome = run()
    assert (outcome.exit_code, outcome.high) == (0, 2)
    assert "skipped" in {step.verdict for step in outcome.steps}
    git("tag", "-d", "good")
    commit_all({}, faults={COMMITS: "wrong"})
    outcome = run()
    assert outcome.exit_code == EXIT_WRONG_RESULT
    assert "cannot be compared with" in answer(outcome)


def test_the_same_folder_goes_on_after_an_interruption() -> None:
    commit_all({6: 0.03})
    outcome = run(Watcher(interrupt_at=12))  # in the second A/B
    assert outcome.exit_code == EXIT_INTERRUPTED
    assert "Interrupted: the commit is one of 8 commits" in answer(outcome)
    assert git("worktree", "list").count("\n") == 1
    finished = run()
    assert (finished.exit_code, finished.high) == (0, 6)
    measured = Here.measured
    again = run()
    assert Here.measured == measured
    assert answer(again) == answer(finished)
    for other in ({"cell": "Mine 512 *"}, {"settings": parse_options({"axes": {**AXES, "seqlen": "2k"}}), "cell": "*"}):
        with pytest.raises(UserError, match=r"out/.* has an A/B of Mine 1k .*; choose another --out"):
            run(**other)


def test_a_hook_of_git_keeps_its_index_and_builds_see_their_own_commit(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_all({6: 0.03})
    (here / "new").write_text("")
    git("add", "new")
    staged, commits = git("status", "--porcelain"), git("log", "--format=%H").split()
    monkeypatch.setenv("GIT_DIR", str(here / ".git"))  # as in a hook of git
    monkeypatch.setenv("GIT_INDEX_FILE", str(here / ".git" / "index"))
    outcome = run(build=f"git rev-parse HEAD >> {here.parent}/seen; git checkout .")
    assert (outcome.exit_code, outcome.high) == (0, 6)
    assert git("status", "--porcelain").replace("?? out/\n", "") == staged
    seen = (here.parent / "seen").read_text().split()
    assert seen[:2] == [commits[-1], commits[0]]
    assert len(set(seen)) == len(seen)


def test_the_time_limit_leaves_a_range_and_is_shared_by_the_ab(monkeypatch: pytest.MonkeyPatch) -> None:
    commit_all({6: 0.03})
    limits: list[float] = []
    real = run_bisect.run_ab.ab

    def ab(asked: Any, watcher: Any, clock: Any) -> Any:
        limits.append(asked.time_limit)
        if len(limits) == 3:
            raise in_turns.TooShortError
        return real(asked, watcher, clock)

    monkeypatch.setattr(run_bisect.run_ab, "ab", ab)
    outcome = run(time_limit=600.0)
    assert limits[0] == pytest.approx(120, abs=1)  # five A/Bs: the whole range, three to halve it, the last
    assert (outcome.exit_code, outcome.ended, outcome.low) == (3, "time", 4)
    assert "The time limit of 10m00s was up: the commit is one of 4 commits" in answer(outcome)


def test_nothing_that_the_repository_configures_is_run(here: Path) -> None:
    commit_all({})
    spy = here.parent / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {here.parent}/ran\ncat\n")
    spy.chmod(0o755)
    (here / ".gitattributes").write_text("kernel.py filter=a\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "attributes")
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        shutil.copy(spy, here / ".git/hooks" / hook)
    git("config", "filter.a.smudge", str(spy))
    git("config", "core.fsmonitor", str(spy))
    git("worktree", "add", "--detach", str(here.parent / "plain"))
    assert (here.parent / "ran").exists()  # an unprotected call runs them
    (here.parent / "ran").unlink()
    assert run(build="").exit_code == 3
    assert not (here.parent / "ran").exists()


def test_the_commits_of_a_side_branch_are_one_step_of_the_line() -> None:
    commit_all({})
    git("checkout", "--quiet", "-b", "side", "HEAD~2")
    git("commit", "--quiet", "--allow-empty", "-m", "aside")
    git("checkout", "--quiet", "-")
    git("merge", "--quiet", "--no-ff", "-m", "merged", "side")
    found = run_bisect.commits("good..HEAD")
    assert [commit.subject for commit in found] == [*(f"change {i}" for i in range(COMMITS + 1)), "merged"]
    with pytest.raises(
        UserError, match=r"side is not among the first parents of HEAD.*; [0-9a-f]{12} is one of them, before"
    ):
        run_bisect.commits("side..HEAD")


def test_a_shallow_clone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_all({})
    git("clone", "--quiet", "--depth", "2", f"file://{Path.cwd()}", str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    git("fetch", "--quiet", "--depth", "1", "origin", "tag", "good")
    for name in ("good", "HEAD~4"):
        with pytest.raises(UserError, match=r"a shallow clone\): git fetch --unshallow"):
            run_bisect.commits(f"{name}..HEAD")


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"commits": "good...HEAD"}, "is not a range of commits"),
    ({"commits": "HEAD..good"}, "has no commits; GOOD is the older one"),
    ({"commits": "--all..HEAD"}, "no commit is called '--all'"),
    ({"code": "../kernel.py:Mine"}, "is not in the worktree of a commit"),
    ({"code": "kernel.py:None", "cell": "None 1k *"}, "[0-9a-f]+ cannot be measured: .*None"),
    ({"code": ""}, "give either --code"),
    ({"code": "", "python": "py"}, "Give -b NAME"),
    ({"build": "sleep 30", "build_limit": 0.1}, "the build took longer than 0.1s"),
    ({"cell": "Mine 2k *"}, "none is called 'Mine 2k \\*'; did you mean 'Mine "),
    ({"settings": parse_options({})}, r"Mine 1k \* is \d+ cells; give one, as in --cell 'Mine"),
    (
        {"settings": parse_options({}), "device": "auto", "cell": "*"},
        "^--cell: on a GPU there are several; give one, as in --cell 'Mine .* bf16 .*'; on a CPU .* 'Mine .* fp32 .*'$",
    ),
    ({"time_limit": 0.1}, "is too short for 5 A/Bs"),
)


def test_bad_input() -> None:
    commit_all({})
    for changes, said in BAD:
        with pytest.raises(UserError, match=said):
            run(**changes)
        assert git("worktree", "list").count("\n") == 1, changes
