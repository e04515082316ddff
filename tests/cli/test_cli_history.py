"""`attnbench history` as a black box, on runs of the simulated device and of an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tool import SMALL, Tool

pytest.importorskip("ruptures")
EXPERIMENT = Path(__file__).parents[2] / "results" / "ci-experiment"


def test_a_creep_of_the_simulated_device(tool: Tool) -> None:
    (tool.folder / "nightly").mkdir()
    for day in range(10):
        speed = f"speed={1.005**-day:.6f}"
        options = ("--device", "fake", "-b", "fake", "--seqlen", "4k", *SMALL, "--out", f"nightly/{day}.jsonl")
        tool("run", *options, fake=speed)
        path = tool.folder / "nightly" / f"{day}.jsonl"
        header, *records = path.read_text().splitlines()
        path.write_text(
            "\n".join([json.dumps({**json.loads(header), "started": f"2026-01-{day + 1:02}"}), *records]) + "\n"
        )
    tool.write("nightly/other.jsonl", "{}\n")
    done = tool(
        *("history", "nightly", "--html", "history.html", "-f", "json=history.json", "-m", "latency"),
        *("--fail-on", "3%"),
        code=1,
    )
    assert done.out.startswith("Of 1 cell 1 became worse (latency of 1), 0 better, 0 did not change.")
    assert "FAIL: 1 cell worse by more than 3%: fake 4k" in done.out
    assert "a creep of +0." in " ".join(done.out.split())
    assert "attnbench: left out: nightly/other.jsonl is not an attnbench run file" in done.err
    (cell,) = json.loads((tool.folder / "history.json").read_text())["cells"]
    assert cell["creep"] == pytest.approx(0.005, abs=5e-4)
    assert cell["change"] == pytest.approx(1.005**9 - 1, abs=3e-3)
    assert (tool.folder / "history.html").read_text().count("<circle") == 10


def test_what_is_no_run(tool: Tool) -> None:
    assert "--fail-on: 'much' is not a margin" in tool("history", "x.jsonl", "--fail-on", "much", code=2).err
    assert "cannot read no.yml" in tool("history", "x.jsonl", "--acknowledged", "no.yml", code=2).err
    (tool.folder / "empty").mkdir()
    assert "empty has no run file" in tool("history", "empty", code=2).err
    assert "no such file" in tool("history", "none.jsonl", code=2).err.lower()


def test_a_run_counts_once_however_often_it_is_given(tool: Tool) -> None:
    """A run counts once, although a copy or a file beside its folder is given; copies would look like no noise."""
    runs = [str(path) for path in sorted(EXPERIMENT.glob("alike-*.jsonl"))[:10]]
    copy = tool.folder / "copy.jsonl.gz"
    copy.write_bytes(gzip.compress(Path(runs[0]).read_bytes()))
    done = tool("history", *runs, runs[1], str(copy), "--join-units")
    assert "left out: 2 files of a run that was given already" in done.err
    assert done.out == tool("history", *runs, "--join-units").out


def test_a_saved_baseline_is_no_other_run(tool: Tool) -> None:
    tool("run", "--device", "fake", "-b", "fake", "--seqlen", "4k", *SMALL, "--out", "one.jsonl")
    tool("baseline", "save", "one.jsonl", "--dir", "kept")
    for order in (("one.jsonl", "kept"), ("kept", "one.jsonl")):
        done = tool("history", *order)
        assert "left out: 1 file of a run that was given already" in done.err
        assert "1 run, " in done.out


def test_runs_that_do_not_record_their_branch(tool: Tool) -> None:
    done = tool("history", str(EXPERIMENT / "alike-00.jsonl"), "--branch", "main", code=2)
    assert "left out: 1 run whose branch is not known; older runs do not record it" in done.err
    assert "--branch: no run of main; no run says of which branch it is" in done.err


def test_runs_without_a_readable_date(tool: Tool) -> None:
    """--since leaves them out and says so; the document does not show such a date."""
    text = (EXPERIMENT / "alike-00.jsonl").read_text()
    started = json.loads(text.splitlines()[0])["started"]
    for day in range(1, 4):
        tool.write(f"{day}.jsonl", text.replace(started, f"2026-11-0{day}T10:00:00", 1))
    tool.write("4.jsonl", text.replace(started, "30.11.2026 10:00", 1))
    done = tool("history", *(f"{day}.jsonl" for day in range(1, 5)), "--since", "2026-11-02")
    assert "attnbench: left out: 1 run whose date is not known" in done.err
    assert "2 runs, 2026-11-02 10:00" in " ".join(done.out.split())
    assert "30.11" not in tool("history", *(f"{day}.jsonl" for day in range(1, 5))).out
