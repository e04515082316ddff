"""`attnbench ab` as a black box, with two interpreters, one of them slower."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from tool import SMALL, Tool

AXES = ("--device", "fake", "--seqlen", "1k", *SMALL)


@pytest.fixture
def interpreters(tool: Tool) -> Tool:
    """Return a folder with three Pythons: ./same, ./slow and ./stuck."""
    for name, script in (("same", ""), ("slow", "speed=0.9"), ("stuck", "hang@1k")):
        tool.write(name, f'#!/bin/sh\nATTNBENCH_FAKE={script} exec {sys.executable} "$@"\n').chmod(0o755)
    return tool


def test_the_slower_interpreter_fails_and_gate_reproduces_it(interpreters: Tool, tmp_path: Path) -> None:
    done = interpreters("ab", "--a", "./same", "--b", "./slow", *AXES, "--out", "d", "-f", "json=ab.json", code=1)
    assert "A/B in turns" in done.out
    assert done.out.splitlines()[-1].startswith("FAIL: 1 result regressed")
    assert "turn 8 (B)" in done.err
    assert done.err.splitlines()[-1] == "Judge again: attnbench gate d/a.jsonl d/b.jsonl"
    interpreters("gate", "d/a.jsonl", "d/b.jsonl", "-f", "json=gate.json", code=1)
    by_ab, by_gate = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("ab", "gate"))
    assert by_ab == by_gate
    assert "./slow" not in by_ab["heading"][2]
    assert by_ab["heading"][2].endswith("/slow")


def test_a_gate_that_escalates_ends_as_the_turns_say(interpreters: Tool) -> None:
    """A gate of one round a side decides nothing alone; with --settle and both interpreters it finds a regression."""
    for name, script in (("base", ""), ("now", "speed=0.9")):
        interpreters("run", *AXES, "-b", "fake", "--out", f"{name}.jsonl", fake=script)
    gate = ("gate", "base.jsonl", "now.jsonl", "-f", "table", "-f", "json=gate.json")
    stands = interpreters(*gate, "--settle", "1m", code=3)
    assert "Not settled in turns: the baseline's build of fake is not known here: give --a" in stands.out
    done = interpreters(*gate, "--settle", "1m", "--a", "./same", "--b", "./slow", code=1)
    assert done.out.splitlines()[2].startswith("1 of 1 open cell settled in turns against the baseline's build, by 4")
    assert "turn 8 (B)" in done.err
    assert done.out.splitlines()[-1].startswith("FAIL: 1 result regressed")
    found = json.loads((interpreters.folder / "gate.json").read_text())
    assert [f["metric"] for f in found["findings"] if f["in_turns"]] == ["latency"]
    interpreters("gate", "now-settle/a.jsonl", "now-settle/b.jsonl", "-m", "latency", code=1)
    idle = interpreters(*gate, "--a", "./same", code=2).err
    assert idle == "attnbench: --a is an option of --settle; add --settle TIME, as in 5m\n"
    assert "'./none' is not an interpreter" in interpreters(*gate, "--settle", "1m", "--b", "./none", code=2).err


def test_ctrl_c_ends_the_workers_and_keeps_what_was_measured(interpreters: Tool) -> None:
    with interpreters.start("ab", "--a", "./same", "--b", "./stuck", *AXES, "--out", "d") as process:
        file, end = interpreters.folder / "d/a.jsonl", time.monotonic() + 60
        while time.monotonic() < end and not (file.exists() and file.read_bytes().count(b"\n") > 1):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted before a pair of turns was measured" in err
    assert interpreters.stored("d/a.jsonl").statuses == {1024: "ok"}
