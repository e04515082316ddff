"""attnbench.load: run files for notebooks and scripts, and the public names of the package."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import attnbench
from attnbench.analysis.baseline.reduce_run import reduced
from attnbench.core.errors import EXIT_FAULT, UserError
from attnbench.results import run_file
from attnbench.results.given_again import went_on_apart
from builders import CPU, case, ended, ok, run

RECORDS = [ok(case(), "eager", 30.0), ok(case(), "triton", 300.0), ok(case(causal=True), "triton", 250.0)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a.jsonl, b.jsonl with other cases, deep/c.jsonl and odd[1].jsonl."""
    (tmp_path / "deep").mkdir()
    for name, records in (("a", RECORDS[:2]), ("b", RECORDS[2:]), ("deep/c", RECORDS[:1]), ("odd[1]", RECORDS[1:2])):
        (tmp_path / f"{name}.jsonl").write_bytes(run_file.encoded(run(records)))
    return tmp_path


def test_a_path_as_text_or_as_a_path(folder: Path) -> None:
    for path in (folder / "a.jsonl", str(folder / "a.jsonl")):
        found = attnbench.load(path)
        assert found.runs == (run(RECORDS[:2]),)
        assert [cell.name for cell in found.cells] == ["eager 1k d128 full fwd", "triton 1k d128 full fwd"]
        assert found.problems == ()


def test_a_pattern_and_several_paths(folder: Path) -> None:
    for paths in (f"{folder}/[ab].jsonl", [folder / "a.jsonl", f"{folder}/b*"], iter([f"{folder}/[ab].jsonl"])):
        found = attnbench.load(paths)
        assert [len(r.records) for r in found.runs] == [2, 1]
        assert len(found.cells) == 3
        assert {cell.device for cell in found.cells} == {"NVIDIA H200"}
    assert len(attnbench.load(f"{folder}/**/*.jsonl").runs) == 4
    (folder / "deep" / "up").symlink_to(folder)
    os.mkfifo(folder / "pipe.jsonl")
    assert len(attnbench.load([f"{folder}/**/*.jsonl", folder / "a.jsonl"]).runs) == 4, "each file once, and no pipe"
    assert len(attnbench.load(f"{folder}/{'**/' * 30}*.jsonl").runs) == 4, "in a loop of links no other than **/"
    for name in "ab":
        (folder / f"round{name}").symlink_to(folder)  # each of which has both
    assert len(attnbench.load(f"{folder}/**/*.jsonl").runs) == 4
    assert attnbench.load([]) == attnbench.Results((), ())


def test_a_run_counts_once_and_two_that_began_in_one_second_are_two(folder: Path) -> None:
    """A run, its copy and its baseline count as one, in any order; two runs that began in one second are two."""
    slower = [ok(case(), "eager", 15.0), *RECORDS[1:2]]
    runs = [run(RECORDS[:2], device=CPU), run(slower, device=CPU), run(RECORDS[:2], device=replace(CPU, name="Xeon"))]
    for i, one in enumerate(runs):
        (folder / f"{i}.whole").write_bytes(run_file.encoded(one))
        (folder / f"{i}.base").write_bytes(run_file.encoded(reduced(one)))
    (folder / "0.whole.gz").write_bytes(gzip.compress((folder / "0.whole").read_bytes()))
    for given in (f"{folder}/[0-2].*", [f"{folder}/[0-2].whole*", f"{folder}/[0-2].base"], f"{folder}/[0-2].whole*"):
        assert attnbench.load(given).runs == (*runs,)
    assert attnbench.load(f"{folder}/[0-2].base").runs == (*map(reduced, runs),)


@pytest.mark.parametrize("order", [("early", "late", "whole", "other"), ("other", "whole", "late", "early")])
def test_a_part_of_a_run_that_is_there_whole_is_left_out(folder: Path, order: tuple[str, ...]) -> None:
    """A part of a whole run is left out: a cut file, or a copy from before the run was resumed with more rounds."""
    skip = ended(case(2048), "triton", "skipped", "no time left", resumable=True)
    begun = run([*RECORDS, skip])
    files = {
        "early": (RECORDS[0], skip),
        "late": RECORDS[1:],
        "whole": (*RECORDS, skip, ok(case(2048), "triton", 260.0)),
        "other": (ok(case(), "eager", 31.0),),
    }
    for number, name in enumerate(order):
        content = run_file.encoded(replace(begun, records=files[name]))
        more = b'{"type":"rounds","rounds":2}\n' if name == "whole" else b""
        (folder / f"{number}.part").write_bytes(content + more)
    found = [len(one.records) for one in attnbench.load(f"{folder}/*.part").runs]
    assert found == ([1, 4] if order[0] == "other" else [4, 1])


def test_copies_of_a_run_that_went_on_apart_are_told() -> None:
    """Copies of a run that were resumed separately are reported. Two runs of one second share only skipped jobs."""
    skip = ended(case(2048), "triton", "skipped", "no time left", resumable=True)
    ours, theirs = (run([*RECORDS, skip, ok(case(2048), "triton", 260.0 + n)]) for n in (0, 1))
    (line,) = went_on_apart([("a", ours), ("b", theirs)])
    assert line.startswith("a and b are copies of one run that went on apart: 3 records of them are the same")
    other = replace(theirs, records=theirs.records[3:])
    assert [*went_on_apart([("a", ours), ("b", replace(theirs, started="later")), ("c", other)])] == []


def test_a_folder_with_brackets_and_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = folder / "of[1]"
    (folder / "deep").rename(there)
    monkeypatch.setenv("HOME", str(folder))
    assert (
        len(attnbench.load(f"{there}/*.jsonl").runs)
        == len(attnbench.load("~/of[1]/*.jsonl").runs)
        == len([*there.glob("*.jsonl")])
        > 0
    )


def test_what_a_notebook_shows_is_short(folder: Path) -> None:
    found = attnbench.load(folder / "a.jsonl")
    cell = found.cells[0]
    assert repr(found) == "<Results: 2 cells of 1 run>"
    assert re.fullmatch(r"<Cell eager 1k d128 full fwd: [\d.]+ [mµu]?s>", repr(cell))
    for one in (cell.rows[0], cell.rows[0].record, cell.source, found.runs[0]):
        assert len(repr(one)) < 150


def test_an_unknown_metric_is_said(folder: Path) -> None:
    with pytest.raises(UserError, match=r"""no metric 'tflop'; did you mean "tflops"\?"""):
        attnbench.load(folder / "a.jsonl").cells[0].value("tflop")


def test_the_convention_of_flops(folder: Path) -> None:
    (exact,), (papers,) = (attnbench.load(folder / "b.jsonl", convention=c).cells for c in ("exact", "fa"))
    assert papers.value("tflops") / exact.value("tflops") == pytest.approx(1024 / 1025)
    assert papers.source.convention == "fa"


def test_what_cannot_be_read_is_said(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no file fits '.*/\*\.json'; give run files, as attnbench run writes them"):
        attnbench.load(f"{folder}/*.json")
    with pytest.raises(UserError, match=r"cannot read .*missing\.jsonl: No such file"):
        attnbench.load([folder / "a.jsonl", folder / "missing.jsonl"])
    for odd in ("~nosuchuser/x.jsonl", "x" * 5000, "a\0b", "a\0/*"):
        with pytest.raises(UserError, match=r"^cannot read |^path: no file can have the name "):
            attnbench.load(odd)
    (folder / "notes.txt").write_text("hello\n")
    with pytest.raises(UserError, match=r"notes\.txt is not an attnbench run file"):
        attnbench.load(folder / "notes.txt")


def test_damaged_lines_are_left_out_and_reported(folder: Path) -> None:
    with (folder / "a.jsonl").open("a") as file:
        file.write("{\n")
    found = attnbench.load(f"{folder}/[ab].jsonl")
    assert len(found.cells) == 3
    (problem,) = found.problems
    assert problem.startswith(f"{folder}/a.jsonl:4: damaged line left out")


def test_the_public_names() -> None:
    assert set(attnbench.__all__) <= set(dir(attnbench))
    for name in attnbench.__all__:
        assert getattr(attnbench, name) is not None
    assert attnbench.Case is type(case())
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        attnbench.lode  # noqa: B018


def test_what_reads_run_files_needs_no_module_that_windows_lacks(folder: Path) -> None:
    files = [str(folder / "a.jsonl"), str(folder / "b.jsonl")]
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios")))
import attnbench.cli
attnbench.load({files!r})
for command in ("report", "compare", "gate"):
    sys.argv = ["attnbench", command, *{files!r}]
    try:
        attnbench.cli.main()
    except SystemExit as end:
        assert end.code != {EXIT_FAULT}, command
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_in_a_working_directory_that_is_gone_absolute_paths_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="the working directory is gone"):
        attnbench.load("a.jsonl")
    assert len(attnbench.load(folder / "a.jsonl").runs) == 1


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_results_are_pickled_by_any_protocol(protocol: int) -> None:
    found = attnbench.load(min(Path(run_file.__file__).parents[2].glob("results/*-fp8-*.jsonl*")))
    again = pickle.loads(pickle.dumps(found, protocol))
    assert again.runs == found.runs
    assert [cell.rows[0].samples for cell in again.cells] == [cell.rows[0].samples for cell in found.cells]
