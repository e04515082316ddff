"""What git says of the working directory, and that nothing which that configures is run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attnbench.core import checkout

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, which is the working directory."""
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
    clean = checkout.commit()
    assert clean is not None
    assert len(clean) == 12
    (folder / "untracked").touch()
    assert checkout.commit() == clean
    (folder / "file.py").write_text("other\n")
    assert checkout.commit() == f"{clean}+dirty"
    assert checkout.why_no_commit() == ""


@pytest.mark.parametrize("key", ["core.fsmonitor", "filter.a.b.clean", "filter.a.process"])
def test_nothing_that_a_folder_configures_is_run(folder: Path, key: str) -> None:
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder}/ran\ncat\n")
    program.chmod(0o755)
    git("config", key, str(program))
    (folder / ".gitattributes").write_text(f"* filter={key.split('.', 1)[1].rpartition('.')[0]}\n")
    (folder / "file.py").write_text("3\n")
    subprocess.run(["git", "status"], capture_output=True)
    assert (folder / "ran").exists()  # a plain call does run it
    (folder / "ran").unlink()
    (folder / "file.py").write_text("4\n")
    assert (checkout.commit() or "").endswith("+dirty")
    assert not (folder / "ran").exists()


def test_a_checkout_that_git_does_not_trust_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own way to try it
    assert checkout.commit() is None
    assert f"git config --global --add safe.directory {folder}" in checkout.why_no_commit()


def test_without_a_checkout_or_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert checkout.commit() is None
    gone.rmdir()
    assert checkout.commit() is None
    assert checkout.why_no_commit() == ""
