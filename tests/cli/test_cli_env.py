"""Environments, interpreters, caches and the support matrix on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tool import FAKE, SMALL, Tool


def test_a_suites_interpreter_and_fresh_caches_are_in_the_run_file_and_the_report(tool: Tool) -> None:
    other = tool.folder / "python"
    other.symlink_to(os.path.realpath(sys.executable))
    axes = "axes: {seqlen: '1k,2k', headdim: 128, causal: true, pass: fwd}"
    suite = f"{axes}\nbackends: fake\ninterpreters: {{fake: {other}}}\n"
    stored = tool.fake("--suite", tool.write("own.yaml", suite), "--fresh-caches")
    assert stored.header["interpreters"] == {"fake": str(other)}
    assert stored.header["policy"]["caches"] == "fresh"
    assert {*stored.statuses.values()} == {"ok"}
    shown = " ".join(tool("report", "-m", "first_call", "run.jsonl").out.split())
    assert "First call (each in a new process, no kernel compiled before)" in shown
    assert f"fake ran in {other}." in shown
    other.unlink()
    again = tool("run", "--resume", "run.jsonl", "--trust", code=2)
    assert again.err == f"attnbench: cannot resume run.jsonl: fake ran in {other}, which is gone; make it again there\n"


def test_an_environment_that_is_gone_is_said_where_its_backend_is_asked_for(tool: Tool) -> None:
    made = {"name": "hf", "path": "/nowhere/hf", "requirements": [], "torch": "2.13.0", "created": "2026-11-21"}
    (tool.folder / "attnbench").mkdir()
    tool.write("attnbench/environments.json", json.dumps([made]))
    dry = ("run", "--dry-run", "--device", "cpu", "--seqlen", "128", "-b")
    line = "hf-eager: the environment is gone, /nowhere/hf; attnbench env remove hf, and create it again"
    assert line in tool(*dry, "eager,hf-eager", XDG_DATA_HOME=str(tool.folder)).err
    assert "is gone" not in tool(*dry, "eager", XDG_DATA_HOME=str(tool.folder)).err


WITHOUT_UNIX = """
import os, signal, sys
for module in ("fcntl", "grp", "pwd", "readline", "resource", "termios"):
    sys.modules[module] = None
for name in ("fork", "getloadavg", "getuid", "killpg", "sched_getaffinity", "setsid", "statvfs"):
    delattr(os, name)
for name in ("SIGHUP", "SIGPIPE", "SIGALRM"):
    delattr(signal, name)
import attnbench
from attnbench.cli import main
for command in sys.argv[1:]:
    sys.argv = ["attnbench", *command.split()]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    print("ENDED", code, command, flush=True)
print("ROWS", len(attnbench.load("run.jsonl").table()))
"""


def test_a_system_without_unix_has_what_needs_no_gpu(tool: Tool) -> None:
    tool.fake("--seqlen", "1k")
    commands = (
        "report run.jsonl", "report run.jsonl -f html=page.html", "compare run.jsonl run.jsonl",
        "gate run.jsonl run.jsonl", "history run.jsonl", "recommend run.jsonl", "backends",
        "run --device fake -b fake --dry-run",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX, *commands], cwd=tool.folder, capture_output=True, text=True, timeout=300
    )
    ended = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("ENDED ")]
    assert [command for _, _, command in ended] == [*commands], done.stderr
    assert {code for _, code, _ in ended} <= {"0", "2", "3"}, done.stdout + done.stderr
    assert "fault of attnbench" not in done.stderr
    assert "ROWS " in done.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("report {}", 0, ""),
        ("run --device fake -b fake --seqlen 1k", 2, "the working directory is gone; change to another one"),
        ("backends --device cpu", 2, "the working directory is gone; change to another one"),
    ],
)
def test_a_working_directory_that_is_gone(
    tool: Tool, command: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.fake("--seqlen", "1k")
    file = tool.folder.resolve() / "run.jsonl"
    (gone := tool.folder / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert said in Tool(Path())(*command.format(file).split(), code=code).err


def test_a_new_interpreter_in_a_working_directory_that_is_gone(tool: Tool) -> None:
    words = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -P -m attnbench suites"
    done = subprocess.run(["bash", "-c", words], cwd=tool.folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_matrix_needs_no_gpu_and_no_library(tool: Tool) -> None:
    entries = json.loads(tool("backends", "--matrix", "--gpu", "sm_90,t4", "-f", "json").out)
    assert {e["capability"] for e in entries} == {"9.0", "7.5"}
    fa4 = {e["feature"]: e["support"] for e in entries if e["backend"] == "fa4" and e["capability"] == "9.0"}
    assert (fa4["bwd"], fa4["fp32"], fa4["GQA"]) == ("yes", "no", "yes")
    wrong = tool("backends", "--matrix", "--gpu", "h10", code=2)
    assert 'did you mean "h100"' in wrong.err


def test_pips_refusal_is_one_line(tool: Tool) -> None:
    """A refusal of pip is one line; without an index and wheels pip finds nothing."""
    (tool.folder / "none").mkdir()
    data = str(tool.folder / "data")
    options = ("--no-index", "--find-links", "none")
    done = tool("env", "create", "fa4", "--path", Path("env"), "--", *options, code=2, XDG_DATA_HOME=data)
    (line,) = [line for line in done.err.splitlines() if line.startswith("attnbench: ")]
    assert "No matching distribution found for flash-attn-4" in line
    assert "attnbench env create fa4 -- --no-index --find-links FOLDER" in line
    assert not (tool.folder / "env").exists()
    assert tool("env", "list", XDG_DATA_HOME=data).out.startswith("none yet")


def test_documents_overwrite_no_file_that_becomes_one_during_the_run_and_no_interpreter(tool: Tool) -> None:
    """Documents overwrite no interpreter, and no run file under another path: a link, or a link to its folder."""
    (tool.folder / "link.md").symlink_to("new.jsonl")
    (tool.folder / "real").mkdir()
    (tool.folder / "other").symlink_to("real")
    (tool.folder / "py").symlink_to(os.path.realpath(sys.executable))
    before = os.stat(sys.executable).st_size
    for options in (
        ("--out", "new.jsonl", "-f", "md=link.md"),
        ("--out", "real/o", "-f", "md=other/o"),
        ("--python", "fake=./py", "--html", "py"),
    ):
        assert "the command line names that file already" in tool(*FAKE, *SMALL, "--seqlen", "1k", *options, code=2).err
    assert not (tool.folder / "new.jsonl").exists()
    assert os.stat(sys.executable).st_size == before


def test_a_plan_of_a_backend_without_code_is_not_resumed(tool: Tool) -> None:
    tool.fake(*SMALL, "--seqlen", "1k")
    first, rest = (tool.folder / "run.jsonl").read_text().split("\n", 1)
    tool.write("run.jsonl", json.dumps({**json.loads(first), "specs": {}}) + "\n" + rest)
    assert "run.jsonl names no code for fake, which it plans" in tool("run", "--resume", "run.jsonl", code=2).err
