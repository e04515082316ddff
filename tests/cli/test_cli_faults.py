"""A fault costs the record of its job only: earlier measurements are kept, and --resume measures the rest."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tool import FAKE, SMALL, Tool, alive, children

LENGTHS = ("--seqlen", "512-16k", *SMALL)
OTHERS = {512: "ok", 1024: "ok", 2048: "ok", 8192: "ok", 16384: "ok"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize(
    ("script", "status", "reason", "word"),
    [
        ("error@4k", "failed", "RuntimeError: scripted error", "FAIL"),
        ("crash@4k", "failed", "the worker crashed (SIGABRT)", "FAIL"),
        ("oom@4k", "oom", "MemoryError: scripted: out of memory", "OOM"),
        ("wrong@4k", "wrong", "out is off by 1 where 0.002 is allowed (eager: 0.001)", "WRONG"),
        ("refuse@4k", "skipped", "scripted refusal", "skip"),
    ],
)
def test_a_fault_costs_its_own_record_only(tool: Tool, script: str, status: str, reason: str, word: str) -> None:
    result = tool(*FAKE, *LENGTHS, "--out", "run.jsonl", fake=script, code=5 if status == "wrong" else 0)
    stored = tool.stored()
    assert stored.statuses == {**OTHERS, 4096: status}
    assert stored.at(4096)["reason"] == reason
    assert "time" not in stored.at(4096).get("measurements", {})
    assert "reason" not in stored.at(512)
    assert f"{word} " in result.out
    assert reason in " ".join(result.out.split())
    assert reason in result.err  # the line of the job


def test_a_hang_becomes_a_timeout(tool: Tool) -> None:
    stored = tool.fake("--seqlen", "2k-8k", *SMALL, "--timeout", "2s", script="hang@4k")
    assert stored.statuses == {2048: "ok", 4096: "timeout", 8192: "ok"}
    assert stored.at(4096)["reason"] == "no answer within 2.0s; its worker was killed (--timeout, policy timeout_s)"
    assert stored.at(4096)["seconds"] >= 2
    assert "--timeout: 'soon' is not a duration" in tool("run", "--timeout", "soon", code=2).err


def test_no_escape_sequence_reaches_a_pipe(tool: Tool) -> None:
    tool.write("mine.py", "raise ValueError('\\x1b[31mred \\x1b]0;title\\x07\\x9b1m')\n")
    said = tool("run", "--device", "fake", "-b", "./mine.py:f", code=2).err
    assert said == "attnbench: --backend f: cannot be imported: ValueError: red (mine.py:1)\n"
    hostile = tool.write("\x1b[31mmine.yaml", "axes: 3")
    assert "\x1b" not in tool("run", "--suite", hostile.name, code=2).err


def test_a_wrong_result_is_exit_code_5_unless_it_is_allowed(tool: Tool) -> None:
    result = tool(*FAKE, *LENGTHS, "--rounds", "2", "--out", "run.jsonl", fake="wrong@4k", code=5)
    last = result.out.splitlines()[-1]
    assert last == "WRONG: 2 results, fake 4k d128 full fwd. Exit code 5; --allow-wrong gives 0."
    again = tool("run", "--resume", "run.jsonl", code=5)
    assert again.out.splitlines()[-1] == last
    allowed = tool("run", "--resume", "run.jsonl", "--allow-wrong")
    assert allowed.out.splitlines()[-1] == "WRONG: 2 results, fake 4k d128 full fwd."


def test_a_wrong_result_that_is_not_the_last_one_of_its_job_does_not_count(tool: Tool) -> None:
    tool.fake("--seqlen", "4k", *SMALL, script="wrong@4k", code=5)
    wrong = (tool.folder / "run.jsonl").read_text().splitlines()
    tool(*FAKE, "--seqlen", "4k", *SMALL, "--out", "right.jsonl")
    right = (tool.folder / "right.jsonl").read_text().splitlines()
    tool.write("run.jsonl", "\n".join([*wrong, right[1]]) + "\n")
    assert "WRONG" not in tool("run", "--resume", "run.jsonl").out.splitlines()[-1]


def test_nothing_measured_is_exit_code_1(tool: Tool) -> None:
    stored = tool.fake("--seqlen", "4k", *SMALL, script="error@4k", code=1)
    assert stored.statuses == {4096: "failed"}


def test_a_backend_that_is_missing_is_skipped_with_its_reason_and_what_to_do(tool: Tool) -> None:
    stored = tool.fake(*LENGTHS, script="missing", code=1)
    assert {r["status"] for r in stored.records} == {"skipped"}
    assert {r["reason"] for r in stored.records} == {"ATTNBENCH_FAKE says it is missing; unset ATTNBENCH_FAKE"}


def test_a_worker_whose_interpreter_does_not_work_costs_its_backend_only(tool: Tool) -> None:
    broken = tool.write("broken", "#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    stored = tool.fake("--seqlen", "1k", *SMALL, "--python", f"fake={broken}", code=1)
    assert [r["reason"] for r in stored.records] == [
        f"importing it in {broken}: the worker ended with exit code 3; check that it is a Python"
    ]


@linux
def test_an_interrupted_run_is_a_shorter_run(tool: Tool) -> None:
    with tool.start(*FAKE, *LENGTHS, "--out", "run.jsonl", fake="hang@1k") as process:
        workers = tool.wait_until_stuck(process)
        assert workers
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "Traceback" not in err
    before = tool.stored()
    assert 0 < len(before.records) < 6
    assert f"Interrupted; what was measured is kept. Go on with the {6 - len(before.records)} job" in out
    assert "  attnbench run --resume run.jsonl\n" in out
    assert "TFLOP/s" in out  # the tables of the existing records
    assert not alive(workers)
    tool("run", "--resume", "run.jsonl")
    after = tool.stored()
    assert after.records[: len(before.records)] == before.records
    assert after.statuses == {**OTHERS, 4096: "ok"}
    assert len(after.records) == 6


@linux
def test_interrupted_before_the_first_job(tool: Tool) -> None:
    tool.write("slow.py", "import time\ntime.sleep(60)\n")
    with tool.start("run", "--device", "fake", "-b", "./slow.py:f", "--out", "run.jsonl") as process:
        workers: list[int] = []
        while not workers:
            workers = children(process.pid)
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 129
    assert err == "attnbench: interrupted before anything was measured\n"
    assert out == ""
    assert not alive(workers)
    assert not (tool.folder / "run.jsonl").exists()


@linux
def test_a_killed_parent_leaves_no_worker(tool: Tool) -> None:
    with tool.start(*FAKE, *LENGTHS, "--out", "run.jsonl", fake="hang@1k") as process:
        workers = tool.wait_until_stuck(process)
        assert workers
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    assert not alive(workers)
    tool("run", "--resume", "run.jsonl")
    assert tool.stored().statuses == {**OTHERS, 4096: "ok"}


CHILD = """
import subprocess, time, torch
def f(q, k, v, causal=False, softmax_scale=None):
    child = subprocess.Popen(["sleep", "300"])
    open("child", "w").write(str(child.pid))
    time.sleep(300)
"""


@linux
def test_a_killed_parent_leaves_no_child_of_a_worker_and_no_folder(tool: Tool) -> None:
    """A killed parent leaves no child of a worker (a compiler of a kernel) and no folder of --fresh-caches."""
    tool.write("mine.py", CHILD)
    temporary = tool.folder / "tmp"
    temporary.mkdir()
    arguments = ("--device", "cpu", "-b", "./mine.py:f", "--seqlen", "64", "--nheads", "1", "--fresh-caches")
    with tool.start("run", *arguments, TMPDIR=str(temporary)) as process:
        pid = wait_for_text(tool.folder / "child", process)
        assert list(temporary.iterdir())
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    assert not alive([int(pid)])
    deadline = time.monotonic() + 10
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(temporary.iterdir())


def wait_for_text(file: Path, process: subprocess.Popen[str]) -> str:
    while not (file.exists() and file.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return file.read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of a complete run file."""
    tool = Tool(tmp_path_factory.mktemp("finished"))
    tool.fake(*LENGTHS)
    return (tool.folder / "run.jsonl").read_text()


def shorten(tool: Tool, records: int, rest: str = "") -> list[str]:
    """Cut run.jsonl after its first records, append `rest`, and return the kept lines."""
    lines = (tool.folder / "run.jsonl").read_text().splitlines(keepends=True)[: records + 1]
    tool.write("run.jsonl", "".join(lines) + rest)
    return lines


def change_header(tool: Tool, change: Any) -> None:
    first, rest = (tool.folder / "run.jsonl").read_text().split("\n", 1)
    header = json.loads(first)
    change(header)
    tool.write("run.jsonl", json.dumps(header) + "\n" + rest)


def test_resume_measures_only_what_is_missing(tool: Tool, finished: str) -> None:
    tool.write("run.jsonl", finished)
    kept = shorten(tool, 4)
    result = tool("run", "--resume", "run.jsonl", "--dry-run")
    assert "4 of 6 jobs are there" in result.err
    assert result.out.splitlines()[1].split()[:3] == ["fake", "2", "0"]
    assert (tool.folder / "run.jsonl").read_text() == "".join(kept)
    tool("run", "--resume", "run.jsonl")
    assert (tool.folder / "run.jsonl").read_text().startswith("".join(kept))
    assert len(tool.stored().records) == 6
    assert tool.stored().statuses == {**OTHERS, 4096: "ok"}


def test_resume_repairs_a_truncated_last_line(tool: Tool, finished: str) -> None:
    tool.write("run.jsonl", finished)
    kept = shorten(tool, 3, '{"type":"record","case":{"sha')
    shown = tool("report", "run.jsonl")
    assert shown.err == "attnbench: run.jsonl:5: truncated last line dropped (an interrupted write)\n"
    result = tool("run", "--resume", "run.jsonl")
    assert "run.jsonl:5: truncated last line dropped" in result.err
    assert (tool.folder / "run.jsonl").read_text().startswith("".join(kept))
    assert tool.stored().statuses == {**OTHERS, 4096: "ok"}


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("measurement", "ab" * 50_000),
        ("unit", "ab " * 50_000),
        ("field of the case", "ab" * 50_000),
        ("mask", "ab " * 50_000),
        ("kernel", "ab " * 50_000),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_said_of_a_damaged_line_is_short_whatever_is_in_it(
    tool: Tool, finished: str, place: str, name: str
) -> None:
    first, *lines = finished.splitlines()
    record = json.loads(lines[0])
    if place == "measurement":
        record["measurements"][name] = {"unit": "s", "values": []}
    elif place == "unit":
        record["measurements"]["time"]["unit"] = name
    elif place == "kernel":
        record["kernels"] = {name: -1}
    else:
        record["case"] |= {"mask" if place == "mask" else name: name}
    tool.write("run.jsonl", "\n".join([first, json.dumps(record), *lines[1:], ""]))
    shown, resumed = tool("report", "run.jsonl"), tool("run", "--resume", "run.jsonl")
    assert "run.jsonl:2: damaged line left out" in shown.err
    assert "run.jsonl:2: damaged line left out" in resumed.err
    assert max(map(len, (*shown.err.splitlines(), *resumed.err.splitlines()))) < 4200


def test_a_damaged_line_is_reported_with_its_number_and_measured_again(tool: Tool, finished: str) -> None:
    tool.write("run.jsonl", finished)
    lines = (tool.folder / "run.jsonl").read_text().splitlines(keepends=True)
    tool.write("run.jsonl", "".join([*lines[:2], "garbage\n", *lines[3:]]))
    shown = tool("report", "run.jsonl")
    assert "run.jsonl:3: damaged line left out" in shown.err
    assert "1 of 6 jobs to measure" in shown.out
    assert "run.jsonl:3: damaged line left out" in tool("run", "--resume", "run.jsonl").err
    assert len((tool.folder / "run.jsonl").read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("part", "name", "said"),
    [
        ("environment", "torch", "torch was 0.0 and is not there"),
        ("environment", "driver", "driver was 0.0 and is not there"),
        ("versions", "fake", "fake was 0.0 and is simulated"),
    ],
)
def test_resume_refuses_another_environment(tool: Tool, finished: str, part: str, name: str, said: str) -> None:
    tool.write("run.jsonl", finished)
    shorten(tool, 3)
    change_header(tool, lambda header: header[part].update({name: "0.0"}))
    before = (tool.folder / "run.jsonl").read_text()
    assert said in tool("run", "--resume", "run.jsonl", code=2).err
    assert (tool.folder / "run.jsonl").read_text() == before


def test_what_another_unit_of_the_model_measured_says_so(tool: Tool, finished: str) -> None:
    tool.write("run.jsonl", finished)
    shorten(tool, 3)
    change_header(tool, lambda header: header["environment"]["device"].update(uuid="a"))
    assert "measured on another card" in tool("run", "--resume", "run.jsonl").err
    noted = [any("another card" in note for note in r.get("notes", ())) for r in tool.stored().records]
    assert noted[:2] == [False] * 2
    assert any(noted)
    assert "measured on another card" in tool("report", "run.jsonl").out


def test_own_code_that_was_moved_is_named_again_to_resume(tool: Tool) -> None:
    (tool.folder / "old").mkdir()
    source = "from attnbench.backends.fake import Fake\nclass Mine(Fake): pass\n"
    tool.write("old/own.py", source)
    tool("run", "--device", "fake", "-b", "old/own.py:Mine", "--seqlen", "1k,2k", *SMALL, "--out", "run.jsonl")
    shorten(tool, 1)
    (tool.folder / "old").rename(tool.folder / "new")
    resume = ("run", "--resume", "run.jsonl")
    assert "add --trust" in tool(*resume, code=2).err
    assert "name it again: --backend FILE.py:FUNCTION" in tool(*resume, "--trust", code=2).err
    tool.write("new/own.py", f"{source}\n")
    changed = tool(*resume, "--backend", "new/own.py:Mine", code=2)
    assert re.search(r"Mine was .*, source \w{8} and is .*, source \w{8}; restore that version", changed.err)
    tool.write("new/own.py", f"{source}class Other(Fake): pass\n")
    assert "Other is not own code of run.jsonl, which has Mine" in tool(*resume, "-b", "new/own.py:Other", code=2).err
    assert len(tool.stored().records) == 1
    tool.write("new/own.py", source)
    tool(*resume, "--backend", "new/own.py:Mine")
    assert {*tool.stored().statuses.values()} == {"ok"}
    assert len(tool.stored().records) == 2


def test_an_own_mask_is_there_to_resume_as_it_was(tool: Tool) -> None:
    tool.write("mine.py", "def f(b, h, q, k): return q < k")
    tool.fake("--mask", "./mine.py:f", "--seqlen", "1k,2k", *SMALL)
    shorten(tool, 1)
    (tool.folder / "mine.py").rename(tool.folder / "was.py")
    resume = ("run", "--resume", "run.jsonl", "--trust")
    assert tool(*resume, code=2).err == (
        f"attnbench: cannot resume run.jsonl: mask: cannot read {tool.folder}/mine.py: No such file or directory; "
        "restore the file as it was and resume, or start a new run\n"
    )
    tool.write("mine.py", "def f(b, h, q, k): return q > k")
    assert "mine.py, or a file that it imports, was changed after" in tool(*resume, code=2).err
    assert len(tool.stored().records) == 1
    (tool.folder / "was.py").rename(tool.folder / "mine.py")
    tool(*resume)
    assert {*tool.stored().statuses.values()} == {"ok"}


@pytest.mark.parametrize("options", [("-b", "fake"), ("--seqlen", "1k"), ("--out", "other.jsonl"), ("--seed", "3")])
def test_resume_refuses_options_that_it_would_not_follow(tool: Tool, finished: str, options: tuple[str, ...]) -> None:
    tool.write("run.jsonl", finished)
    result = tool("run", "--resume", "run.jsonl", *options, code=2)
    assert result.err.startswith("attnbench: --resume uses the settings of run.jsonl; leave out ")


def test_resume_with_rounds_adds_rounds_and_goes_on_with_them(tool: Tool, finished: str) -> None:
    tool.write("run.jsonl", finished)
    tool("run", "--resume", "run.jsonl", "--rounds", "3")
    lines = (tool.folder / "run.jsonl").read_text().splitlines(keepends=True)
    assert "".join(lines).startswith(finished)
    rounds = [found["round"] for found in map(json.loads, lines) if found["type"] == "record"]
    assert [rounds.count(n) for n in range(4)] == [6, 6, 6, 0]
    assert tool("run", "--resume", "run.jsonl", "--rounds", "2", code=2).err == (
        "attnbench: --rounds: run.jsonl has 3 rounds; with --resume give the number of rounds in all\n"
    )
    tool.write("run.jsonl", "".join(lines[:-7]))  # interrupted within the second round
    assert "11 of 18 jobs are there" in tool("run", "--resume", "run.jsonl").err
    again = tool("run", "--resume", "run.jsonl", "--rounds", "3")
    assert "nothing is missing" in again.err


@linux
def test_a_full_disk_is_said_at_once_and_costs_nothing_measured(tool: Tool) -> None:
    whole = tool.fake(*LENGTHS)
    sizes = [len(line) + 1 for line in (tool.folder / "run.jsonl").read_text().splitlines()]
    limit = sum(sizes[:3]) + sizes[3] // 2  # the header and two records, and half of the next
    (tool.folder / "run.jsonl").unlink()

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with tool.start(*FAKE, *LENGTHS, "--out", "run.jsonl", preexec_fn=small_files) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    last = err.splitlines()[-1]
    assert last.startswith("attnbench: cannot write run.jsonl: File too large")
    assert "attnbench run --resume run.jsonl" in last
    kept = tool.stored()
    assert 1 <= len(kept.records) < 6
    assert kept.header["plan"] == whole.header["plan"]
    tool("run", "--resume", "run.jsonl")
    assert tool.stored().statuses == {**OTHERS, 4096: "ok"}
    assert tool.stored().records[: len(kept.records)] == kept.records
