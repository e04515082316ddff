"""A home with backslashes, as on Windows, interpreters that answer for a worker, and warnings that are errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tool import Tool


def test_a_home_with_backslashes(tool: Tool) -> None:
    home = tool.folder / r"a\new"
    home.mkdir()
    files = [home / "run.jsonl", home / "other.jsonl"]
    for file in files:
        tool("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", f"--out=~/{file.name}", HOME=str(home))
        assert file.is_file()
    tool("compare", *files, "-o~/compared.txt", HOME=str(home))
    assert (home / "compared.txt").is_file()
    tool("report", Path("missing.jsonl"), code=2, HOME=r"C:\Users\me")


@pytest.mark.parametrize("args", [("report", "run.jsonl", "--html=~/x.html"), ("--install-completion", "bash")])
def test_what_goes_to_the_home_folder_of_a_user_without_one(
    tool: Tool, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without HOME and an entry in /etc/passwd
    assert "home folder, and this user has none; set HOME to a folder" in tool(*args, code=2).err
    assert not (tool.folder / "~").exists()


@pytest.mark.parametrize(
    "args", [("capacity", "-b", "fake"), ("ab", "--a", "fake", "--b", "fake", "--time-limit", "5s")]
)
def test_a_commit_that_cannot_be_recorded_is_told_whatever_measures(tool: Tool, args: tuple[str, ...]) -> None:
    tool.write(".git", "gitdir: /nowhere")
    found = tool(*args, "--device", "fake", "--headdim", "64", "--causal", "--pass", "fwd", code=None)
    assert "the commit is not recorded: git says: not a git repository: /nowhere" in found.err


@pytest.mark.parametrize("args", [("suites", "ci"), ("run", "--dry-run", "--device", "cpu", "-b", "eager")])
def test_where_files_without_an_encoding_are_errors(tool: Tool, args: tuple[str, ...]) -> None:
    """Files opened without an encoding are errors here; Python reads this setting at its start, so in a new process."""
    with tool.start(*args, PYTHONWARNDEFAULTENCODING="1", PYTHONWARNINGS="error::EncodingWarning") as process:
        _, err = process.communicate()
    assert process.returncode == 0, err


def test_an_interpreter_that_repeats_what_it_is_asked(tool: Tool) -> None:
    echo = tool.folder / "echo.sh"
    echo.write_text("#!/bin/sh\nexec cat\n")
    echo.chmod(0o755)
    (tool.folder / "own.py").write_text("def attention(q, k, v, *, causal, softmax_scale): ...\n")
    done = tool("run", "--device", "cpu", "-b", "own.py:attention", "--python", f"attention={echo}", code=2)
    assert "its worker's answer has not what was asked for" in done.err
