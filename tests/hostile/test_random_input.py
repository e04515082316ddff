"""Random command lines, and mutated suites and run files: no traceback, no undocumented exit code, none over 5 s.

`python tests/hostile/try_random_input.py` tries more of them, and repeats one.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from hostile.call import call, problem, told
from hostile.random_input import attempt
from hostile.sandbox import sandbox
from hostile.template import make_template

SEED, PARTS = 18, 2  # several processes of pytest share the PARTS
EACH = {"command-line": 60, "suite": 20, "run-file": 30, "names": 14}  # each of the names has ten commands


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("random") / "template")


def state() -> list[object]:
    """Return what a command could leave changed in this process."""
    handlers = [signal.getsignal(s) for s in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGPROF)]
    return [os.getcwd(), dict(os.environ), sys.stdout, sys.stderr, [*sys.argv], [*sys.path], handlers]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", EACH)
def test_random_input_ends_as_documented(kind: str, part: int, template: Path, tmp_path: Path) -> None:
    """Random input ends as documented, and changes nothing of the process."""
    before, failed = state(), []
    for number in range(part, EACH[kind], PARTS):
        folder = tmp_path / "attempt"
        failed += [
            f"try_random_input.py --kind {kind} --seed {SEED} --number {number} --keep FOLDER\n{told(ending)}"
            for ending in attempt(kind, SEED, number, template, folder)
            if ending.problem
        ]
        shutil.rmtree(folder)
    assert not failed, "\n\n".join(failed)
    assert state() == before


def test_an_input_can_be_repeated(template: Path, tmp_path: Path) -> None:
    first, second = (attempt("run-file", 1, 5, template, tmp_path / name) for name in "ab")
    assert [e.command for e in first] == [e.command for e in second]
    assert (tmp_path / "a/mutated.jsonl").read_bytes() == (tmp_path / "b/mutated.jsonl").read_bytes()


def test_what_must_not_be_is_found() -> None:
    assert "not documented" in problem(["report", "x"], 1, "", "")
    assert "not documented" in problem(["run"], None, "", "")
    assert "without a word" in problem(["gate"], 2, "", "")
    assert "Traceback" in problem(["gate"], 1, "", "Traceback (most recent call last):\n")
    assert problem(["gate", "a", "b"], 1, "", "") == problem(["run"], 2, "", "attnbench: no") == ""


def test_an_exception_and_an_endless_loop_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyError("x")

    def loop() -> None:
        while True:
            pass

    monkeypatch.setattr("hostile.call.SECONDS", 0.2)
    with sandbox(tmp_path):
        for main, found in ((fail, "KeyError: 'x'"), (loop, "takes more than")):
            monkeypatch.setattr("attnbench.cli.main", main)
            assert found in call(["report"]).problem
