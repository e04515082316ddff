"""`attnbench recommend` as a black box: from run files of an H100 and an H200, and from a short run."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from tool import Tool

RESULTS = Path(__file__).parents[2] / "results"
LIBRARIES = RESULTS / "20261121-174520-libraries-nvidia-h200.jsonl.gz"
H100, H200 = (RESULTS / "spreads" / name for name in ("h100-ff241cb2-1.jsonl.gz", "h200-7f3cc288-1.jsonl.gz"))


def test_options_choose_cases_and_backends_of_run_files(tool: Tool) -> None:
    options = ("--seqlen", "4k", "--headdim", "64,128", "--dtype", "bf16", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(tool("recommend", LIBRARIES, *options).out)))
    assert {(row["seqlen_k"], row["headdim"]) for row in rows} == {("4096", "64"), ("4096", "128")}
    assert {row["step"] for row in rows} == {"fwd", "fwd + bwd"}
    rows = list(csv.DictReader(io.StringIO(tool("recommend", LIBRARIES, *options, "-b", "sdpa-*,!sdpa-cudnn").out)))
    assert {row["use"] for row in rows} == {"sdpa-fa4"}
    assert {row["default"] for row in rows} == {"hf-sdpa"}, "still what it is compared with"


def test_searches_and_steps_of_models_are_ranked_elsewhere(tool: Tool) -> None:
    for name in ("20261124-030327-capacity-nvidia-h100.jsonl.gz", "20261124-025920-step-nvidia-h100.jsonl.gz"):
        assert "attnbench capacity ranks searches, attnbench step" in tool("recommend", RESULTS / name, code=2).err
    assert tool("recommend", LIBRARIES, RESULTS / name).out == tool("recommend", LIBRARIES).out


def test_a_short_run_of_a_simulated_gpu(tool: Tool) -> None:
    done = tool("recommend", "--device", "fake", "--seqlen", "2k,4k", "--causal", "--pass", "fwd,bwd")
    assert "fake alone was right in 4: no choice" in done.out
    assert "The gain over PyTorch's default is not known in 4 cases." in " ".join(done.out.split())
    (file,) = (tool.folder / "results").glob("*-quick-*.jsonl")
    assert f"Results: results/{file.name}" in done.err
    again = tool("recommend", f"results/{file.name}").out
    assert again == done.out, "the file gives the same"


def test_no_default_is_missed_where_pytorch_has_none(tool: Tool) -> None:
    for options in (("--kind", "gdn,indexer", "--headdim", "128"), ("--page-size", "16", "--seqlen-q", "1")):
        out = tool("recommend", "--device", "fake", "--seqlen", "1k", "--causal", "--pass", "fwd", *options).out
        assert "The gain over PyTorch's default" not in " ".join(out.split())


def test_a_short_run_whose_results_are_wrong_recommends_nothing(tool: Tool) -> None:
    options = ("recommend", "--device", "fake", "--seqlen", "2k", "--causal", "--out", "r.jsonl")
    done = tool(*options, ATTNBENCH_FAKE="wrong@2k", code=1)
    assert "nothing can be recommended: no exact backend has a right figure" in " ".join(done.out.split())
    assert "WRONG" in done.out
    assert tool("recommend", "r.jsonl", code=1).out == done.out


def test_a_run_file_without_records(tool: Tool) -> None:
    tool("recommend", "--device", "fake", "--seqlen", "2k", "--out", "r.jsonl")
    tool.write("empty.jsonl", (tool.folder / "r.jsonl").read_text().splitlines()[0] + "\n")
    assert tool("recommend", "empty.jsonl", code=1).out.startswith("Nothing was measured: there are no records.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((LIBRARIES, "--seqlen", "3k"), "no case of these run files has the shapes"),
        ((LIBRARIES, "-b", "fa9"), "--backend: these run files have no such backend for these shapes, only eager, "),
        ((LIBRARIES, "--rounds", "5"), "--rounds: for measuring; with run files nothing is measured, leave it out"),
        ((LIBRARIES, "--device", "cpu", "--out", "x.jsonl"), "--device and --out: for measuring"),
        ((LIBRARIES, "--seqlen", "much"), "seqlen"),
        (("none.jsonl",), "none.jsonl"),
        (("notes.txt",), "is not an attnbench run file"),
        (("--device", "fake", "-b", "no-such"), "no backend 'no-such'"),
        ((LIBRARIES, "-f", "xml"), "--format: unknown 'xml'"),
    ],
)
def test_what_is_wrong_is_one_line(tool: Tool, options: tuple[object, ...], said: str) -> None:
    tool.write("notes.txt", "hello\n")
    err = tool("recommend", *map(str, options), code=2).err
    assert said in err
    assert len(err.splitlines()) == 1


def test_many_runs_are_a_screen_and_all_is_a_word_away(tool: Tool) -> None:
    files = sorted((RESULTS / "spreads").glob("h[12]00-*.jsonl.gz"))
    short = tool("recommend", *files, "-f", "table", "-f", "csv=short.csv", "-f", "md=use.md").out
    assert len(short.splitlines()) < 80
    assert short.count("\nNVIDIA H") >= 2
    assert "attnbench recommend --all shows everything" in " ".join(short.split())
    every = tool("recommend", *files, "--all", "-f", "table", "-f", "csv=every.csv").out
    assert len(every.splitlines()) > 5 * len(short.splitlines())
    assert "Not shown" not in every
    assert (tool.folder / "short.csv").read_text() == (tool.folder / "every.csv").read_text()
    assert len((tool.folder / "use.md").read_text().splitlines()) > 5 * len(short.splitlines())
