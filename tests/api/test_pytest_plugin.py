"""The pytest plug-in, in separate sessions on a simulated device."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from attnbench.api import arguments, guard
from attnbench.core.errors import UserError

pytest_plugins = ["pytester"]
MINE = """
from attnbench.backends.fake import Fake

class Same(Fake): ...

class Slow(Fake):
    def __init__(self):
        super().__init__()
        self.speed = 0.9

class Noisy(Fake):
    def __init__(self):
        import os
        super().__init__()
        self.speed = 1 + os.urandom(1)[0] / 256  # of each process

class AsNoisy(Noisy): ...

class Wrong(Fake):  # in one of two cells
    def prepare(self, case, inputs):
        self.faults = {4096: "wrong"}
        return super().prepare(case, inputs)

class Fails(Fake):
    def prepare(self, case, inputs):
        raise RuntimeError("broken")
"""
# Workers are forks of the session, which start at once
CONFTEST = f"""
import sys

import pytest

sys.path.append({str(Path(__file__).parents[1])!r})
import forked_worker

@pytest.fixture(autouse=True)
def forked():
    with forked_worker.workers():
        yield
"""
HEAD = "SMALL = dict(seqlen='4k', direction='fwd', device='fake')\n"
PLUGIN = "attnbench.pytest_plugin"


@pytest.fixture
def session(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> Any:
    """Return a function that runs the tests in a text, with options, and returns their outcome."""
    pytester.makepyfile(mine=MINE)
    pytester.makeconftest(CONFTEST)
    there = request.config.pluginmanager.hasplugin("attnbench")  # whether it is installed, not only on the path

    def ran(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=HEAD + text)
        load = () if there else ("-p", PLUGIN)
        return pytester.runpytest_subprocess(*load, "-p", "no:cacheprovider", "-rs", *options)

    return ran


def test_each_verdict(session: Any) -> None:
    """A kernel that is not slower passes, a slower or wrong one fails, an undecided one is skipped with a reason."""
    done = session(
        """
def test_same(attnbench):
    assert attnbench.assert_not_slower("./mine.py:Same", than="fake", **SMALL).passed

def test_slow(attnbench):
    attnbench.assert_not_slower("./mine.py:Slow", than="fake", **SMALL)

def test_wrong(attnbench, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_FAKE", "wrong@4096")
    attnbench.assert_not_slower("./mine.py:Same", than="fake", **SMALL)

def test_gone(attnbench):
    attnbench.assert_not_slower("eager", than="sdpa-math", seqlen=128, device="cuda:77")

def test_noise(attnbench):
    attnbench.assert_not_slower("./mine.py:Noisy", than="./mine.py:AsNoisy", budget="4s", **SMALL)

def test_other(): ...
""",
        "-m",
        "attnbench",
    )
    done.assert_outcomes(passed=1, failed=2, skipped=2, deselected=1)
    done.stdout.fnmatch_lines(["E*SlowerError: FAIL: 1 result regressed", "E*latency +11.0%*"])
    done.stdout.fnmatch_lines(["E*WrongResultError:*"])
    done.stdout.fnmatch_lines(["*= attnbench =*", "test_it.py::test_slow: ./mine.py:Slow is slower (than fake)"])
    done.stdout.fnmatch_lines_random(["SKIPPED*CUDA device*", "SKIPPED*undecided; a longer budget than*may decide*"])
    done.stdout.no_fnmatch_line("*guard.py:*:*SlowerError*")


def test_what_is_not_compared_is_never_a_pass(session: Any) -> None:
    """Where a kernel fails, or the other fails in some cell, nothing passes, and neither is called slower."""
    done = session(
        """
import pytest

@pytest.mark.parametrize(("what", "than", "seqlen"), [
    ("Fails", "Same", "4k"), ("Wrong", None, "4k"), ("Same", "Fails", "4k"), ("Same", "Wrong", "2k,4k")
])
def test_it(attnbench, what, than, seqlen):
    than = than and f"./mine.py:{than}"
    attnbench.assert_not_slower(f"./mine.py:{what}", than=than, budget="1m", **SMALL | {"seqlen": seqlen})

def test_short(attnbench):
    attnbench.assert_not_slower("./mine.py:Same", than="fake", **SMALL)
""",
        "--attnbench-budget",
        "0.1s",
    )
    done.assert_outcomes(failed=2, skipped=3)
    done.stdout.fnmatch_lines_random(
        [
            "*: ./mine.py:Fails is failing (than ./mine.py:Same)",
            "*: ./mine.py:Wrong is not right",
            "SKIPPED*undecided: ./mine.py:Fails could not be measured",
            "SKIPPED*undecided: ./mine.py:Wrong could not be measured",
            "SKIPPED*undecided; a longer budget than 0.1s (--attnbench-budget) may decide*",
        ]
    )


def test_a_backend_that_is_none_is_said_by_its_argument(asserting: Any) -> None:
    with pytest.raises(UserError, match=r"^than: no backend 'nope'"):
        asserting().assert_not_slower("fake", than="nope", **SMALL)


def test_a_name_that_cannot_be_one_is_said(session: Any) -> None:
    done = session("def test_it(attnbench): attnbench.assert_right('fake', **SMALL)", "--attnbench-save=../up")
    done.stdout.fnmatch_lines(["*--attnbench-save: * is no name; use letters, digits, dots and dashes"])


@pytest.mark.parametrize("name", ["--", "../up", "a b"])
def test_a_name_that_cannot_be_one_is_refused(asserting: Any, name: str) -> None:
    with pytest.raises(UserError, match=r"^--attnbench-save: .* is no name; use letters, digits, dots and dashes$"):
        asserting(save=name)


def test_what_is_saved_is_compared_with(session: Any, pytester: pytest.Pytester) -> None:
    text = "def test_it(attnbench): attnbench.assert_not_slower('./mine.py:Same', **SMALL)"
    session(text, "--attnbench-save", "main").assert_outcomes(passed=1)
    (saved,) = (pytester.path / ".attnbench" / "main").iterdir()
    assert json.loads(saved.read_text().splitlines()[0])["type"] == "run"
    slower = "class Same(Fake):\n    speed = property(lambda self: 0.9, lambda self, _: None)"
    pytester.makepyfile(mine=MINE.replace("class Same(Fake): ...", slower))
    done = session(
        text + "\ndef test_new(attnbench): attnbench.assert_not_slower('fake', **SMALL)",
        "--attnbench-compare",
        "main",
        "-n",
        "2",
    )
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines_random(
        [
            "E*SlowerError: FAIL: 1 result regressed",
            "*::test_new: fake is measured; main has no such test",
            "*::test_it: ./mine.py:Same is slower (than *",
        ]
    )


def test_the_lock_of_the_fixture_changes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "attnbench").mkdir()
    (tmp_path / "important").write_text("important")
    (tmp_path / "attnbench" / "measuring.lock").symlink_to(tmp_path / "important")
    with guard._alone():
        assert (tmp_path / "important").read_text() == "important"


@pytest.fixture
def asserting(tmp_path: Path) -> Any:
    """Return a function that makes a fixture whose sessions lie in tmp_path, with options, as a test has it."""
    return lambda **options: guard.Guard("test_it", tmp_path, pytest.skip, **options)


SMALL = {"seqlen": "4k", "direction": "fwd", "device": "fake"}


@pytest.mark.parametrize("margin", ["3", "three", "nan", None, True, [0.03], math.nan, math.inf, 3, 1, -0.03])
def test_a_margin_that_is_none_is_refused(asserting: Any, margin: Any) -> None:
    with pytest.raises(UserError, match=r"^margin: [^\n]+$"):
        asserting().assert_not_slower("fake", than="fake", margin=margin, **SMALL)


def test_a_margin_is_a_number_or_the_text_of_the_option() -> None:
    assert [arguments.margin_of(one) for one in ("3%", "0.03", 0.03, "300%", 0)] == [0.03, 0.03, 0.03, 3.0, 0.0]


@pytest.mark.parametrize("link", ["", "main", "main/{}"])
def test_a_run_is_not_saved_through_a_link(asserting: Any, tmp_path: Path, link: str) -> None:
    """A run is not saved through a link, by which a checkout could overwrite a file elsewhere.

    The link is the file, the folder, or .attnbench.
    """
    own = asserting(save="main")
    path = tmp_path / ".attnbench" / link.format(f"{own._slug}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"^{path} is a link, and what it leads to would be overwritten; delete it$"):
        own._by_baseline(guard._Asked("fake", "fake", 0.03, "quick", 1.0, "1s", "fake", {}), None)
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)])
def test_what_is_no_file_is_no_baseline(asserting: Any, tmp_path: Path, make: Any) -> None:
    own = asserting(compare="main", save="main")
    path = tmp_path / ".attnbench" / "main" / f"{own._slug}.jsonl"
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(UserError, match="is no file, and so no baseline; delete it"):
        own._saved()
    with pytest.raises(UserError, match="delete it"):
        own._place_to_save()
