"""`attnbench bisect` as a black box, with interpreters that the build creates in the worktrees."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tool import SMALL, Tool, alive

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
WHAT = ("bisect", "good..", "--python", "v/py", "-b", "fake", "--device", "fake", "--seqlen", "1k", *SMALL)


@pytest.fixture
def repository(tool: Tool) -> Tool:
    """Return a folder with a repository of three commits; the second makes Python's simulated kernel slower."""
    git = ("git", "-C", tool.folder, "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "--quiet"], check=True)
    for speed in ("1.0", "0.97", "0.97 "):
        tool.write("py.in", f'#!/bin/sh\nATTNBENCH_FAKE=speed={speed} exec {sys.executable} "$@"\n')
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", f"speed {speed}"], check=True)
    subprocess.run([*git, "tag", "good", "HEAD~2"], check=True)
    return tool


def test_the_slow_commit_is_found_by_interpreters_that_were_built(repository: Tool) -> None:
    build = "mkdir v && cp py.in v/py && chmod +x v/py"
    done = repository(*WHAT, "--build", build, "--out", "d", "-f", "json=found.json")
    assert done.out.splitlines()[-1].startswith("FOUND: ")
    assert '"speed 0.97" of 20' in done.out
    assert "+3.07% (+3.07% to +3.07%" in done.out  # less than 1 / 0.97, because 5 us of a call stay the same
    found = json.loads((repository.folder / "found.json").read_text())
    assert [step["verdict"] for step in found["steps"]] == ["slow"] * 3
    assert found["left"] == [found["found"]]


def test_ctrl_c_ends_a_build_and_removes_the_worktrees(repository: Tool) -> None:
    with repository.start(*WHAT, "--build", "echo $$ > pid; pwd; sleep 60", "--out", "d") as process:
        end, log = time.monotonic() + 60, []
        while time.monotonic() < end and not any(path.stat().st_size for path in log):
            time.sleep(0.05)
            log = [*(repository.folder / "d").glob("build-*.log")]
        (worktree,) = (path.read_text().strip() for path in log)
        pid = int((repository.folder / worktree / "pid").read_text())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Nothing is known yet" in out
    assert "The same command with --out d goes on." in err
    assert not alive([pid])
    assert not (repository.folder / worktree).exists()
