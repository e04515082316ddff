"""Git's state of the working directory, without running anything that the directory configures."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.core import checkout

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with one commit that is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    (tmp_path / "file.py").write_text("1\n")
    git("init", "--quiet")
    git("add", "file.py")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    return tmp_path


def git(*words: str) -> None:
    subprocess.run(["git", *words], check=True)


def test_the_commit_and_whether_files_differ(folder: Path) -> None:
    clean = checkout.commit_and_branch()[0]
    assert clean is not None
    assert len(clean) == 12
    (folder / "untracked").touch()
    assert checkout.commit_and_branch()[0] == clean
    (folder / "file.py").write_text("other\n")
    assert checkout.commit_and_branch()[0] == f"{clean}+dirty"
    assert checkout.what_is_not_known() == ""


@pytest.mark.usefixtures("folder")
def test_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch comes from a variable where a job of CI has checked out a commit."""
    for name in ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME"):
        monkeypatch.delenv(name, raising=False)
    git("switch", "--quiet", "-c", "feature/tiles")
    assert checkout.commit_and_branch()[1] == "feature/tiles"
    subprocess.run(["git", "switch", "--quiet", "-c", b"caf\xe9"], check=True)
    assert checkout.commit_and_branch()[1] == "caf\ufffd"
    git("switch", "--quiet", "--detach")
    assert checkout.commit_and_branch()[1] is None
    monkeypatch.setenv("GITHUB_HEAD_REF", "")
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    assert checkout.commit_and_branch()[1] == "main"


def spy(folder: Path) -> Path:
    """Return a program that writes a file `ran` to a folder."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder}/ran\ncat\n")
    program.chmod(0o755)
    return program


# names that a careless reader or writer would cut or change
@pytest.mark.parametrize(
    "key",
    [
        *("core.fsmonitor", "filter.a.b.clean", "filter.a.process", "filter.x=y.clean", "filter..process"),
        "filter.x\udcff.clean",
    ],
)
def test_nothing_that_a_folder_configures_is_run(folder: Path, key: str) -> None:
    git("config", key, str(spy(folder)))
    (folder / ".gitattributes").write_bytes(os.fsencode(f"* filter={key.split('.', 1)[1].rpartition('.')[0]}\n"))
    (folder / "file.py").write_text("3\n")
    subprocess.run(["git", "status"], capture_output=True)
    assert (folder / "ran").exists()  # an unprotected call runs it
    (folder / "ran").unlink()
    (folder / "file.py").write_text("4\n")
    commit = checkout.commit_and_branch()[0] or ""
    assert commit.endswith("+dirty") == (key == "core.fsmonitor")
    assert (f"whether files differ from commit {commit} is not known" in checkout.what_is_not_known()) == (
        key != "core.fsmonitor"
    )
    assert not (folder / "ran").exists()


def test_a_copy_of_a_clean_checkout_with_a_filter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of a clean checkout whose files pass a filter, git knows changed files, but not unchanged ones."""
    git("config", "filter.upper.clean", "tr a-z A-Z")
    (folder / "data").mkdir()
    (folder / "data/big file.bin").write_text("content\n")
    os.utime(folder / "data/big file.bin", (1, 1))  # git does not trust the time of a file that is as new as its index
    (folder / ".gitattributes").write_text("*.bin filter=upper\n*.txt filter=of-nobody\n")
    (folder / "note.txt").write_text("1\n")
    git("add", ".gitattributes", "data", "note.txt")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "second")
    clean = checkout.commit_and_branch()[0] or ""
    assert (len(clean), checkout.what_is_not_known()) == (12, "")
    copy = folder.with_name(f"{folder.name} copy")
    shutil.copytree(folder, copy)
    for place in (copy, copy / "data"):
        monkeypatch.chdir(place)
        assert checkout.commit_and_branch()[0] == clean
        assert "they pass a filter of git (upper)" in checkout.what_is_not_known()
    (copy / "note.txt").write_text("2\n")
    assert checkout.commit_and_branch()[0] == f"{clean}+dirty"
    assert checkout.what_is_not_known() == ""
    (copy / "note.txt").write_text("1\n")
    git("status", "--short")
    assert (checkout.commit_and_branch()[0], checkout.what_is_not_known()) == (clean, "")


def test_nothing_that_a_submodule_configures_is_run(folder: Path) -> None:
    own = ("-C", "sub", "-c", "user.name=a", "-c", "user.email=a@b")
    git("init", "--quiet", "sub")
    (folder / "sub/file.py").write_text("1\n")
    (folder / "sub/.gitattributes").write_text("* filter=a\n")
    git(*own, "add", ".")
    git(*own, "commit", "--quiet", "-m", "first")
    git("-C", "sub", "config", "filter.a.clean", str(spy(folder)))
    git("-c", "advice.addEmbeddedRepo=false", "add", "sub")
    (folder / ".gitmodules").write_text('[submodule "sub"]\n path = sub\n url = ./sub\n ignore = none\n')
    git("config", "submodule.sub.ignore", "none")
    git("config", "submodule.sub.active", "true")
    (folder / "sub/file.py").write_text("3\n")
    subprocess.run(["git", "status"], capture_output=True)
    assert (folder / "ran").exists()
    (folder / "ran").unlink()
    (folder / "sub/file.py").write_text("4\n")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "sub")
    clean, _ = checkout.commit_and_branch()
    assert not str(clean).endswith("+dirty")
    git(*own, "commit", "--quiet", "--allow-empty", "-m", "second")
    (folder / "ran").unlink(missing_ok=True)
    assert checkout.commit_and_branch()[0] == f"{clean}+dirty"  # at another commit
    assert not (folder / "ran").exists()


def test_a_checkout_that_git_does_not_trust_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for this test
    assert checkout.commit_and_branch()[0] is None
    assert f"git config --global --add safe.directory {folder}" in checkout.what_is_not_known()
    (odd := folder.with_name("it's; odd")).mkdir()
    monkeypatch.chdir(odd)
    subprocess.run(["git", "init", "-q"], check=True)
    assert f"safe.directory {shlex.quote(str(odd))}" in checkout.what_is_not_known()


def no_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder / "none"))


def no_time(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "SECONDS", 0.0)


def broken_config(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / ".git/config").write_text("[core\n")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (no_program, "git cannot be started (No such file or directory); is it installed and on PATH?"),
        (no_time, "git took longer than 0 s"),
        (broken_config, "git says: bad config line 1 in file .git/config"),
    ],
)
def test_a_checkout_that_cannot_be_asked_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Path, pytest.MonkeyPatch], None], why: str
) -> None:
    broken(folder, monkeypatch)
    assert checkout.commit_and_branch()[0] is None
    assert checkout.what_is_not_known() == f"the commit is not recorded: {why}"


def test_without_a_checkout_or_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert checkout.commit_and_branch()[0] is None
    gone.rmdir()
    assert checkout.commit_and_branch()[0] is None
    assert checkout.what_is_not_known() == ""
