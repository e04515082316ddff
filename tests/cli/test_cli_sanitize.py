"""`attnbench check --sanitize` as a person uses it, on the simulated device with a stand-in for compute-sanitizer."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from steps import with_program
from tool import Tool

CHECK = ("check", "--device", "fake", "fake", "--headdim", "64", "--dtype", "bf16", "--sanitize")
# Runs the program, and writes a log: for a tool in SAYS its text, where a case has so many queries.
STAND_IN = f"""#!{sys.executable}
import json, os, subprocess, sys, time
given = sys.argv[1:]
tool, log = given[given.index("--tool") + 1], given[given.index("--log-file") + 1]
program = given[given.index("--log-file") + 2:]
if tool == os.environ.get("HANGS"):
    time.sleep(60)
lengths = [case["shape"]["seqlen_q"] for case in json.loads(program[-1])["cases"]]
with open("runs.txt", "a") as file:
    print(tool, *lengths, os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"], file=file)
code = subprocess.run(program).returncode
says = json.loads(os.environ.get("SAYS", "{{}}")).get(tool, [0, ""])
with open(log, "w") as file:
    print("========= COMPUTE-SANITIZER", says[1] if says[0] in lengths else "", sep="\\n", file=file)
    print("========= ERROR SUMMARY: 0 errors", file=file)
"""
RACE = """\
========= Error: Race reported between Write access at mine(float *)+0x90 in mine.py:41
=========     and Read access at mine(float *)+0x100 in mine.py:51 [508 hazards]
========="""
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def checked(tool: Tool, *options: str, code: int = 0, **env: str) -> str:
    """Return what the check prints, without line breaks."""
    path = with_program(tool, "compute-sanitizer", STAND_IN)
    return " ".join(tool(*CHECK, *options, code=code, PATH=path, **env).out.split())


def runs(tool: Tool) -> list[str]:
    return (tool.folder / "runs.txt").read_text().splitlines()


def test_nothing_is_found(tool: Tool) -> None:
    out = checked(tool)
    assert "fake is RIGHT in 38 cases; memcheck, racecheck, initcheck and synccheck found nothing in 3 of them" in out
    assert runs(tool) == [f"{name} 80 80 1 1" for name in TOOLS]


def test_a_race_is_wrong_where_the_result_was_right(tool: Tool) -> None:
    out = checked(tool, "-f", "table", "-f", "json=found.json", code=5, SAYS=json.dumps({"racecheck": [1, RACE]}))
    assert (
        "WRONG fake 1x203 d64 causal fwd b2 h6/2: compute-sanitizer racecheck: mine has a race in shared memory, a "
        "write and a read of one place without a barrier between them at mine.py:41 and mine.py:51, 508 times; put a "
        "barrier between the two" in out
    )
    assert out.endswith("fake is WRONG in 1 of 38 cases")
    assert runs(tool)[1:5] == ["racecheck 80 80 1 1", "racecheck 80 1", "racecheck 80 1", "racecheck 1 1"]
    records: list[dict[str, Any]] = json.loads((tool.folder / "found.json").read_text())
    looked = [record for record in records if record.get("sanitizer")]
    assert [record["status"] for record in looked].count("wrong") == 1
    assert {*looked[0]["sanitizer"]} == {*TOOLS}


def test_a_tool_without_an_answer_is_said(tool: Tool) -> None:
    out = checked(tool, "--timeout", "0.2", "--pass", "fwd", code=1, HANGS="racecheck")
    assert (
        "racecheck of compute-sanitizer gave no full answer on fake (80x203 d64 causal, heads 6/2 bf16 fwd; 1x203 d64 "
        "causal, heads 6/2 bf16 fwd). Compute-sanitizer did not end within 2 s, 10 times --timeout." in out
    )
    assert out.endswith("RIGHT in 19 cases; memcheck, initcheck and synccheck found nothing in 2 of them")


def test_a_program_that_fails_is_said(tool: Tool) -> None:
    out = checked(tool, "--pass", "fwd", code=1, ATTNBENCH_FAKE="error@1")
    assert "memcheck, racecheck, initcheck and synccheck of compute-sanitizer gave no full answer on fake (1x203" in out
    assert "The launches did not end: RuntimeError: scripted error." in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (CHECK, "--sanitize: no compute-sanitizer on PATH, in CUDA_HOME/bin or in /usr/local/cuda*/bin; it is part of"),
        (("check", "--device", "cpu", "eager", "--sanitize"), "--sanitize: compute-sanitizer looks at kernels on an"),
    ],
)
def test_mistakes_are_one_line(tool: Tool, options: tuple[str, ...], said: str) -> None:
    found = tool(*options, code=2, PATH=os.path.dirname(sys.executable), CUDA_HOME="/nowhere")
    (line,) = found.err.splitlines()
    assert found.out == ""
    assert said in line
