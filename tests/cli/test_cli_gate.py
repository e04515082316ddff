"""`attnbench gate` as a black box: exit codes, output, written files, and error lines."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tool import FAKE, SMALL, Tool


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """Return a folder to read only: a.jsonl and same.jsonl are alike, slow.jsonl has half the speed."""
    tool = Tool(tmp_path_factory.mktemp("runs"))
    for name, script in (("a", ""), ("same", ""), ("slow", "speed=0.5")):
        tool(*FAKE, "--seqlen", "1k,2k", *SMALL, "--rounds", "5", "--out", f"{name}.jsonl", fake=script)
    return tool


def test_alike_passes(runs: Tool) -> None:
    done = runs("gate", "a.jsonl", "same.jsonl")
    assert done.out.splitlines()[-1].startswith("PASS: ")
    assert done.err == ""


def test_slower_is_a_regression(runs: Tool) -> None:
    out = runs("gate", "a.jsonl", "slow.jsonl", "-m", "latency", code=1).out
    answer, *lines = out.splitlines()
    assert answer.startswith("FAIL: latency of 2 of 2 cells regressed, at worst fake ")
    assert [line.split()[0] for line in lines if "fwd bf16" in line] == ["regressed"] * 2
    (again,) = (line.partition(": ")[2] for line in lines if line.startswith("To measure the worst again: "))
    jobs = json.loads(runs(*shlex.split(again)[1:], "--dry-run", "--json").out)
    assert answer.partition(" at worst fake ")[2].startswith(
        {1024: "1k", 2048: "2k"}[jobs[0]["case"]["shape"]["seqlen_k"]]
    )
    assert len(jobs) == 5  # one round each
    assert out.splitlines()[-1] == "FAIL: 2 results regressed"
    assert runs("gate", "slow.jsonl", "a.jsonl", "-m", "latency").out.splitlines()[-1] == "PASS: 2 results improved"
    assert "PASS" in runs("gate", "a.jsonl", "slow.jsonl", "-m", "latency", "--margin", "150%").out


def test_unlike_runs_end_with_4_unless_meant(runs: Tool, tmp_path: Path) -> None:
    lines = (runs.folder / "slow.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    header["environment"]["driver"] = "590.10"
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    refused = runs("gate", "a.jsonl", other, code=4)
    assert "--expect driver" in refused.out
    assert "regressed" not in refused.out
    assert "as expected: driver" in runs("gate", "a.jsonl", other, "--expect", "driver", code=1).out


def test_the_command_of_an_inconclusive_gate_settles_it(tool: Tool) -> None:
    for name in ("a", "b"):
        tool(*FAKE, "--seqlen", "1k", *SMALL, "--out", f"{name}.jsonl")
    gate = ("gate", "a.jsonl", "b.jsonl", "-f", "json")
    found = json.loads(tool(*gate, code=3).out)
    assert found["commands"] == ["attnbench run --resume b.jsonl --rounds 5"]
    assert found["notes"][-1] == f"To settle 1 of 1 inconclusive result: {found['commands'][0]}, and gate again."
    tool(*shlex.split(found["commands"][0])[1:])
    assert json.loads(tool(*gate).out)["commands"] == []


def test_all_formats_at_once(runs: Tool, tmp_path: Path) -> None:
    files = {name: tmp_path / f"gate.{name}" for name in ("md", "html", "json", "junit", "table", "github")}
    options = [word for name, file in files.items() for word in ("-f", f"{name}={file}")]
    out = runs("gate", "a.jsonl", "slow.jsonl", *options, code=1).out
    assert out.splitlines()[-1].startswith("FAIL")
    assert json.loads(files["json"].read_text())["exit_code"] == 1
    assert ElementTree.parse(files["junit"]).getroot().tag == "testsuites"
    assert files["md"].read_text().startswith("### ")
    assert "FAIL: " in files["html"].read_text()
    assert files["github"].read_text().startswith("::error")
    assert files["table"].read_text().splitlines()[-1] == out.splitlines()[-1]


def test_what_is_printed_for_a_machine_is_nothing_else(runs: Tool) -> None:
    assert json.loads(runs("gate", "a.jsonl", "slow.jsonl", "-f", "json", code=1, GITHUB_ACTIONS="true").out)
    ElementTree.fromstring(runs("gate", "a.jsonl", "slow.jsonl", "-f", "junit", code=1).out)
    assert "::" not in runs("gate", "a.jsonl", "slow.jsonl", "-f", "md", code=1, GITHUB_ACTIONS="true").out


def test_annotations_stand_alone_or_below_the_table(runs: Tool) -> None:
    alone = runs("gate", "a.jsonl", "slow.jsonl", "-f", "github", code=1).out
    assert alone.startswith("::error")
    both = runs("gate", "a.jsonl", "slow.jsonl", "-f", "table", "-f", "github", code=1).out
    assert both.endswith(alone)
    assert len(both) > len(alone)


def test_in_a_github_workflow_it_annotates_by_itself(runs: Tool, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    out = runs("gate", "a.jsonl", "slow.jsonl", code=1, **env).out
    assert "::error title=fake 1k d128 full fwd" in out
    assert summary.read_text().startswith("### ")
    assert "::" not in runs("gate", "a.jsonl", "slow.jsonl", code=1).out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a.jsonl", "none.jsonl"], "cannot read none.jsonl"),
        (["a.jsonl", "."], "is a folder; give its run files"),
        (["a.jsonl", "same.jsonl", "-m", "latencx"], 'did you mean "latency"'),
        (["a.jsonl", "same.jsonl", "-m", "tflops"], "--metric: unknown 'tflops'; known: latency, "),
        (["a.jsonl", "same.jsonl", "--margin", "3"], "300 %"),
        (["a.jsonl", "same.jsonl", "--margin", "latency=3%,memory_peak=2%"], "give the option once for each"),
        (["a.jsonl", "same.jsonl", "--margins", "none.yaml"], "cannot read none.yaml"),
        (["a.jsonl", "same.jsonl", "--expect", "torhc"], 'did you mean "torch"'),
        (["a.jsonl", "same.jsonl", "--inconclusive", "maybe"], "--inconclusive: unknown 'maybe'; known: pass, fail"),
        (["a.jsonl", "same.jsonl", "-f", "xml"], "--format"),
        (["a.jsonl", "same.jsonl", "-f", "md", "-f", "json"], "cannot both be printed"),
        (["a.jsonl", "same.jsonl", "-f", "md=a.jsonl/gate.md"], "md=a.jsonl/gate.md: cannot be written"),
        (["a.jsonl", "same.jsonl", "-f", "md=gate", "-f", "json=gate"], "gate is given twice"),
        (
            ["a.jsonl", "same.jsonl", "--margins", "m.txt", "-f", "md=./m.txt"],
            "md=./m.txt: the command line names that file already",
        ),
        (["a.jsonl", "same.jsonl", "-m", "cycles"], "clock"),
    ],
)
def test_what_a_person_gets_wrong_is_one_line(runs: Tool, options: list[str], said: str) -> None:
    err = runs("gate", *options, code=2).err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gate searched.jsonl searched.jsonl", "the current run is a file of attnbench capacity"),
        ("gate searched.jsonl a.jsonl", "the baseline is a file of attnbench capacity"),
        ("gate a.jsonl same.jsonl searched.jsonl a.jsonl", "the baseline is a file of attnbench capacity"),
        ("baseline save searched.jsonl", "that is a file of attnbench capacity"),
    ],
)
def test_the_steps_of_a_search_are_not_judged(runs: Tool, words: str, said: str) -> None:
    if not (runs.folder / "searched.jsonl").exists():
        runs("capacity", "-b", "fake", "--device", "fake", "--pass", "fwd", "--out", "searched.jsonl")
    done = runs(*words.split(), code=2)
    (line,) = done.err.splitlines()
    assert said in line
    assert not (runs.folder / "baselines").exists()


def test_a_summary_that_cannot_be_written_is_no_pass_and_hides_no_verdict(runs: Tool) -> None:
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "none/summary.md"}
    for other, code in (("same.jsonl", 2), ("slow.jsonl", 1)):
        done = runs("gate", "a.jsonl", other, code=code, **env)
        assert done.err.splitlines() == ["attnbench: cannot write the step summary none/summary.md: "
                                         "No such file or directory"]  # fmt: skip
        assert "PASS: " in done.out or "FAIL: " in done.out


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b'{"type": "run"', b"\x80\x00\n", b'{"a": 1}\n{"b": 2}\n'])
def test_files_that_are_not_ours_are_one_line(runs: Tool, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_bytes(content)
    for paths in ((file, "a.jsonl"), ("a.jsonl", file)):
        err = runs("gate", *paths, code=2).err
        assert len(err.splitlines()) == 1, err
        assert "odd.jsonl" in err
